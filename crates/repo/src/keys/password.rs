//! A password, and the key that Argon2id derives from it (`docs/reference/repository.md` section 4).

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

/// A password: never shown, wiped when dropped.
#[derive(Clone)]
pub struct Password(Zeroizing<String>);

impl Password {
    /// Takes a password as it is; `None` if it is empty.
    #[must_use]
    pub fn new(text: String) -> Option<Self> {
        let text = Zeroizing::new(text);
        (!text.is_empty()).then_some(Self(text))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(secret)")
    }
}

/// How much work a guess of the password costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KdfParams {
    /// Memory in KiB.
    pub m_kib: u32,
    /// Passes over it.
    pub t: u32,
    /// Lanes.
    pub p: u32,
}

/// Parameters outside the bounds.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KdfError {
    /// Guessing the password would be too cheap.
    #[error("its password protection is weaker than this version accepts ({m_kib} KiB, {t} passes)")]
    Weak {
        /// Memory in KiB.
        m_kib: u32,
        /// Passes.
        t: u32,
    },
    /// Opening would be too expensive.
    #[error("its password protection takes more work than this version accepts")]
    Excessive,
}

impl KdfParams {
    /// What `init` uses.
    pub const DEFAULT: Self = Self { m_kib: 65_536, t: 3, p: 1 };
    /// The weakest that is accepted.
    pub const MINIMUM: Self = Self { m_kib: 19_456, t: 2, p: 1 };

    /// Checks the bounds.
    pub fn check(self) -> Result<(), KdfError> {
        let Self { m_kib, t, p } = self;
        if m_kib < Self::MINIMUM.m_kib || t < Self::MINIMUM.t || p < 1 {
            Err(KdfError::Weak { m_kib, t })
        } else if m_kib > 1 << 20 || t > 16 || p > 16 {
            Err(KdfError::Excessive)
        } else {
            Ok(())
        }
    }

    /// The 32 bytes that Argon2id derives from the password. `Excessive` also if the memory cannot be had.
    pub(super) fn derive(
        self,
        password: &Password,
        salt: &[u8; 16],
    ) -> Result<Zeroizing<[u8; 32]>, KdfError> {
        self.check()?;
        let params = Params::new(self.m_kib, self.t, self.p, Some(32)).map_err(|_| KdfError::Excessive)?;
        let mut key = Zeroizing::new([0; 32]);
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(password.0.as_bytes(), salt, &mut *key)
            .map_err(|_| KdfError::Excessive)?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheap_and_ruinous_parameters_are_refused() {
        let with = |m_kib, t, p| KdfParams { m_kib, t, p }.check();
        assert_eq!(KdfParams::MINIMUM.check(), Ok(()));
        assert_eq!(KdfParams::DEFAULT.check(), Ok(()));
        assert!(matches!(with(19_455, 2, 1), Err(KdfError::Weak { .. })));
        assert!(matches!(with(65_536, 1, 1), Err(KdfError::Weak { .. })));
        assert!(matches!(with(65_536, 3, 0), Err(KdfError::Weak { .. })));
        for excessive in [((1 << 20) + 1, 2, 1), (65_536, 17, 1), (65_536, 3, 17), (u32::MAX, u32::MAX, 1)] {
            assert_eq!(with(excessive.0, excessive.1, excessive.2), Err(KdfError::Excessive));
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let password = Password::new("hunter2".to_owned()).unwrap();
        assert!(!format!("{password:?}").contains("hunter2"));
        assert!(Password::new(String::new()).is_none());
    }
}
