//! Failures of a store that is reached over a network, and what to do about them.

use std::fmt;

/// A failure of such a store, or its refusal.
#[derive(Debug)]
pub struct RemoteError {
    /// The store, for people. Contains no secrets.
    pub place: String,
    /// The class, which decides the hint.
    pub cause: RemoteCause,
    /// What the store, or something on the way to it, said. Contains no secrets.
    pub detail: String,
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.cause.words(), self.place, self.detail)
    }
}

impl std::error::Error for RemoteError {}

/// The classes of such failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteCause {
    /// No connection, or it broke and could not be restored.
    Unreachable,
    /// The store shows a certificate that nobody trusted here vouches for.
    Untrusted,
    /// The store answered, again and again, that it cannot do this right now.
    Busy,
    /// The credentials are missing, wrong or unknown to the store.
    Credentials,
    /// The credentials were valid once.
    Expired,
    /// The credentials do not allow the operation.
    Denied,
    /// The bucket or directory does not exist.
    NoPlace,
    /// The clocks of the store and of this host are too far apart.
    Clock,
    /// The store answered that it has stored an object, and has none, or another.
    Unconfirmed,
    /// The store lacks something that a repository needs.
    Unfit,
    /// Anything else.
    Other,
}

impl RemoteCause {
    fn words(self) -> &'static str {
        match self {
            Self::Unreachable => "the store cannot be reached",
            Self::Untrusted => "the store's certificate is not trusted",
            Self::Busy => "the store is too busy",
            Self::Credentials => "the credentials were refused",
            Self::Expired => "the credentials have expired",
            Self::Denied => "permission was denied",
            Self::NoPlace => "there is no such bucket or directory",
            Self::Clock => "the clocks differ too much",
            Self::Unconfirmed => "the store has not kept what it confirmed",
            Self::Unfit => "the store cannot hold a repository",
            Self::Other => "the store failed",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::Unreachable => Some(
                "are the address, the port and the network right? when it is run again, what is already \
                 stored is reused",
            ),
            Self::Untrusted => Some(
                "give the certificate of its authority with --ca-file, and use a host name that the store's \
                 certificate covers",
            ),
            Self::Busy => Some(
                "run it again later, or with fewer connections (docs/guide/stores.md): what is already \
                 stored is reused",
            ),
            Self::Credentials => {
                Some("docs/guide/stores.md says where credentials are looked for, and in which order")
            }
            Self::Expired => Some("renew the credentials and run it again: what is already stored is reused"),
            Self::Denied => Some("docs/guide/stores.md lists the minimum permissions for each verb"),
            Self::NoPlace => Some("create the bucket or directory first, or check --repo for a typing error"),
            Self::Clock => Some("set the clock of this host"),
            Self::Unconfirmed => Some(
                "\"holdfast check --read-data\" says what is affected; the store is not fit for a repository",
            ),
            Self::Unfit => Some("docs/guide/stores.md says what a store must be able to do"),
            Self::Other => None,
        }
    }

    /// Whether the failure may concern one object only, with others unaffected.
    #[must_use]
    pub fn is_of_one_object(self) -> bool {
        matches!(self, Self::Denied | Self::Unfit | Self::Other)
    }

    /// Whether the store does not allow the operation with these credentials, or knows nothing of the kind.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Denied | Self::Unfit)
    }

    /// Whether trying again may help.
    #[must_use]
    pub fn passes(self) -> bool {
        matches!(self, Self::Unreachable | Self::Busy)
    }
}
