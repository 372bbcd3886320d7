//! Which keys there are, and what is wrong with them.

use super::key_paths;
use crate::{
    keys::{
        KdfParams, KeyError, KeyId, PublicKey, Role, key_path, rotation,
        slot::{self, KeyObject, Slot},
        trust::{Trust, Vouched},
    },
    repo::Repo,
    store::StoreError,
};

/// What protects a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotInfo {
    /// A password, with the cost of a guess.
    Password(KdfParams),
    /// A key pair.
    Public(PublicKey),
    /// Nothing: the repository is not encrypted.
    Nothing,
}

/// A key of the repository.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    /// Its id.
    pub key_id: KeyId,
    /// What its holder may do.
    pub role: Role,
    /// What protects it.
    pub slot: SlotInfo,
    /// For people.
    pub label: String,
    /// RFC 3339, UTC, by the store's clock.
    pub created_at: String,
    /// Sources whose outcomes it may sign; empty: all.
    pub sources: Vec<String>,
    /// Whether the repository was opened with it.
    pub is_own: bool,
}

/// The keys of a repository.
#[derive(Clone, Debug, Default)]
pub struct KeyList {
    /// In order of age.
    pub keys: Vec<KeyInfo>,
    /// Objects that count for nothing, and what is wrong with them.
    pub problems: Vec<(String, String)>,
    /// Key objects that open nothing sealed since a rotation, and why.
    pub without_share: Vec<(String, String)>,
}

/// Lists the keys of the repository, for everybody who can open it.
pub fn list(repo: &Repo) -> Result<KeyList, KeyError> {
    let trust = repo.look_again()?;
    let mut list = KeyList::default();
    for (object, damage) in repo.key_problems() {
        list.problems.push((object, damage.to_string()));
    }
    let paths = key_paths(repo)?;
    // A key is believed, but has no object that could be opened.
    for known in trust.standing() {
        let path = key_path(known.signer.key_id);
        if !paths.contains(&path) {
            list.problems.push((path.to_string(), "is missing: its holder can open nothing".to_owned()));
        }
    }
    for path in paths {
        match slot::read_sound(&**repo.store(), &path, repo.info()) {
            Ok(object) => match described(repo, &trust, &object) {
                Ok(key) => list.keys.push(key),
                Err(what) => list.problems.push((path.to_string(), what.to_owned())),
            },
            // Removed by another since the listing.
            Err(KeyError::Store(error)) if error.is_not_found() => {}
            Err(KeyError::Damaged { object, what }) => list.problems.push((object, what)),
            Err(other) => return Err(other),
        }
    }
    list.without_share = without_share_by(repo, &trust)?;
    list.keys.sort_by(|a, b| (&a.created_at, a.key_id).cmp(&(&b.created_at, b.key_id)));
    Ok(list)
}

/// The objects of keys that have no share in a rotation, and so open nothing sealed since, and what to do.
pub fn without_share(repo: &Repo) -> Result<Vec<(String, String)>, StoreError> {
    without_share_by(repo, &*repo.look_again()?)
}

fn without_share_by(repo: &Repo, trust: &Trust) -> Result<Vec<(String, String)>, StoreError> {
    let keys = rotation::without_share(&**repo.store(), trust, repo.keys())?;
    let told = |(key_id, rotation)| {
        let problem = format!(
            "has no share in rotation {rotation}, and opens nothing stored since: remove the key, and add \
             it again"
        );
        (key_path(key_id).to_string(), problem)
    };
    Ok(keys.into_iter().map(told).collect())
}

pub(super) fn described(repo: &Repo, trust: &Trust, object: &KeyObject) -> Result<KeyInfo, &'static str> {
    let known = trust.of_key(object.key_id).ok_or(match trust.is_dropped(object.key_id) {
        true => "the operator's key that added it was removed at the same time or before: remove it, too",
        false => "no operator of this repository vouches for it",
    })?;
    if known.signer.role != object.role {
        return Err("it claims another role than its operator gave it");
    }
    if trust.is_removed(object.key_id) {
        return Err("its key was removed, but the object still exists");
    }
    // Anybody can write anything outside the seal.
    let (label, created_at) = match &known.voucher {
        Some(Vouched { voucher, .. }) => (&voucher.label, &voucher.created_at),
        None => (&object.label, &object.created_at),
    };
    Ok(KeyInfo {
        key_id: object.key_id,
        role: object.role,
        slot: match object.slot {
            Slot::Password { params, .. } => SlotInfo::Password(params),
            Slot::Public { recipient, .. } => SlotInfo::Public(PublicKey(recipient)),
            Slot::None {} => SlotInfo::Nothing,
        },
        label: label.clone(),
        created_at: created_at.clone(),
        sources: known.signer.sources.clone(),
        is_own: repo.keys().key_id() == object.key_id,
    })
}
