//! Uploads in parts as Azure knows them: blocks of a blob that no list shows until a list of blocks turns
//! them into the blob.
//!
//! The library's calls for this are not enough for us: they send no condition and write no metadata. So the
//! requests are made here. Blocks belong to a blob's name, not to an upload: two uploads of one name must not
//! take each other's blocks for their own, so the name of each block begins with the mark of its upload.
//!
//! An upload needs no first request, and cannot be aborted: the service forgets blocks a week after the last
//! one.

use std::sync::Arc;

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_util::TryStreamExt;
use http::{
    HeaderName, HeaderValue, Method,
    header::{CONTENT_LENGTH, IF_NONE_MATCH},
};
use object_store::{
    Attribute, Error, MultipartId, PutMultipartOptions, PutPayload, PutResult, Result,
    azure::{AzureAuthorizer, AzureCredentialProvider},
    client::{HttpClient, HttpRequest, HttpRequestBody},
    multipart::{MultipartStore, PartId},
    path::Path,
};
use reqwest::Url;

use super::service::Service;

const STORE: &str = "Azure";
/// The mark in a blob's metadata, as a header.
const MARK_HEADER: HeaderName = HeaderName::from_static("x-ms-meta-holdfast_mark");
/// Most bytes kept of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Uploads to one container.
#[derive(Clone)]
pub(super) struct Blocks {
    pub(super) client: HttpClient,
    pub(super) credentials: AzureCredentialProvider,
    pub(super) account: String,
    /// The address of the container.
    pub(super) url: Url,
}

impl Blocks {
    /// The same requests through another client.
    pub(super) fn with_client(&self, client: HttpClient) -> Arc<dyn MultipartStore> {
        Arc::new(Self { client, ..self.clone() })
    }

    /// Sends a request once. No error repeats its address, which may hold a shared access signature.
    async fn send(
        &self,
        key: &Path,
        query: &[(&str, &str)],
        headers: &[(HeaderName, String)],
        body: PutPayload,
    ) -> Result<()> {
        let failed =
            |why: Box<dyn std::error::Error + Send + Sync>| Error::Generic { store: STORE, source: why };
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(key.as_ref().split('/'));
        }
        url.query_pairs_mut().extend_pairs(query);
        let length = body.content_length();
        let mut request = HttpRequest::new(HttpRequestBody::from(body));
        *request.method_mut() = Method::PUT;
        *request.uri_mut() =
            url.as_str().parse().map_err(|_| failed("the address of the request is not valid".into()))?;
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|error| failed(error.into()))?;
            request.headers_mut().insert(name, value);
        }
        let credential = self.credentials.get_credential().await?;
        AzureAuthorizer::new(&credential, &self.account).try_authorize(&mut request)?;
        let answer = self.client.execute(request).await.map_err(|error| failed(error.into()))?;
        let (parts, body) = answer.into_parts();
        let mut bytes = Vec::new();
        let mut blocks = body.bytes_stream();
        while let Some(block) = blocks.try_next().await.map_err(|error| failed(error.into()))? {
            let room = ANSWER_BYTES_MAX - bytes.len();
            bytes.extend_from_slice(&block[..block.len().min(room)]);
        }
        if parts.status.is_success() {
            return Ok(());
        }
        // In the library's format, from which failures are read.
        let answer = format!("status code: {}: {}", parts.status.as_u16(), String::from_utf8_lossy(&bytes));
        Err(failed(answer.into()))
    }
}

/// The name of a block. All blocks of a blob must have names of one length.
fn block_name(id: &MultipartId, number: usize) -> String {
    BASE64_STANDARD.encode(format!("{id}-{number:06}"))
}

#[async_trait]
impl MultipartStore for Blocks {
    async fn create_multipart(&self, _: &Path) -> Result<MultipartId> {
        Err(Error::NotSupported { source: "an upload without a mark".into() })
    }

    /// The id of an upload is its mark.
    async fn create_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<MultipartId> {
        let mark = options.attributes.get(&Attribute::Metadata(Service::Azure.mark().into()));
        match mark {
            Some(mark) => Ok(mark.to_string()),
            None => self.create_multipart(path).await,
        }
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        number: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let name = block_name(id, number);
        self.send(path, &[("comp", "block"), ("blockid", &name)], &[], data).await?;
        Ok(PartId { content_id: name })
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let mut list = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<BlockList>".to_owned();
        for part in &parts {
            list.extend(["<Uncommitted>", &part.content_id, "</Uncommitted>"]);
        }
        list.push_str("</BlockList>");
        let headers = [(IF_NONE_MATCH, "*".to_owned()), (MARK_HEADER, id.clone())];
        self.send(path, &[("comp", "blocklist")], &headers, PutPayload::from(list)).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: http::Extensions::new() })
    }

    async fn abort_multipart(&self, _: &Path, _: &MultipartId) -> Result<()> {
        Ok(())
    }
}
