//! The meaning of a failed request.

use std::error::Error as StdError;

use holdfast_repo::store::{RemoteCause, RemoteError, StoreError, StoreErrorKind};
use object_store::client::{HttpError, HttpErrorKind};

/// Most characters of a server's answer that an error repeats.
const DETAIL_CHARS_MAX: usize = 300;

/// What a failed request means for the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no such object (or upload).
    NotFound,
    /// The condition did not hold: the name is taken.
    Taken,
    /// Another client did something with the same name at the same time; nothing was done.
    Conflict,
    /// The object is shorter than the range requested.
    Range,
    /// The object is in an archive, from which it would have to be brought back first.
    Archived,
    /// The request was refused with status 400 and no code, as in the answer to a HEAD, which has no
    /// room for a reason. The credentials may have expired.
    Unsaid,
    /// Anything else, by its class. If [`RemoteCause::passes`], the request may have been carried out.
    Remote(RemoteCause),
}

/// Status and error code of an answer, as far as the library shows them: it puts both into its messages only.
struct Answer {
    status: Option<u16>,
    code: Option<String>,
    message: Option<String>,
}

impl Answer {
    fn of(words: &str) -> Self {
        let status = words
            .split_once("status code: ")
            .and_then(|(_, rest)| rest.get(..3))
            .and_then(|digits| digits.parse().ok());
        // If one request deletes many objects, the library gives the code for one of them in its own format.
        // Azure's code is only the status.
        let in_words = || Some(words.rsplit_once("(code: ")?.1.split_once(')')?.0.to_owned());
        let code = element(words, "Code").or_else(in_words);
        match code.as_deref().and_then(|code| code.parse().ok()) {
            Some(status) => Self { status: Some(status), code: None, message: None },
            None => Self { status, code, message: element(words, "Message") },
        }
    }
}

fn element(words: &str, name: &str) -> Option<String> {
    let (_, rest) = words.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once(&format!("</{name}>"))?;
    Some(value.to_owned())
}

/// The error and its causes, each once.
fn words(error: &object_store::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    words
}

/// How rustls begins its objections to a certificate.
const BAD_CERTIFICATE: &str = "invalid peer certificate";
/// How such an objection continues if time will not mend it: an expired certificate may be renewed.
const STRANGE: [&str; 3] = ["UnknownIssuer", "NotValidForName", "not valid for name"];

/// Whether the message is about the service that issues credentials.
fn is_of_credentials(words: &str) -> bool {
    words.contains("performing token request")
}

fn transport(error: &object_store::Error) -> Option<HttpErrorKind> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

/// The last cause.
fn innermost(error: &dyn StdError) -> &dyn StdError {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last
}

/// Why a request that was signed in its address got no answer. The address is not repeated.
pub(super) fn of_transport(error: &HttpError) -> (RemoteCause, String) {
    let words = innermost(error).to_string();
    let cause = match is_untrusted(&words) {
        true => RemoteCause::Untrusted,
        false => RemoteCause::Unreachable,
    };
    (cause, if words.contains("://") { format!("{:?}", error.kind()) } else { words })
}

/// Whether nobody vouches for the certificate, whenever it is asked again.
fn is_untrusted(words: &str) -> bool {
    words.contains(BAD_CERTIFICATE) && STRANGE.iter().any(|word| words.contains(word))
}

impl Failure {
    /// Reads a failed request.
    pub(super) fn of(error: &object_store::Error) -> Self {
        let words = words(error);
        let answer = Answer::of(&words);
        // The refusal did not come from the store.
        if is_of_credentials(&words) && answer.status.is_some_and(|status| (400..=404).contains(&status)) {
            return Self::Remote(RemoteCause::Credentials);
        }
        // How a request that was signed in its address is refused if it seems old.
        if answer.message.as_deref().is_some_and(|message| message.contains("Request has expired")) {
            return Self::Remote(RemoteCause::Clock);
        }
        let by_code = answer.code.as_deref().and_then(Self::of_code);
        if let Some(failure) = by_code {
            return failure;
        }
        match (answer.status, error) {
            (Some(409), _) => Self::Conflict,
            (Some(304 | 412), _)
            | (_, object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Self::Taken
            }
            (Some(404), _) | (_, object_store::Error::NotFound { .. }) => Self::NotFound,
            (Some(416), _) => Self::Range,
            (Some(400), _) if answer.code.is_none() => Self::Unsaid,
            (Some(401), _) | (_, object_store::Error::Unauthenticated { .. }) => {
                Self::Remote(RemoteCause::Credentials)
            }
            (Some(403), _) => Self::Remote(RemoteCause::Denied),
            (Some(408 | 429 | 500 | 502..=599), _) => Self::Remote(RemoteCause::Busy),
            (Some(501), _) => Self::Remote(RemoteCause::Unfit),
            _ if is_untrusted(&words) => Self::Remote(RemoteCause::Untrusted),
            _ => match transport(error) {
                // If an answer is cut off or makes no sense, the request may have been carried out too.
                Some(_) => Self::Remote(RemoteCause::Unreachable),
                None => Self::Remote(RemoteCause::Other),
            },
        }
    }

