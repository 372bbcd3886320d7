//! Requests that the library has no call for. The library signs them; answers are bounded before they are
//! parsed.

use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use holdfast_repo::store::{RemoteCause, StoreError};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use object_store::{
    client::{HttpError, HttpRequest, HttpRequestBody},
    path::Path,
    signer::{SignedUrlOptions, Signer},
};
use serde::de::DeserializeOwned;

use super::{
    Inner,
    attempts::Attempts,
    failure::{Failure, of_transport},
};

/// How long a request can be used after it was signed, which is also how far a host's clock may be behind: as
/// much as services allow for all other requests.
const SIGNED_FOR: Duration = Duration::from_secs(900);
/// Larger than a page of 1,000 entries of any kind.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// A request without the parts that are random or depend on time.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The name below the bucket; empty for the bucket itself.
    pub(super) key: Path,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
    /// The subject of the request, for errors.
    pub(super) what: String,
}

impl Request {
    /// A request that reads something about the bucket.
    pub(super) fn of_bucket(query: Vec<(&'static str, String)>, what: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            key: Path::default(),
            query,
            headers: Vec::new(),
            body: Bytes::new(),
            what: what.into(),
        }
    }
}

/// The answer to a request that succeeded.
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why a request did not succeed.
pub(super) struct Refused {
    pub(super) failure: Failure,
    pub(super) error: StoreError,
}

impl From<Refused> for StoreError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

impl Inner {
    /// Sends a request that can be repeated, as often as necessary.
    pub(super) async fn ask(&self, request: &Request) -> Result<Answer, Refused> {
        let mut attempts = Attempts::new(self.options.retries);
        loop {
            let refused = match self.ask_once(request).await {
                Err(refused) => refused,
                answer => return answer,
            };
            if !attempts.wait(refused.failure).await {
                return Err(refused);
            }
        }
    }

    /// Like [`Inner::ask`], for an answer that is a document.
    pub(super) async fn ask_for<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Refused> {
        let answer = self.ask(request).await?;
        read_document(&answer.body).ok_or_else(|| {
            let error = self.remote(&request.what, RemoteCause::Other, "its answer cannot be parsed");
            Refused { failure: Failure::Remote(RemoteCause::Other), error }
        })
    }

    async fn ask_once(&self, request: &Request) -> Result<Answer, Refused> {
        let of_library = |error: object_store::Error| Refused {
            failure: Failure::of(&error),
            error: self.error(&error, &request.what),
        };
        let mut options = SignedUrlOptions::default().with_query(request.query.iter().cloned());
        for (name, value) in &request.headers {
            options = options.with_signed_header(name.clone(), value.clone());
        }
        let nobody = || Refused {
            failure: Failure::Remote(RemoteCause::Unfit),
            error: self.remote(&request.what, RemoteCause::Unfit, "it is not S3"),
        };
        let signer = self.clients.signer.as_ref().ok_or_else(nobody)?;
        let signed = signer.signed_url_opts(request.method.clone(), &request.key, SIGNED_FOR, &options);
        let url = signed.await.map_err(of_library)?;
        // The address holds a signature: no error below may repeat it.
        let failed = |cause, detail: String| Refused {
            failure: Failure::Remote(cause),
            error: self.remote(&request.what, cause, detail),
        };
        let mut sent = HttpRequest::new(HttpRequestBody::from(request.body.clone()));
        *sent.method_mut() = request.method.clone();
        *sent.uri_mut() = url
            .as_str()
            .parse()
            .map_err(|_| failed(RemoteCause::Other, "the address of the request is not valid".to_owned()))?;
        sent.headers_mut().extend(request.headers.iter().cloned());
        let unreachable = |error: HttpError| {
            let (cause, detail) = of_transport(&error);
            failed(cause, detail)
        };
        let response = self.clients.http.execute(sent).await.map_err(unreachable)?;
        let (parts, body) = response.into_parts();
        let mut bytes = Vec::new();
        let mut blocks = body.bytes_stream();
        while let Some(block) = blocks.try_next().await.map_err(unreachable)? {
            if bytes.len() + block.len() > ANSWER_BYTES_MAX {
                return Err(failed(
                    RemoteCause::Other,
                    format!("its answer is longer than {ANSWER_BYTES_MAX} bytes"),
                ));
            }
            bytes.extend_from_slice(&block);
        }
        if parts.status.is_success() {
            return Ok(Answer { headers: parts.headers, body: bytes.into() });
        }
        let answer = format!("status code: {}: {}", parts.status.as_u16(), String::from_utf8_lossy(&bytes));
        Err(of_library(object_store::Error::Generic { store: "S3", source: answer.into() }))
    }
}

/// Parses a document of the protocol; `None` if the bytes are not one.
pub(super) fn read_document<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= ANSWER_BYTES_MAX)?;
    quick_xml::de::from_str(text).ok()
}
