//! Builds the clients of a bucket from options.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use http::{HeaderMap, HeaderValue, header::IF_NONE_MATCH};
use object_store::{
    BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, Checksum},
    client::{HttpClient, HttpConnector, ReqwestConnector},
    multipart::MultipartStore,
};
use rustls::crypto::ring;

use super::{
    BucketOptions, azure,
    locked::LockingConnector,
    profile::{Profile, ProfileCredentials, Settings},
    service::Service,
};
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

impl Clients {
    pub(super) fn new(
        service: Service,
        bucket: &str,
        options: &BucketOptions,
    ) -> Result<Self, OpenStoreError> {
        // The cipher suites of the only TLS library. Another part of the process may have installed them
        // already.
        let _ = ring::default_provider().install_default();
        match service {
            Service::S3 => Self::of_s3(bucket, options),
            Service::Azure => azure::clients(bucket, options),
        }
    }

    fn of_s3(bucket: &str, options: &BucketOptions) -> Result<Self, OpenStoreError> {
        let profile = Profile::find(options.profile.as_deref(), &options.environment);
        let settings = profile.read().map_err(bad_option)?;
        let region = region(options, &settings);
        let (builder, client_options) = builder(bucket, &region, options, &settings)?;
        let bad = |error: object_store::Error| bad_option(error);
        let repeating = with_credentials(builder.clone(), options, profile)?
            .with_client_options(client_options.clone())
            .with_retry(repeated(options.retries))
            .build()
            .map_err(bad)?;
        let builder = builder.with_credentials(Arc::clone(repeating.credentials()));
        let locking = || {
            let credentials = Arc::clone(repeating.credentials());
            let connector = LockingConnector { credentials, region: region.clone() };
            builder.clone().with_http_connector(connector).with_client_options(client_options.clone())
        };
        let beginning = locking().with_retry(repeated(options.retries)).build().map_err(bad)?;
        let creating = locking().with_retry(once()).build().map_err(bad)?;
        let builder = builder.with_retry(once());
        let patient = client_options.clone().with_timeout_disabled();
        let parts = builder.clone().with_client_options(patient).build().map_err(bad)?;
        let condition = HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_static("*"))]);
        let if_absent = builder
            .with_client_options(client_options.clone().with_default_headers(condition))
            .build()
            .map_err(bad)?;
        let http = ReqwestConnector::default().connect(&client_options).map_err(bad)?;
        Ok(Self {
            beginning: Arc::new(beginning),
            if_absent: Arc::new(if_absent),
            parts: Arc::new(parts),
            giving_up: Arc::new(creating.clone()),
            creating: Arc::new(creating),
            signer: Some(repeating.clone()),
            repeating: Arc::new(repeating),
            http,
        })
    }
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

fn region(options: &BucketOptions, settings: &Settings) -> String {
    let variable = |name: &str| options.environment.get(name).filter(|value| !value.is_empty()).cloned();
    let setting = || settings.get("region").filter(|value| !value.is_empty()).cloned();
    let region = options.region.clone().or_else(|| variable("AWS_REGION"));
    let region = region.or_else(|| variable("AWS_DEFAULT_REGION")).or_else(setting);
    region.unwrap_or_else(|| "us-east-1".to_owned())
}

/// Builds from the environment, which explicit options override, and which overrides a profile.
fn builder(
    bucket: &str,
    region: &str,
    options: &BucketOptions,
    settings: &Settings,
) -> Result<(AmazonS3Builder, ClientOptions), OpenStoreError> {
    let variable = |name: &str| options.environment.get(name).filter(|value| !value.is_empty()).cloned();
    let setting = |name: &str| settings.get(name).filter(|value| !value.is_empty()).cloned();
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| variable("AWS_ENDPOINT_URL_S3"))
        .or_else(|| variable("AWS_ENDPOINT_URL"))
        .or_else(|| setting("endpoint_url"));
    let ca_file = options
        .ca_file
        .clone()
        .or_else(|| variable("AWS_CA_BUNDLE").map(Into::into))
        .or_else(|| setting("ca_bundle").map(Into::into));

    // A bucket name with a dot matches no certificate of the form *.host.
    let path_style = options.path_style.unwrap_or(endpoint.is_some() || bucket.contains('.'));
    let mut builder = AmazonS3Builder::new();
    for (key, value) in of_environment(&options.environment) {
        builder = builder.with_config(key, value);
    }
    let mut client_options = client_options(ca_file.as_deref(), options)?;
    if let Some(endpoint) = endpoint {
        let (scheme, host) = split_endpoint(&endpoint)?;
        client_options = client_options.with_allow_http(scheme == "http");
        // The library uses the host as it is given, so the bucket goes in front of it.
        builder = builder.with_endpoint(match path_style {
            true => format!("{scheme}://{host}"),
            false => format!("{scheme}://{bucket}.{host}"),
        });
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_region(region)
        .with_virtual_hosted_style_request(!path_style)
        // The signature needs this hash anyway.
        .with_checksum_algorithm(Checksum::SHA256);
    Ok((builder, client_options))
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

/// The variables that say where credentials are: keys, web identity, containers, instances.
fn of_environment(
    environment: &BTreeMap<String, String>,
) -> impl Iterator<Item = (AmazonS3ConfigKey, &String)> {
    use AmazonS3ConfigKey as Key;
    environment.iter().filter(|(_, value)| !value.is_empty()).filter_map(|(name, value)| {
        let name = name.strip_prefix("AWS_").map(|_| name.to_ascii_lowercase())?;
        let key: Key = name.parse().ok()?;
        let counts = matches!(
            key,
            Key::AccessKeyId
                | Key::SecretAccessKey
                | Key::Token
                | Key::WebIdentityTokenFile
                | Key::RoleArn
                | Key::RoleSessionName
                | Key::StsEndpoint
                | Key::ContainerCredentialsRelativeUri
                | Key::ContainerCredentialsFullUri
                | Key::ContainerAuthorizationTokenFile
                | Key::MetadataEndpoint
                | Key::ImdsV1Fallback
                | Key::RequestPayer
        );
        counts.then_some((key, value))
    })
}

/// Like AWS' tools: an explicit profile overrides keys in the environment, and those override the default
/// profile.
fn with_credentials(
    builder: AmazonS3Builder,
    options: &BucketOptions,
    profile: Profile,
) -> Result<AmazonS3Builder, OpenStoreError> {
    let is_set = |name: &str| options.environment.get(name).is_some_and(|value| !value.is_empty());
    let others =
        is_set("AWS_ACCESS_KEY_ID") || (is_set("AWS_WEB_IDENTITY_TOKEN_FILE") && is_set("AWS_ROLE_ARN"));
    if others && options.profile.is_none() {
        return Ok(builder);
    }
    Ok(match ProfileCredentials::of(profile).map_err(bad_option)? {
        Some(credentials) => builder.with_credentials(Arc::new(credentials)),
        None => builder,
    })
}
