//! Objects of two sealed parts under a signature: outcomes, segments of binlogs, and what checks have found.

use crate::{
    error::{Damage, RepoError},
    format::{
        hex::Hex,
        names::RunNo,
        place::{ObjectKind, Place},
        wire::{Decoder, FormatError},
    },
    keys::{Author, Role},
    repo::Repo,
};

/// Magic, two lengths, signer and signature.
pub(super) const FIXED_BYTES: usize = 4 + 2 * 4 + 32 + 64;

/// Sealed parts with their lengths, followed by the signature of the key at hand over them and their place.
pub(super) fn signed_bytes(
    repo: &Repo,
    place: &Place<'_>,
    magic: &[u8; 4],
    context: &[u8],
    parts: &[&[u8]; 2],
) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    for part in parts {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    let (signer, signature) = repo.keys().sign(&signed_message(repo, place, context, blake3::hash(&bytes)));
    bytes.extend_from_slice(&signer.0);
    bytes.extend_from_slice(&signature);
    bytes
}

/// Splits what [`signed_bytes`] made. Returns the two sealed parts, if the signature is
/// believed, and the signer's role.
pub(super) fn split_signed<'a>(
    repo: &Repo,
    place: &Place<'_>,
    magic: &[u8; 4],
    context: &[u8],
    bytes: &'a [u8],
) -> Result<([&'a [u8]; 2], Role), RepoError> {
    let (parts, author) = verify(repo, place, magic, context, bytes)?;
    Ok(([parts.public, parts.head], author.role))
}

/// What a signature signs: the place of the object, and the hash of its other bytes.
pub(crate) fn signed_message(repo: &Repo, place: &Place<'_>, context: &[u8], hash: blake3::Hash) -> Vec<u8> {
    let log = place.log;
    let source = log.source.as_str();
    let mut message = context.to_vec();
    message.extend_from_slice(&repo.info().repository_id.0.0);
    // At most 64, by the rules for names.
    message.push(u8::try_from(source.len()).unwrap_or(u8::MAX));
    message.extend_from_slice(source.as_bytes());
    message.push(log.kind as u8);
    message.extend_from_slice(&place.run.0.to_le_bytes());
    if matches!(place.kind, ObjectKind::SegmentPublic | ObjectKind::Pack) {
        message.extend_from_slice(&place.part.to_le_bytes());
    }
    message.extend_from_slice(hash.as_bytes());
    message
}

/// Such an object.
pub(super) struct Parts<'a> {
    pub(super) public: &'a [u8],
    pub(super) head: &'a [u8],
    pub(super) before_signature: &'a [u8],
    pub(super) signer: Hex<32>,
    pub(super) signature: [u8; 64],
}

/// Takes the object apart, whoever may have signed it.
pub(super) fn split<'a>(magic: &[u8; 4], bytes: &'a [u8]) -> Result<Parts<'a>, FormatError> {
    let mut decoder = Decoder::new(bytes);
    if decoder.array::<4>("magic")? != *magic {
        return Err(FormatError::rule("magic", "is not that of such an object"));
    }
    let mut part = |field| {
        let len = decoder.u32(field)?;
        decoder.bytes(field, usize::try_from(len).unwrap_or(usize::MAX))
    };
    let public = part("public part")?;
    let head = part("manifest head")?;
    let before_signature = bytes.get(..bytes.len() - decoder.left()).unwrap_or_default();
    let signer = Hex(decoder.array("signer")?);
    let signature = decoder.array("signature")?;
    decoder.end("outcome")?;
    Ok(Parts { public, head, before_signature, signer, signature })
}

/// Takes the object apart and verifies that somebody has signed it who is believed. Returns who.
pub(super) fn verify<'a>(
    repo: &Repo,
    place: &Place<'_>,
    magic: &[u8; 4],
    context: &[u8],
    bytes: &'a [u8],
) -> Result<(Parts<'a>, Author), RepoError> {
    let parts = split(magic, bytes).map_err(|error| RepoError::damaged(place, Damage::from(error)))?;
    let message = signed_message(repo, place, context, blake3::hash(parts.before_signature));
    // The record of a check bears no run number: its signer must be believed now.
    let run = if place.kind == ObjectKind::CheckRecord { RunNo(u64::MAX) } else { place.run };
    let outcome =
        (place.kind == ObjectKind::OutcomePublic || place.kind == ObjectKind::ManifestHead).then_some(bytes);
    let author = repo.author(place.log, run, parts.signer, &message, &parts.signature, outcome)?;
    let author = author.map_err(|damage| RepoError::damaged(place, damage))?;
    Ok((parts, author))
}
