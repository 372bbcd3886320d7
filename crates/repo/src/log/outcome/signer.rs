//! Who has signed an outcome.

use super::stored::{CONTEXT, MAGIC};
use crate::{
    error::{Damage, RepoError},
    format::{
        names::{LogName, RunNo},
        place::{ObjectKind, Place},
    },
    log::signed::{signed_message, split},
    repo::{Looked, Repo},
};

/// Sees to it that whoever has signed these bytes as the outcome of `run`, listed before `looked` was made, is known
/// if that can be.
pub(crate) fn meet_signer(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    bytes: &[u8],
    looked: &Looked,
) -> Result<(), RepoError> {
    let place = Place { log, kind: ObjectKind::OutcomePublic, run, part: 0 };
    let Ok(parts) = split(MAGIC, bytes) else { return Ok(()) };
    // Who has signed nothing may be vouched for later.
    let message = signed_message(repo, &place, CONTEXT, blake3::hash(parts.before_signature));
    match Repo::is_signature(parts.signer, &message, &parts.signature) {
        true => Ok(repo.meet(parts.signer, looked)?),
        false => Ok(()),
    }
}

/// Whose signature an outcome bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignedBy {
    /// A signer that is believed.
    Believed,
    /// A signer that is neither known to have been believed at any time, nor to be believed no longer.
    Stranger,
    /// Nobody's, or that of a key that was removed before.
    Nobody,
}

/// Who has signed these bytes as the outcome of `run`, whatever they contain.
pub(crate) fn signed_by(repo: &Repo, log: &LogName, run: RunNo, bytes: &[u8]) -> Result<SignedBy, RepoError> {
    let place = Place { log, kind: ObjectKind::OutcomePublic, run, part: 0 };
    let Ok(parts) = split(MAGIC, bytes) else { return Ok(SignedBy::Nobody) };
    let message = signed_message(repo, &place, CONTEXT, blake3::hash(parts.before_signature));
    if !Repo::is_signature(parts.signer, &message, &parts.signature) {
        return Ok(SignedBy::Nobody);
    }
    Ok(match repo.author(log, run, parts.signer, &message, &parts.signature, Some(bytes))? {
        Ok(_) => SignedBy::Believed,
        Err(Damage::SignerRemoved { .. }) => SignedBy::Nobody,
        Err(_) => SignedBy::Stranger,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use ring::signature::{Ed25519KeyPair, KeyPair as _};

    use super::*;
    use crate::{
        Kind, Password, Protection,
        keys::KdfParams,
        log::history::History,
        store::{
            Store as _,
            faulty::{FaultyStore, Op},
            mem::MemStore,
        },
    };

    /// An outcome of `run` with a good signature of a signer whom nobody vouches for.
    fn made_up(repo: &Repo, log: &LogName, run: RunNo) -> Vec<u8> {
        let place = Place { log, kind: ObjectKind::OutcomePublic, run, part: 0 };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[0; 8]);
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&run.0.to_le_bytes());
        let key = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let signature = key.sign(&signed_message(repo, &place, CONTEXT, blake3::hash(&bytes)));
        bytes.extend_from_slice(key.public_key().as_ref());
        bytes.extend_from_slice(signature.as_ref());
        bytes
    }

    /// However many outcomes of strangers somebody puts into the store, the keys are read again once.
    #[test]
    fn made_up_outcomes_cost_one_look_at_the_keys() {
        let store = MemStore::new();
        let password = Password::new("x".to_owned()).unwrap();
        let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
        let repo = Repo::init(Arc::new(store.clone()), &protection).unwrap();
        let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Physical };
        for run in (1..=200).map(RunNo) {
            store.create_if_absent(&log.outcome(run), &made_up(&repo, &log, run)).unwrap();
        }
        let lists = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lists);
        let counting = FaultyStore::new(Arc::new(store), move |call| {
            if call.op == Op::List {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        let repo = Repo::open(Arc::new(counting), Some(&password)).unwrap();
        lists.store(0, Ordering::Relaxed);
        let mut strangers = 0;
        let is_stranger =
            |error: &RepoError| matches!(error, RepoError::Damaged { damage: Damage::Signature, .. });
        History::salvage(&repo, &log, &mut |_, error| strangers += u64::from(is_stranger(&error))).unwrap();
        let listings = lists.load(Ordering::Relaxed);
        assert_eq!(strangers, 200);
        assert!(listings < 10, "{listings} listings");
    }
}
