//! How a bucket is reached.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use crate::pause::Retries;

/// How a bucket is reached.
#[derive(Clone)]
pub struct BucketOptions {
    /// Address of the service: `https://host[:port]`; without it that of AWS in the region.
    pub endpoint: Option<String>,
    /// Region; without it what the configuration of AWS' tools says, or `us-east-1`.
    pub region: Option<String>,
    /// The bucket's name in the path of the address instead of the host. Without it: in the path wherever there is an
    /// endpoint.
    pub path_style: Option<bool>,
    /// Certificates (PEM) of authorities that are believed besides those of the host.
    pub ca_file: Option<PathBuf>,
    /// Which profile of AWS' configuration and credential files counts.
    pub profile: Option<String>,
    /// Variables as AWS' tools know them, from `AWS_ACCESS_KEY_ID` on, and `HOME`.
    pub environment: BTreeMap<String, String>,
    /// Size of the parts that larger objects are sent in: at least 5 MiB, but for tests.
    pub part_bytes: usize,
    /// Parts on their way at once, over all uploads. With the one that each upload fills they bound the memory.
    pub parts_at_once: usize,
    /// How often a request is repeated.
    pub retries: Retries,
    /// Longest time for one request, a part's bytes included.
    pub request_timeout: Duration,
}

impl BucketOptions {
    /// Size of parts that every service takes, and that a slow line sends within [`BucketOptions::request_timeout`].
    pub const PART_BYTES: usize = 8 << 20;
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            path_style: None,
            ca_file: None,
            profile: None,
            environment: BTreeMap::new(),
            part_bytes: Self::PART_BYTES,
            parts_at_once: 4,
            retries: Retries::default(),
            request_timeout: Duration::from_secs(180),
        }
    }
}

impl std::fmt::Debug for BucketOptions {
    /// Without the environment: there are secrets in it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BucketOptions")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}
