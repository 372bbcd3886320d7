//! An operator's key pair outside the repository: a file that opens a slot instead of a password.
//!
//! Whoever knows the public key can seal a key object for it, with keys of their own in it.
//! So the file also names whom its owner trusts: for each repository, the operator who added the slot.
//! Nobody else's key objects are opened.

use std::{fmt, str::FromStr};

use thiserror::Error;
use zeroize::Zeroizing;

use super::{RepositoryId, wrap};
use crate::format::hex::{Hex, Secret32, from_hex, to_hex};

const PREFIX: &str = "holdfast-public-";
const CHECK_BYTES: usize = 4;

/// The public half of an [`Identity`]. Its text has a checksum, so that a typing error does not
/// make a slot that nobody can open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicKey(pub(crate) Hex<32>);

impl PublicKey {
    fn check(&self) -> String {
        to_hex(&blake3::hash(&self.0.0).as_bytes()[..CHECK_BYTES])
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}-{}", self.0, self.check())
    }
}

impl FromStr for PublicKey {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let parsed = || {
            let (key, check) = text.strip_prefix(PREFIX)?.split_once('-')?;
            let key = Self(Hex(from_hex(key)?.try_into().ok()?));
            (key.check() == check).then_some(key)
        };
        parsed().ok_or(IdentityError::NoPublicKey)
    }
}

/// Whose key objects an identity opens, for one repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trusted {
    /// The repository.
    pub repository: RepositoryId,
    /// The public signing key of the operator who added the slot.
    pub operator: Hex<32>,
}

impl fmt::Display for Trusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trust {} {}", self.repository, self.operator)
    }
}

/// Why something cannot be used as an identity, or as a public key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IdentityError {
    /// Mistyped, or no public key at all.
    #[error("this is not a public key as \"holdfast key generate\" prints it, or it is mistyped")]
    NoPublicKey,
    /// A line that does not belong in an identity file.
    #[error("line {line} does not belong in an identity file")]
    Line {
        /// Number of the line, from 1.
        line: usize,
    },
    /// The file has no secret: it was cut off, or is another file.
    #[error("it contains no secret")]
    NoSecret,
    /// The secret is not a valid key.
    #[error("its secret is not a valid key")]
    BadSecret,
}

/// A key pair, and whom its owner trusts.
pub struct Identity {
    private: Secret32,
    public: PublicKey,
    trusted: Vec<Trusted>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

impl Identity {
    /// A new identity that trusts nobody yet.
    #[must_use]
    pub fn generate() -> Self {
        let (public, private) = wrap::key_pair();
        Self { private, public: PublicKey(public), trusted: Vec::new() }
    }

    /// Reads the text of an identity file.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let mut private = None;
        let mut trusted = Vec::new();
        for (line, at) in text.lines().map(str::trim).zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = IdentityError::Line { line: at };
            let mut words = line.split_ascii_whitespace();
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("secret"), Some(secret), None, None) if private.is_none() => {
                    let bytes = Zeroizing::new(from_hex(secret).ok_or(wrong)?);
                    private = Some(Secret32(bytes.as_slice().try_into().map_err(|_| wrong)?));
                }
                (Some("trust"), Some(repository), Some(operator), None) => {
                    let repository = from_hex(repository).and_then(|bytes| bytes.try_into().ok());
                    let operator = from_hex(operator).and_then(|bytes| bytes.try_into().ok());
                    let (repository, operator) = repository.zip(operator).ok_or(wrong)?;
                    trusted
                        .push(Trusted { repository: RepositoryId(Hex(repository)), operator: Hex(operator) });
                }
                _ => return Err(wrong),
            }
        }
        let private = private.ok_or(IdentityError::NoSecret)?;
        let public = wrap::public_of(&private).ok_or(IdentityError::BadSecret)?;
        Ok(Self { private, public: PublicKey(public), trusted })
    }

    /// The text of its file, which is secret.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        // Large enough that growing does not leave copies of the secret behind.
        let mut text = Zeroizing::new(String::with_capacity(1024 + self.trusted.len() * 128));
        text.push_str("# An identity of holdfast: whoever has this file opens what was sealed for it.\n");
        text.push_str(&format!("# Public key: {}\n", self.public));
        let secret = Zeroizing::new(to_hex(&self.private.0));
        text.push_str("secret ");
        text.push_str(&secret);
        text.push('\n');
        for trusted in &self.trusted {
            text.push_str(&format!("{trusted}\n"));
        }
        text
    }

    /// What others need to seal something for it.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Trusts one more operator of one repository.
    #[must_use]
    pub fn trusting(mut self, trusted: Trusted) -> Self {
        self.trusted.push(trusted);
        self
    }

    pub(super) fn private(&self) -> &Secret32 {
        &self.private
    }

    pub(super) fn trusts(&self, trusted: Trusted) -> bool {
        self.trusted.contains(&trusted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_identity_is_what_its_file_says() {
        let trusted = Trusted { repository: RepositoryId(Hex([3; 16])), operator: Hex([4; 32]) };
        let made = Identity::generate().trusting(trusted);
        let read = Identity::parse(&made.to_text()).unwrap();
        assert_eq!((read.public(), read.private.0), (made.public(), made.private.0));
        assert!(read.trusts(trusted));
        assert!(!read.trusts(Trusted { operator: Hex([5; 32]), ..trusted }));
        assert!(!format!("{made:?}").contains(&to_hex(&made.private.0)));
        assert_eq!(Identity::parse("# nothing\n").err(), Some(IdentityError::NoSecret));
        assert_eq!(Identity::parse("\nsecret 12").err(), Some(IdentityError::Line { line: 2 }));
    }

    #[test]
    fn a_mistyped_public_key_is_none() {
        let text = Identity::generate().public().to_string();
        assert_eq!(text.parse::<PublicKey>().unwrap().to_string(), text);
        for at in PREFIX.len()..text.len() {
            let mut typo = text.clone().into_bytes();
            typo[at] = if typo[at] == b'7' { b'8' } else { b'7' };
            assert!(String::from_utf8(typo).unwrap().parse::<PublicKey>().is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text in "(secret|trust|#|\n| |[0-9a-f]{0,70}|é){0,12}") {
            let _ = Identity::parse(&text);
            let _ = text.parse::<PublicKey>();
        }
    }
}
