//! Keys whose signatures are believed.

use serde::{Deserialize, Serialize};

use super::{KeyId, Role};
use crate::format::hex::Hex;

/// A key whose signatures are believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// Ed25519 public key.
    pub public: Hex<32>,
    /// What it may sign.
    pub role: Role,
    /// The key that it belongs to.
    pub key_id: KeyId,
    /// Sources whose outcomes it may sign; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// X25519 public key for its share in rotations; absent in keys made by early versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Hex<32>>,
}