    fn of_code(code: &str) -> Option<Self> {
        Some(match code {
            "NoSuchKey"
            | "NoSuchUpload"
            | "NoSuchVersion"
            | "NoSuchObjectLockConfiguration"
            | "ObjectLockConfigurationNotFoundError" => Self::NotFound,
            "PreconditionFailed" => Self::Taken,
            "ConditionalRequestConflict" | "OperationAborted" => Self::Conflict,
            "InvalidRange" => Self::Range,
            "InvalidObjectState" => Self::Archived,
            "NoSuchBucket" => Self::Remote(RemoteCause::NoPlace),
            "ExpiredToken"
            | "TokenExpired"
            | "SecurityTokenExpired"
            | "TokenRefreshRequired"
            | "ExpiredTokenException" => {
                Self::Remote(RemoteCause::Expired)
            }
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "InvalidToken"
            | "AuthorizationHeaderMalformed"
            | "AuthorizationQueryParametersError"
            | "InvalidSecurity" => Self::Remote(RemoteCause::Credentials),
            "AccessDenied" | "AllAccessDisabled" | "AccountProblem" => Self::Remote(RemoteCause::Denied),
            "RequestTimeTooSkewed" => Self::Remote(RemoteCause::Clock),
            "SlowDown"
            | "InternalError"
            | "ServiceUnavailable"
            | "RequestTimeout"
            // The body was damaged or cut off on its way.
            | "IncompleteBody"
            | "BadDigest"
            | "XAmzContentSHA256Mismatch"
            | "Md5Mismatch"
            | "Throttling"
            | "ThrottlingException"
            | "TooManyRequests" => Self::Remote(RemoteCause::Busy),
            "NotImplemented" | "MethodNotAllowed" => Self::Remote(RemoteCause::Unfit),
            _ => return Self::of_azure_code(code),
        })
    }

    /// Codes that only Azure has.
    fn of_azure_code(code: &str) -> Option<Self> {
        Some(match code {
            // A list of blocks that are gone.
            "BlobNotFound" | "ResourceNotFound" | "InvalidBlockList" => Self::NotFound,
            "BlobAlreadyExists" | "ConditionNotMet" => Self::Taken,
            "ContainerNotFound" | "ContainerBeingDeleted" | "ContainerDisabled" | "InvalidResourceName" => {
                Self::Remote(RemoteCause::NoPlace)
            }
            // An expired signature gives one of these, too.
            "AuthenticationFailed" | "InvalidAuthenticationInfo" | "NoAuthenticationInformation" => {
                Self::Remote(RemoteCause::Credentials)
            }
            "AuthorizationFailure"
            | "AuthorizationPermissionMismatch"
            | "AuthorizationProtocolMismatch"
            | "AuthorizationResourceTypeMismatch"
            | "AuthorizationServiceMismatch"
            | "AuthorizationSourceIPMismatch"
            | "InsufficientAccountPermissions"
            | "AccountIsDisabled"
            | "KeyBasedAuthenticationNotPermitted"
            | "PublicAccessNotPermitted"
            // A lease or a policy protects the blob.
            | "BlobImmutableDueToPolicy"
            | "LeaseIdMissing" => Self::Remote(RemoteCause::Denied),
            "ServerBusy" | "OperationTimedOut" => Self::Remote(RemoteCause::Busy),
            "BlobArchived" | "BlobBeingRehydrated" => Self::Archived,
            "SnapshotsPresent" | "InvalidBlobType" => Self::Remote(RemoteCause::Other),
            _ => return None,
        })
    }

