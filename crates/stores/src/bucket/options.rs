//! How a bucket is reached.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use crate::pause::Retries;

/// How a bucket is reached. Options that do not mention Azure are for S3, or for both.
#[derive(Clone)]
pub struct BucketOptions {
    /// For `az://`.
    pub azure: AzureOptions,
    /// Address of the service: `https://host[:port]`; without it, that of AWS in the region.
    pub endpoint: Option<String>,
    /// Region; without it, the one in the configuration of AWS' tools, or `us-east-1`.
    pub region: Option<String>,
    /// Whether the bucket's name is in the path of the address instead of the host. Without it: in the path
    /// if there is an endpoint, or if the name has a dot.
    pub path_style: Option<bool>,
    /// Certificates (PEM) of authorities to trust besides those of the host.
    pub ca_file: Option<PathBuf>,
    /// Which profile of AWS' configuration and credential files to use.
    pub profile: Option<String>,
    /// Variables as the tools of AWS and Azure know them, such as `AWS_ACCESS_KEY_ID` and
    /// `AZURE_STORAGE_ACCOUNT_NAME`, and `HOME`.
    pub environment: BTreeMap<String, String>,
    /// Size of the parts in which larger objects are sent: at least 5 MiB, except in tests.
    pub part_bytes: usize,
    /// Parts sent at once, over all uploads. With the part that each upload is filling, they bound the
    /// memory.
    pub parts_at_once: usize,
    /// How often a request is repeated.
    pub retries: Retries,
    /// Longest time for one request, including the bytes of a part.
    pub request_timeout: Duration,
}

/// How a container of Azure is reached.
#[derive(Clone, Debug, Default)]
pub struct AzureOptions {
    /// Storage account; without it, that of the environment.
    pub account: Option<String>,
    /// Address of its blobs: `https://host[:port][/account]`; without it, that of the environment, or of the
    /// public cloud.
    pub endpoint: Option<String>,
    /// Certificates (PEM) of authorities to trust besides those of the host.
    pub ca_file: Option<PathBuf>,
}

impl AzureOptions {
    /// Variables that name the account; the first that is set counts.
    pub const ACCOUNT: [&str; 2] = ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"];
    /// Variables that hold the address.
    pub const ENDPOINT: [&str; 1] = ["AZURE_STORAGE_ENDPOINT"];
    /// Variables that hold the account's key.
    pub(super) const KEY: [&str; 3] =
        ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY"];
}

impl BucketOptions {
    /// Size of parts that every service accepts, and that a slow line sends within
    /// [`BucketOptions::request_timeout`].
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
    /// Without the environment, which holds secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BucketOptions")
            .field("azure", &self.azure)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}
