//! Small signed records: JSON text, its signer, and the signature (`docs/reference/repository.md` section 4).
//!
//! The text is signed as it is written, so that no two readers can understand one record differently.

use ring::signature::{ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{RepositoryId, SIGNATURE_BYTES, material::KeyMaterial};
use crate::format::hex::Hex;

/// What a record is about. No record of one sort is taken for one of another.
#[derive(Clone, Copy)]
pub(crate) enum Sort {
    Signer,
    Removal,
    Rotation,
}

#[derive(Serialize, Deserialize)]
struct Record {
    body: String,
    by: Hex<32>,
    signature: Hex<SIGNATURE_BYTES>,
}

fn message(sort: Sort, repository: RepositoryId, body: &str) -> Vec<u8> {
    let mut message = match sort {
        Sort::Signer => &b"holdfast signer 1\0"[..],
        Sort::Removal => b"holdfast removal 1\0",
        Sort::Rotation => b"holdfast rotation record 1\0",
    }
    .to_vec();
    message.extend_from_slice(&repository.0.0);
    message.extend_from_slice(blake3::hash(body.as_bytes()).as_bytes());
    message
}

/// The bytes of a record, signed by the key at hand.
pub(crate) fn sign(keys: &KeyMaterial, sort: Sort, body: &impl Serialize) -> Vec<u8> {
    match serde_json::to_string(body) {
        Ok(body) => sign_text(keys, sort, body),
        Err(_) => unreachable!("plain structs into memory"),
    }
}

/// As [`sign`], for a text that may say anything.
pub(crate) fn sign_text(keys: &KeyMaterial, sort: Sort, body: String) -> Vec<u8> {
    let (by, signature) = keys.sign(&message(sort, keys.repository().repository_id, &body));
    match serde_json::to_vec(&Record { body, by, signature: Hex(signature) }) {
        Ok(bytes) => bytes,
        Err(_) => unreachable!("plain structs into memory"),
    }
}

/// What a record says, and who signed it. Whether the signer is believed is for the caller to decide.
pub(crate) fn read<T: DeserializeOwned>(
    repository: RepositoryId,
    sort: Sort,
    bytes: &[u8],
) -> Result<(T, Hex<32>), &'static str> {
    let Record { body, by, signature } =
        serde_json::from_slice(bytes).map_err(|_| "it is not a record of this format")?;
    UnparsedPublicKey::new(&ED25519, by.0)
        .verify(&message(sort, repository, &body), &signature.0)
        .map_err(|_| "its signature is wrong")?;
    let body =
        serde_json::from_str(&body).map_err(|_| "it contains something that this version does not know")?;
    Ok((body, by))
}

/// The text of a record, whoever signed it.
#[cfg(any(fuzzing, test))]
pub(crate) fn text_of(bytes: &[u8]) -> Option<String> {
    serde_json::from_slice::<Record>(bytes).ok().map(|record| record.body)
}