    /// The error as [`StoreError`], for `path` at `place`.
    pub(super) fn error(
        self,
        error: &object_store::Error,
        place: &str,
        path: impl std::fmt::Display,
    ) -> StoreError {
        let kind = match self {
            Self::NotFound => StoreErrorKind::NotFound,
            Self::Taken => StoreErrorKind::Exists,
            Self::Conflict => remote(place, RemoteCause::Busy, detail(error)),
            Self::Archived => StoreErrorKind::Unreadable { why: detail(error), is_archived: true },
            Self::Range | Self::Unsaid => remote(place, RemoteCause::Other, detail(error)),
            Self::Remote(cause) => remote(place, cause, detail(error)),
        };
        StoreError::new(path, kind)
    }
}

/// The server's message, or else the library's.
fn detail(error: &object_store::Error) -> String {
    let words = words(error);
    let answer = Answer::of(&words);
    let said = match (answer.status, answer.code, answer.message) {
        (_, Some(code), Some(message)) => format!("{message} ({code})"),
        (_, Some(code), None) => code,
        (Some(status), None, _) if is_of_credentials(&words) => {
            format!("the credential service answered with status {status}")
        }
        (Some(status), None, _) => format!("it answered with status {status}"),
        (None, None, _) if transport(error).is_some() => unanswered(error, &words),
        (None, None, _) => words,
    };
    said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(DETAIL_CHARS_MAX).collect()
}

/// Where a request without an answer went, and its last cause: the messages between count the library's
/// tries.
fn unanswered(error: &object_store::Error, words: &str) -> String {
    let last = innermost(error);
    let request = words.rsplit_once("Error performing ").and_then(|(_, rest)| rest.split_once(" in "));
    let url = request.and_then(|(request, _)| request.split_once(' ')).map(|(_, url)| url.split('?').next());
    let asked = if is_of_credentials(words) { "requesting credentials from " } else { "" };
    match url.flatten() {
        Some(url) => format!("{asked}{url}: {last}"),
        None => last.to_string(),
    }
}

/// A failure that was not reported by a request.
pub(super) fn remote(place: &str, cause: RemoteCause, detail: impl Into<String>) -> StoreErrorKind {
    StoreErrorKind::Remote(RemoteError { place: place.to_owned(), cause, detail: detail.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(words: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: words.to_owned().into() }
    }

    #[test]
    fn answers_are_told_apart_by_code_and_then_by_status() {
        let expired = "Error performing PUT http://h/b/k in 1ms - Server returned non-2xx status code: 400 Bad Request: \
                       <?xml?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>";
        for (words, expected) in [
            (expired, Failure::Remote(RemoteCause::Expired)),
            ("status code: 412 Precondition Failed: ", Failure::Taken),
            ("status code: 409 Conflict: <Code>ConditionalRequestConflict</Code>", Failure::Conflict),
            ("status code: 503 x", Failure::Remote(RemoteCause::Busy)),
            (
                "Server returned error response: <Error><Code>InternalError</Code>",
                Failure::Remote(RemoteCause::Busy),
            ),
            ("status code: 404 Not Found: <Code>NoSuchBucket</Code>", Failure::Remote(RemoteCause::NoPlace)),
            ("status code: 404 Not Found: ", Failure::NotFound),
            ("status code: 403 Forbidden: ", Failure::Remote(RemoteCause::Denied)),
            ("status code: \u{20ac}", Failure::Remote(RemoteCause::Other)),
            ("status code: 400 Bad Request: ", Failure::Unsaid),
            ("status code: 400 x: <Code>EntityTooLarge</Code>", Failure::Remote(RemoteCause::Other)),
            ("status code: 400 x: <Code>RequestTimeout</Code>", Failure::Remote(RemoteCause::Busy)),
            (
                "DeleteObjects request failed for key packs/1: Access Denied (code: AccessDenied)",
                Failure::Remote(RemoteCause::Denied),
            ),
            (
                "Error performing token request: Error performing GET http://h/ in 1s - status code: 403 x",
                Failure::Remote(RemoteCause::Credentials),
            ),
            ("status code: 409: <Code>BlobAlreadyExists</Code>", Failure::Taken),
            ("status code: 409: <Code>BlobImmutableDueToPolicy</Code>", Failure::Remote(RemoteCause::Denied)),
            (
                "Bulk delete request failed for key a: Forbidden (code: 403)",
                Failure::Remote(RemoteCause::Denied),
            ),
        ] {
            assert_eq!(Failure::of(&answered(words)), expected, "{words}");
        }
        let error = Failure::of(&answered(expired)).error(&answered(expired), "s3://b/p", "sources/x");
        let text = error.to_string();
        assert_eq!(
            text,
            "sources/x: the credentials have expired at s3://b/p: The provided token has expired. (ExpiredToken)"
        );
    }
}
