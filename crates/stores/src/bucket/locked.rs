//! Requests that lock what they create.
//!
//! The library has no call for this, but passes what a caller gives on to the client that sends its requests.
//! Here, that client adds the headers and signs the request anew, because services ignore such headers unless
//! they are signed.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use http::{Extensions, HeaderName, HeaderValue};
use jiff::Timestamp;
use object_store::{
    ClientOptions,
    aws::{AwsAuthorizer, AwsCredentialProvider},
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    },
};

use holdfast_repo::{
    format::hex::from_hex,
    store::locks::{LockMode, ObjectLock},
};

const MODE: HeaderName = HeaderName::from_static("x-amz-object-lock-mode");
const UNTIL: HeaderName = HeaderName::from_static("x-amz-object-lock-retain-until-date");
const CHECKSUM: &str = "x-amz-checksum-sha256";
const CHECKSUM_SORT: HeaderName = HeaderName::from_static("x-amz-sdk-checksum-algorithm");
const DIGEST: &str = "x-amz-content-sha256";

/// The mode of a lock as the protocol writes it.
pub(super) fn mode_word(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Governance => "GOVERNANCE",
        LockMode::Compliance => "COMPLIANCE",
    }
}

/// A time as the protocol writes it: in whole seconds, rounded up.
pub(super) fn time_word(time: SystemTime) -> Option<String> {
    let time = Timestamp::try_from(time).ok()?;
    let up = if time.subsec_nanosecond() > 0 { 1 } else { 0 };
    Some(
        Timestamp::from_second(time.as_second().checked_add(up)?)
            .ok()?
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
    )
}

/// What a request carries for the client.
pub(super) fn extensions(lock: Option<ObjectLock>) -> Extensions {
    let mut extensions = Extensions::new();
    if let Some(lock) = lock {
        extensions.insert(lock);
    }
    extensions
}

/// Makes clients that send such requests.
pub(super) struct LockingConnector {
    pub(super) credentials: AwsCredentialProvider,
    pub(super) region: String,
}

impl HttpConnector for LockingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Locking {
            client: ReqwestConnector::default().connect(options)?,
            credentials: Arc::clone(&self.credentials),
            region: self.region.clone(),
        }))
    }
}

struct Locking {
    client: HttpClient,
    credentials: AwsCredentialProvider,
    region: String,
}

// Written by hand, so that credentials are never shown.
impl fmt::Debug for LockingConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockingConnector")
    }
}

impl fmt::Debug for Locking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locking")
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the request that locks an object could not be signed: {0}")]
struct NotSigned(String);

#[async_trait]
impl HttpService for Locking {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(lock) = request.extensions_mut().remove::<ObjectLock>() {
            let failed = |why: String| HttpError::new(HttpErrorKind::Unknown, NotSigned(why));
            // Our clock will do: the service refuses a signature if the clock differs by more than a quarter
            // of an hour.
            let until = until(SystemTime::now(), lock.period());
            let until = until.and_then(|until| HeaderValue::from_str(&until).ok());
            let until = until.ok_or_else(|| failed("the end of the lock is out of range".to_owned()))?;
            request.headers_mut().insert(MODE, HeaderValue::from_static(mode_word(lock.mode)));
            request.headers_mut().insert(UNTIL, until);
            // A request that locks must have a checksum, and name its algorithm.
            if request.headers().contains_key(CHECKSUM) {
                request.headers_mut().insert(CHECKSUM_SORT, HeaderValue::from_static("SHA256"));
            }
            let credential = self.credentials.get_credential().await;
            let credential = credential.map_err(|error| failed(error.to_string()))?;
            // The digest of the bytes, which are hashed already.
            let digest = request.headers().get(DIGEST).and_then(|digest| digest.to_str().ok());
            let digest = digest.and_then(from_hex).filter(|digest| digest.len() == 32);
            AwsAuthorizer::new(&credential, "s3", &self.region)
                .try_authorize(&mut request, digest.as_deref())
                .map_err(|error| failed(error.to_string()))?;
        }
        self.client.execute(request).await
    }
}

fn until(now: SystemTime, period: Duration) -> Option<String> {
    time_word(now.checked_add(period)?)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_lock_lasts_no_less_than_was_asked_for() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(until(at(0), day).as_deref(), Some("1970-01-02T00:00:00Z"));
        assert_eq!(until(at(1), day).as_deref(), Some("1970-01-02T00:00:01Z"));
        assert_eq!(until(at(1_795_314_935_947), 30 * day).as_deref(), Some("2026-12-22T02:35:36Z"));
        assert_eq!(until(SystemTime::now(), Duration::from_secs(u64::MAX)), None);
        assert_eq!(until(at(0), 366 * 10_000 * day), None);
    }
}
