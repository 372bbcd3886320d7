//! The signature of a pack: it shows those who cannot open a pack whether it is as its run wrote it
//! (`docs/reference/repository.md` section 6).
//!
//! It lies before the directory, where nobody else looks. Packs of early versions have none.

use crate::{
    error::{Damage, RepoError},
    format::{hex::Hex, place::Place},
    keys::Act,
    log::signed::signed_message,
    repo::Repo,
};

/// Magic, signer and signature.
pub(crate) const PACK_SIGNATURE_BYTES: usize = 8 + 32 + 64;

const MAGIC: &[u8; 8] = b"HFPSIGN1";
const CONTEXT: &[u8] = b"holdfast pack 1\0";

/// What a pack's signature says of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// They are as somebody who is believed has written them here.
    Genuine,
    /// Nothing: there is no signature, or it is of a key that has been removed.
    None,
}

/// The signature of the key at hand over all other bytes of a pack, which `others` has hashed.
pub(crate) fn sign(repo: &Repo, place: &Place<'_>, others: &blake3::Hasher) -> [u8; PACK_SIGNATURE_BYTES] {
    let (signer, signature) = repo.keys().sign(&signed_message(repo, place, CONTEXT, others.finalize()));
    let mut block = [0; PACK_SIGNATURE_BYTES];
    block[..8].copy_from_slice(MAGIC);
    block[8..40].copy_from_slice(&signer.0);
    block[40..].copy_from_slice(&signature);
    block
}

/// Whether bytes where a signature would be are one.
pub(crate) fn is_signature(block: &[u8; PACK_SIGNATURE_BYTES]) -> bool {
    block.starts_with(MAGIC)
}

/// What the signature in `block` says of a pack, all other bytes of which `others` has hashed.
///
/// # Errors
/// [`RepoError::Damaged`] if they are not what was signed, or if nobody who may has signed them.
pub(crate) fn judge(
    repo: &Repo,
    place: &Place<'_>,
    others: &blake3::Hasher,
    block: &[u8; PACK_SIGNATURE_BYTES],
) -> Result<Judgement, RepoError> {
    let mut signer = Hex([0; 32]);
    signer.0.copy_from_slice(&block[8..40]);
    let message = signed_message(repo, place, CONTEXT, others.finalize());
    if !Repo::is_signature(signer, &message, &block[40..]) {
        return Err(RepoError::damaged(place, Damage::NotAsWritten));
    }
    match repo.author(place.log, place.run, signer, &message, &block[40..], None)? {
        Ok(author) if author.role.may(Act::Backup) => Ok(Judgement::Genuine),
        Ok(author) => Err(RepoError::damaged(place, Damage::Role { act: "pack", role: author.role })),
        Err(Damage::SignerRemoved { .. }) => Ok(Judgement::None),
        Err(damage) => Err(RepoError::damaged(place, damage)),
    }
}
