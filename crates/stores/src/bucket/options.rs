//! How a bucket is reached.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use crate::pause::Retries;

/// How a bucket is reached. What is not said of Azure is of S3, or of both.
#[derive(Clone)]
pub struct BucketOptions {
    /// Of `az://`.
    pub azure: AzureOptions,
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
    /// Variables as the tools of AWS and of Azure know them, from `AWS_ACCESS_KEY_ID` and `AZURE_STORAGE_ACCOUNT_NAME` on,
    /// and `HOME`.
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

/// How a container of Azure is reached.
#[derive(Clone, Debug, Default)]
pub struct AzureOptions {
    /// Storage account; without it that of the environment.
    pub account: Option<String>,
    /// Address of its blobs: `https://host[:port][/account]`; without it that of the environment, or of the public cloud.
    pub endpoint: Option<String>,
    /// Certificates (PEM) of authorities that are believed besides those of the host.
    pub ca_file: Option<PathBuf>,
}

impl AzureOptions {
    /// Variables that name the account, the first that is set.
    pub const ACCOUNT: [&str; 2] = ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"];
    /// Variables that hold the address.
    pub const ENDPOINT: [&str; 1] = ["AZURE_STORAGE_ENDPOINT"];
    /// Variables that hold the account's key.
    pub(super) const KEY: [&str; 3] =
        ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY"];
}

impl BucketOptions {
    /// Size of parts that every service takes, and that a slow line sends within [`BucketOptions::request_timeout`].
    pub const PART_BYTES: usize = 8 << 20;
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self {
            azure: AzureOptions::default(),
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
            .field("azure", &self.azure)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}
