//! Adding a key. It is vouched for before its object exists, so that nobody can sign what no one would believe.

use super::{
    key_paths,
    list::{KeyInfo, described},
    operator::as_operator,
};
use crate::{
    format::names::SourceName,
    keys::{
        Act, FORMAT, KEYS_LIMIT, KeyError, KeyMaterial, NewSlot, Role, Signer, Trusted, damaged, key_path,
        material::{OwnKeys, Payload},
        rfc3339, rotation,
        signed::{self, Sort},
        slot::{self, Described, to_json},
        trust::{Trust, Voucher, signer_path},
    },
    repo::Repo,
};

/// Bytes of a label, at most.
pub const LABEL_BYTES_MAX: usize = 128;

/// A key to be added.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// What its holder may do.
    pub role: Role,
    /// Sources whose outcomes a writer or keeper may sign; empty: all.
    pub sources: Vec<SourceName>,
    /// For people; readable without a key.
    pub label: String,
}

/// What an identity must trust to open a slot that the key at hand adds for it.
#[must_use]
pub fn trusted(repo: &Repo) -> Trusted {
    Trusted { repository: repo.info().repository_id, operator: repo.keys().signing_public() }
}

/// Adds a key.
///
/// # Errors
/// Among others [`KeyError::NotOperator`].
pub fn add(repo: &Repo, new: &NewKey, slot: NewSlot<'_>) -> Result<KeyInfo, KeyError> {
    add_signed(repo, new, slot, SlotSigner::Adder).map(|(key, _)| key)
}

/// Who signs the object of a new key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotSigner {
    /// The key that adds it.
    Adder,
    /// The new key, since the key that adds it is about to go.
    Itself,
}

pub(super) fn add_signed(
    repo: &Repo,
    new: &NewKey,
    slot: NewSlot<'_>,
    signer_of_slot: SlotSigner,
) -> Result<(KeyInfo, Trusted), KeyError> {
    let (keys, trust) = as_operator(repo, "add a key")?;
    if new.label.len() > LABEL_BYTES_MAX || new.label.contains(char::is_control) {
        return Err(KeyError::BadLabel { most: LABEL_BYTES_MAX });
    }
    if new.role == Role::Operator && !new.sources.is_empty() {
        return Err(KeyError::OperatorOfSources);
    }
    let count = key_paths(repo)?.len();
    if count >= KEYS_LIMIT {
        return Err(KeyError::TooMany { count });
    }
    let own = OwnKeys::generate()?;
    let sources = new.sources.iter().map(ToString::to_string).collect();
    let signer = own.signer(new.role, sources);
    let created_at = rfc3339(repo.store().now()?);
    let voucher = Voucher { format: FORMAT, signer, label: new.label.clone(), created_at };
    let sealed = |trust: &Trust| {
        let Voucher { signer, label, created_at, .. } = voucher.clone();
        let key_id = signer.key_id;
        let material = KeyMaterial::from_payload(payload(keys, trust, &own, signer), key_id, new.role)
            .map_err(|what| damaged("new keys", what))?;
        let slot_signer = if signer_of_slot == SlotSigner::Itself { &material } else { keys };
        let object = slot::seal(&material, Some(slot), Described { label, created_at }, slot_signer)?;
        Ok::<_, KeyError>((object, slot_signer.signing_public()))
    };
    let (mut object, mut operator) = sealed(&trust)?;
    let record = signed::sign(keys, Sort::Signer, &voucher);
    repo.store().create_if_absent(&signer_path(own.key_id), &record)?;
    // A rotation made by now need not have a share for the key: what is sealed must hold its key pairs.
    loop {
        let (_, trust) = as_operator(repo, "add a key")?;
        if object.rotations == Some(keys.rotations()) {
            break;
        }
        (object, operator) = sealed(&trust)?;
    }
    let trusted = Trusted { repository: repo.info().repository_id, operator };
    repo.store().create_if_absent(&key_path(object.key_id), &to_json(&object))?;
    let trust = repo.look_again()?;
    if trust.is_dropped(object.key_id) {
        repo.store().delete(&[key_path(object.key_id)])?;
        return Err(KeyError::Removed { key_id: keys.key_id() });
    }
    let key = described(repo, &trust, &object).map_err(|what| damaged(key_path(object.key_id), what))?;
    let without_share = rotation::without_share(&**repo.store(), &trust, keys)?;
    if let Some((key_id, rotation)) = without_share.into_iter().find(|(key_id, _)| *key_id == key.key_id) {
        return Err(KeyError::NoShare { key_id, rotation });
    }
    Ok((key, trusted))
}

/// The part of the keys at hand that another role gets, with key pairs of its own.
fn payload(keys: &KeyMaterial, trust: &Trust, own: &OwnKeys, signer: Signer) -> Payload {
    let role = signer.role;
    let of_role = |rotation: u8| keys.seal_keys(rotation).map(|keys| keys.of_role(role));
    let others = trust.all().filter(|known| known.signer.key_id != signer.key_id);
    let mut signers: Vec<Signer> = others.map(|known| known.signer.clone()).collect();
    signers.sort_by_key(|signer| signer.key_id);
    signers.push(signer);
    let first = of_role(0);
    Payload {
        repository: keys.repository().clone(),
        read_public: keys.payload.read_public,
        read_private: first.as_ref().and_then(|keys| keys.read_private.clone()),
        refs_public: keys.payload.refs_public,
        refs_private: first.and_then(|keys| keys.refs_private),
        rotated: (1..=keys.rotations()).filter_map(of_role).collect(),
        hash_key: keys.payload.hash_key.clone().filter(|_| role.may(Act::Backup)),
        signing_key: own.signing_key.clone(),
        exchange_key: Some(own.exchange_key.clone()),
        signers,
    }
}
