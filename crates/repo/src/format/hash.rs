//! The hash by which one object names another.

use crate::format::hex::Hex;

/// BLAKE3 of an object's bytes.
pub type ObjectHash = Hex<32>;

/// Takes the place of the previous object's hash in the first object of a chain.
pub(crate) const NO_OBJECT: ObjectHash = Hex([0; 32]);

pub(crate) fn object_hash(bytes: &[u8]) -> ObjectHash {
    Hex(*blake3::hash(bytes).as_bytes())
}
