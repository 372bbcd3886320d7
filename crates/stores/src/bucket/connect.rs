//! The clients of a bucket, and what those of every service are built with.

use std::{fs, path::Path, sync::Arc};

use object_store::{
    BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig, aws::AmazonS3, client::HttpClient,
    multipart::MultipartStore,
};

use super::BucketOptions;
use crate::{OpenStoreError, pause::Retries};

/// The clients of a bucket. All sign with the same credentials.
pub(super) struct Clients {
    /// For requests that can be repeated: the library does so for the first moments, and resumes answers that
    /// break off.
    pub(super) repeating: Arc<dyn ObjectStore>,
    /// For requests that create something. Sends each once: the caller must know whether one was repeated.
    pub(super) creating: Arc<dyn ObjectStore>,
    /// For the first request of an upload in parts, which can be repeated. Like `creating`, it locks what is
    /// to be locked.
    pub(super) beginning: Arc<dyn MultipartStore>,
    /// Like `creating`, and every request has the condition that the name is free.
    pub(super) if_absent: Arc<dyn MultipartStore>,
    /// For parts. Sends each once, and waits for as long as its caller does.
    pub(super) parts: Arc<dyn MultipartStore>,
    /// For uploads that are not to be completed. Sends each request once.
    pub(super) giving_up: Arc<dyn MultipartStore>,
    /// Signs requests that the library has no call for: S3 only.
    pub(super) signer: Option<AmazonS3>,
    /// Sends those requests.
    pub(super) http: HttpClient,
}

pub(super) fn bad_option(error: impl std::fmt::Display) -> OpenStoreError {
    OpenStoreError::BadOption(error.to_string())
}

/// Further retries are those of [`super::attempts`].
const LIBRARY_RETRIES: usize = 3;

pub(super) fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

pub(super) fn repeated(retries: Retries) -> RetryConfig {
    RetryConfig {
        max_retries: LIBRARY_RETRIES.min(retries.count as usize),
        retry_timeout: retries.give_up_after,
        backoff: BackoffConfig { max_backoff: retries.pause_max, ..BackoffConfig::default() },
    }
}

const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Scheme and the rest of an address, without a slash at the end.
pub(super) fn split_endpoint(endpoint: &str) -> Result<(&str, &str), OpenStoreError> {
    endpoint
        .split_once("://")
        .map(|(scheme, host)| (scheme, host.trim_end_matches('/')))
        .filter(|(scheme, host)| matches!(*scheme, "http" | "https") && !host.contains('@'))
        .ok_or_else(|| bad_option("the endpoint is not of the form https://host[:port]"))
}

/// How requests are sent, and which certificates are trusted.
pub(super) fn client_options(
    ca_file: Option<&Path>,
    options: &BucketOptions,
) -> Result<ClientOptions, OpenStoreError> {
    let mut client_options = ClientOptions::new()
        .with_timeout(options.request_timeout)
        .with_connect_timeout(CONNECT_TIMEOUT.min(options.request_timeout));
    let Some(ca_file) = ca_file else { return Ok(client_options) };
    let failed = |why: &dyn std::fmt::Display| bad_option(format!("{}: {why}", ca_file.display()));
    let pem = fs::read(ca_file).map_err(|error| failed(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| failed(&error))?;
    if certificates.is_empty() {
        return Err(failed(&"holds no certificate"));
    }
    for certificate in certificates {
        client_options = client_options.with_root_certificate(certificate);
    }
    Ok(client_options)
}
