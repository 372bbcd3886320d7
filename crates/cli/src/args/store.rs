//! How a repository beyond a network is reached.

use std::{collections::BTreeMap, env, ffi::OsString, path::PathBuf};

use clap::Args;
use holdfast_stores::{
    StoreOptions,
    bucket::{AzureOptions, BucketOptions},
    limited::Limits,
    sftp::SftpOptions,
};
use serde::Deserialize;

use super::units::ByteSize;

/// How a repository beyond a network is reached; in the configuration file the section `[store]`.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[command(next_help_heading = "Remote repository (docs/guide/stores.md)")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct StoreArgs {
    /// Address of an S3 service other than AWS: https://host[:port] [default: AWS_ENDPOINT_URL_S3 or
    /// AWS_ENDPOINT_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) s3_endpoint: Option<String>,

    /// Region of the bucket [default: AWS_REGION, the profile's, or us-east-1]
    #[arg(long, global = true, value_name = "REGION")]
    pub(crate) s3_region: Option<String>,

    /// Profile in the AWS configuration files [default: AWS_PROFILE]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) s3_profile: Option<String>,

    /// Whether the bucket's name is in the path of the URL, not in its host [default: yes if there is an
    /// endpoint]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) s3_path_style: Option<bool>,

    /// Azure storage account of an az:// repository [default: AZURE_STORAGE_ACCOUNT_NAME or
    /// AZURE_STORAGE_ACCOUNT]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) az_account: Option<String>,

    /// Address of its blob service, where that is not in Azure's public cloud: https://host[:port][/account]
    /// [default: AZURE_STORAGE_ENDPOINT]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) az_endpoint: Option<String>,

    /// Certificate authorities (PEM) to trust besides the host's [default: for s3:// AWS_CA_BUNDLE]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// Size of the parts in which packs are uploaded, 5M to 64M [default: 8M]
    #[arg(long, global = true, value_name = "SIZE", value_parser = part_size)]
    #[serde(deserialize_with = "configured_part_size")]
    pub(crate) s3_part_size: Option<ByteSize>,

    /// Parts to upload at once; they take memory on top of --memory [default: 4]
    #[arg(long, global = true, value_name = "N", value_parser = super::resources::threads)]
    pub(crate) s3_parts: Option<usize>,

    /// The ssh program [default: ssh]
    #[arg(long, global = true, value_name = "PROGRAM")]
    pub(crate) ssh: Option<PathBuf>,

    /// Configuration file of ssh [default: ssh's own]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ssh_config: Option<PathBuf>,

    /// Most requests to the store at once [default: no additional limit]
    #[arg(long, global = true, value_name = "N", value_parser = super::resources::threads)]
    pub(crate) store_calls: Option<usize>,

    /// Most bytes to upload per second, for example 20M; 0 is no limit [default: no limit]
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) limit_upload: Option<ByteSize>,

    /// Most bytes to download per second; 0 is no limit [default: no limit]
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) limit_download: Option<ByteSize>,
}

const PART_BYTES: std::ops::RangeInclusive<u64> = (5 << 20)..=(64 << 20);

fn part_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: super::units::UnitError| error.to_string())?;
    if PART_BYTES.contains(&size.0) { Ok(size) } else { Err(format!("{size} is not between 5M and 64M")) }
}

fn configured_part_size<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ByteSize>, D::Error> {
    part_size(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

impl StoreArgs {
    /// What it means: what was typed counts before the environment, and that before the file.
    pub(crate) fn options(self, file: Self) -> StoreOptions {
        let environment = of_environment(env::vars_os());
        let is_set = |names: &[&str]| names.iter().any(|name| environment.contains_key(*name));
        // Where a variable says it, the store reads it from there.
        let unless_set = |names: &[&str], typed: Option<String>, file: Option<String>| {
            typed.or_else(|| file.filter(|_| !is_set(names)))
        };
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
        let rate = |typed: Option<ByteSize>, file: Option<ByteSize>| {
            typed.or(file).map(|size| size.0).filter(|bytes| *bytes > 0)
        };
        let usual = BucketOptions::default();
        let part_bytes =
            self.s3_part_size.or(file.s3_part_size).and_then(|size| usize::try_from(size.0).ok());
        let azure = AzureOptions {
            account: unless_set(&AzureOptions::ACCOUNT, self.az_account, file.az_account),
            endpoint: unless_set(&AzureOptions::ENDPOINT, self.az_endpoint, file.az_endpoint),
            ca_file: self.ca_file.clone().or_else(|| file.ca_file.clone()),
        };
        let bucket = BucketOptions {
            azure,
            endpoint: unless_set(&endpoint, self.s3_endpoint, file.s3_endpoint),
            region: unless_set(&["AWS_REGION", "AWS_DEFAULT_REGION"], self.s3_region, file.s3_region),
            profile: unless_set(&["AWS_PROFILE"], self.s3_profile, file.s3_profile),
            path_style: self.s3_path_style.or(file.s3_path_style),
            ca_file: self.ca_file.or_else(|| file.ca_file.filter(|_| !is_set(&["AWS_CA_BUNDLE"]))),
            part_bytes: part_bytes.unwrap_or(usual.part_bytes),
            parts_at_once: self.s3_parts.or(file.s3_parts).unwrap_or(usual.parts_at_once),
            environment,
            ..usual
        };
        let usual = SftpOptions::default();
        let sftp = SftpOptions {
            ssh: self.ssh.or(file.ssh).unwrap_or(usual.ssh),
            config_file: self.ssh_config.or(file.ssh_config),
            may_ask: rustix::termios::isatty(std::io::stdin()) && rustix::termios::isatty(std::io::stderr()),
            ..SftpOptions::default()
        };
        let limits = Limits {
            calls: self.store_calls.or(file.store_calls),
            upload_bytes_per_s: rate(self.limit_upload, file.limit_upload),
            download_bytes_per_s: rate(self.limit_download, file.limit_download),
        };
        StoreOptions { bucket, sftp, limits, as_of: None }
    }
}

/// What the tools of AWS and of Azure read, and nothing else of the environment.
fn of_environment(variables: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let is_read = |name: &str| name.starts_with("AWS_") || name.starts_with("AZURE_") || name == "HOME";
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| is_read(name) && !value.is_empty())
        .collect()
}
