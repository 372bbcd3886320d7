//! Builds the clients of a bucket of S3 from options.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderMap, HeaderValue, header::IF_NONE_MATCH};
use object_store::{
    ClientOptions,
    aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum},
    client::{HttpConnector, ReqwestConnector},
};

use super::{
    BucketOptions,
    connect::{Clients, bad_option, client_options, once, repeated, split_endpoint},
    locked::LockingConnector,
    profile::{Profile, ProfileCredentials, Settings},
};
use crate::OpenStoreError;

/// Clients of a bucket.
pub(super) fn clients(bucket: &str, options: &BucketOptions) -> Result<Clients, OpenStoreError> {
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
    Ok(Clients {
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
