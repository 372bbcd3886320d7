//! Builds the clients of a container in Azure from options.

use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use object_store::{
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{HttpConnector, ReqwestConnector},
};
use reqwest::Url;

use super::{
    AzureOptions, BucketOptions,
    blocks::Blocks,
    connect::{Clients, bad_option, client_options, once, repeated, split_endpoint},
};
use crate::OpenStoreError;

/// Clients of a container.
pub(super) fn clients(container: &str, options: &BucketOptions) -> Result<Clients, OpenStoreError> {
    let bad = |error: object_store::Error| bad_option(error);
    let account =
        options.azure.account.clone().or_else(|| variable(options, &AzureOptions::ACCOUNT)).ok_or_else(
            || bad_option("no storage account was named: use --az-account or AZURE_STORAGE_ACCOUNT_NAME"),
        )?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if account.is_empty() || !account.bytes().all(is_name) {
        return Err(bad_option("the name of a storage account may only have a-z and 0-9"));
    }
    let endpoint = options.azure.endpoint.clone().or_else(|| variable(options, &AzureOptions::ENDPOINT));
    let endpoint = endpoint.unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
    let (scheme, rest) = split_endpoint(&endpoint)?;
    let endpoint = format!("{scheme}://{rest}");
    // Errors would show a shared access signature at its end.
    let url = format!("{endpoint}/{container}").parse().ok();
    let url: Url = url
        .filter(|url: &Url| url.query().is_none() && url.fragment().is_none())
        .ok_or_else(|| bad_option("the endpoint is not of the form https://host[:port][/account]"))?;
    let client_options = client_options(options.azure.ca_file.as_deref(), options)?;
    let client_options = client_options.with_allow_http(scheme == "http");

    let builder = builder(options)?
        .with_account(&account)
        .with_container_name(container)
        .with_endpoint(endpoint)
        .with_client_options(client_options.clone());
    let repeating = builder.clone().with_retry(repeated(options.retries)).build().map_err(bad)?;
    let credentials = Arc::clone(repeating.credentials());
    let creating = builder.with_credentials(Arc::clone(&credentials)).with_retry(once());
    let creating = creating.build().map_err(bad)?;
    let http = ReqwestConnector::default().connect(&client_options).map_err(bad)?;
    let patient = client_options.with_timeout_disabled();
    let patient = ReqwestConnector::default().connect(&patient).map_err(bad)?;
    let blocks = Blocks { client: http.clone(), credentials, account, url };
    Ok(Clients {
        repeating: Arc::new(repeating),
        creating: Arc::new(creating),
        parts: blocks.with_client(patient),
        beginning: Arc::new(blocks.clone()),
        if_absent: Arc::new(blocks.clone()),
        giving_up: Arc::new(blocks),
        signer: None,
        http,
    })
}

fn variable(options: &BucketOptions, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| options.environment.get(*name).filter(|value| !value.is_empty()).cloned())
}

/// Takes the variables that say where credentials are.
fn builder(options: &BucketOptions) -> Result<MicrosoftAzureBuilder, OpenStoreError> {
    use AzureConfigKey as Key;
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in options.environment.iter().filter(|(_, value)| !value.is_empty()) {
        let Some(name) = name.strip_prefix("AZURE_").map(|_| name.to_ascii_lowercase()) else { continue };
        let Ok(key) = name.parse::<Key>() else { continue };
        let counts = matches!(
            key,
            Key::SasKey
                | Key::Token
                | Key::ClientId
                | Key::ClientSecret
                | Key::AuthorityId
                | Key::AuthorityHost
                | Key::FederatedTokenFile
                | Key::MsiEndpoint
                | Key::ObjectId
                | Key::MsiResourceId
        );
        if counts {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(key) = variable(options, &AzureOptions::KEY) {
        // The library's error would show a part of the key.
        if BASE64_STANDARD.decode(&key).is_err() {
            return Err(bad_option("the key of the storage account is not in base64"));
        }
        builder = builder.with_access_key(key);
    }
    Ok(builder)
}
