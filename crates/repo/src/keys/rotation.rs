//! Rotations: new key pairs that objects are sealed for from now on
//! (`docs/reference/repository.md` section 4).
//!
//! Each is one record, signed by an operator, with a share for every key, sealed for that key's exchange key.
//! What was sealed before stays as it is, and so do the keys that open it.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::{
    FORMAT, KeyError, KeyId, KeyMaterial, RepositoryId, Role,
    error::damaged,
    key_path,
    material::SealKeys,
    object_path,
    signed::{self, Sort},
    slot::{self, to_json},
    trust::{NOT_BELIEVED, Trust, is_number, listed, record, signer_path},
    wrap::{Purpose, open_sealed, seal_for},
};
use crate::{
    error::Damage,
    format::{
        hash::{NO_OBJECT, ObjectHash, object_hash},
        hex::{Hex, from_hex, to_hex},
    },
    store::{ObjectPath, Store, StoreError, exists},
};

/// Clocks of hosts that share a repository differ by less.
const CLOCKS_DIFFER_MAX: SignedDuration = SignedDuration::from_hours(1);

#[derive(Serialize, Deserialize)]
struct Rotation {
    format: u32,
    number: u8,
    /// Hash of the previous record; zeros for the first.
    previous: ObjectHash,
    at: String,
    shares: Vec<Share>,
}

#[derive(Serialize, Deserialize)]
struct Share {
    key_id: KeyId,
    enc: Hex<32>,
    sealed: String,
}

pub(crate) fn path(number: u8) -> ObjectPath {
    object_path(&format!("rotations/{number:03}"))
}

fn associated_data(number: u8, key_id: KeyId, role: Role) -> Vec<u8> {
    let mut data = vec![number, role.number()];
    data.extend_from_slice(&key_id.0);
    data
}

/// Takes up the rotations made since this key was, or since the last look, as far as they can be believed.
/// Returns how many records there are, and the hash of the last.
///
/// Of the rotations that existed when a key was removed, the last must still exist: it tells whether the
/// others are unchanged. A problem keeps everybody from sealing anything for what was taken up.
pub(crate) fn read(
    store: &dyn Store,
    trust: &Trust,
    keys: &KeyMaterial,
) -> Result<(u8, ObjectHash), StoreError> {
    let repository = keys.repository().repository_id;
    let known = trust.last_rotation();
    let least = known.map_or(0, |(number, _)| number);
    let (mut count, mut previous) = (0, NO_OBJECT);
    let mut problem = None;
    let listed = listed(store, "rotations/", &|name| is_number(name, 3))?;
    let mut listed = listed.paths.into_iter();
    for number in 1..=u8::MAX {
        let at = path(number);
        match listed.next() {
            Some(found) if found == at => {}
            // A listing may lag behind.
            None if number > least => break,
            None if exists(store, &at)? => {}
            _ => {
                problem = Some((at, Damage::Missing));
                break;
            }
        }
        let bytes = record(store, &at)?;
        let hash = object_hash(&bytes);
        let share = match known {
            Some((last, known)) if last == number && known != hash => {
                Err("it is not the one that was there when a key was removed")
            }
            _ => read_one(repository, trust, keys, number, previous, &bytes),
        };
        match share {
            // Made before this key, or taken up before: the key has them.
            Ok(_) if number <= keys.rotations() => {}
            Ok(share) => keys.take_up(number, share),
            Err(what) => {
                problem = Some((at, Damage::Malformed { what }));
                break;
            }
        }
        (count, previous) = (number, hash);
    }
    keys.set_rotation_problem(problem);
    Ok((count, previous))
}

fn read_one(
    repository: RepositoryId,
    trust: &Trust,
    keys: &KeyMaterial,
    number: u8,
    previous: ObjectHash,
    bytes: &[u8],
) -> Result<SealKeys, &'static str> {
    let (rotation, by): (Rotation, _) = signed::read(repository, Sort::Rotation, bytes)?;
    if !trust.may_rotate(by, number, object_hash(bytes)) {
        return Err(NOT_BELIEVED);
    }
    if rotation.format != FORMAT || rotation.number != number || rotation.previous != previous {
        return Err("it does not continue the rotations before it");
    }
    if let Some(known) = keys.seal_keys(number) {
        return Ok(known.clone());
    }
    let (key_id, role) = (keys.key_id(), keys.role());
    let share = rotation.shares.iter().find(|share| share.key_id == key_id);
    let share = share.ok_or("it has no share for this key: add the key again")?;
    let private = keys.payload.exchange_key.as_ref().ok_or("this key cannot open its share in it")?;
    let associated = associated_data(number, key_id, role);
    let sealed = from_hex(&share.sealed).unwrap_or_default();
    let plain = open_sealed(repository, Purpose::Rotation, private, share.enc, &sealed, &associated);
    let plain = plain.ok_or("the share for this key does not open")?;
    let seal_keys: SealKeys =
        serde_json::from_slice(&plain).map_err(|_| "the share for this key is malformed")?;
    if seal_keys.fit(role) { Ok(seal_keys) } else { Err("the share for this key contradicts its role") }
}

/// Fails if the last look with these keys has shown a rotation that does not count.
///
/// Whoever makes a rotation or removes a key asks this after creating the record and looking again: if the
/// two happen at once, at least one of them learns of it.
pub(crate) fn require_counted(keys: &KeyMaterial) -> Result<(), KeyError> {
    match keys.rotation_problem() {
        Some((object, Damage::Malformed { what: NOT_BELIEVED })) => {
            Err(KeyError::RotationRefused { object: object.to_string() })
        }
        // Anything else concerns the key at hand alone, or was there before.
        _ => Ok(()),
    }
}

/// The keys at hand with all rotations made by now, and the hash of the last.
pub(crate) fn latest(
    store: &dyn Store,
    trust: &Trust,
    keys: &KeyMaterial,
) -> Result<(KeyMaterial, ObjectHash), KeyError> {
    let latest = KeyMaterial::from_payload(keys.payload.clone(), keys.key_id(), keys.role())
        .map_err(|what| damaged(format!("keys/{}", keys.key_id()), what))?;
    let (count, last) = read(store, trust, &latest)?;
    match latest.rotation_problem() {
        Some((object, what)) => Err(damaged(object, what)),
        // The key object knows this rotation, but nobody else would any more.
        None if count < latest.rotations() => Err(damaged(path(count + 1), Damage::Missing)),
        None => Ok((latest, last)),
    }
}

/// How many rotations there are by now that can be believed, and the hash of the last. Nothing else tells
/// which rotations a key may have made.
pub(crate) fn known(
    store: &dyn Store,
    trust: &Trust,
    keys: &KeyMaterial,
) -> Result<(u8, ObjectHash), KeyError> {
    let (latest, last) = latest(store, trust, keys)?;
    Ok((latest.rotations(), last))
}

/// The record of a new rotation, with a share for every key that is not removed, and how many these are.
pub(crate) fn new_record(
    keys: &KeyMaterial,
    trust: &Trust,
    (number, previous): (u8, ObjectHash),
    at: String,
) -> Result<(Vec<u8>, usize), KeyError> {
    let repository = keys.repository().repository_id;
    let fresh = SealKeys::generate();
    let mut shares = Vec::new();
    // Whether or not a key has an object: that may be about to be created, or have been hidden for a while.
    for signer in trust.standing().map(|believed| &believed.signer) {
        let key_id = signer.key_id;
        let exchange = signer.exchange.ok_or(KeyError::NoExchange { key_id })?;
        let plain = to_json(&fresh.of_role(signer.role));
        let associated = associated_data(number, key_id, signer.role);
        let sealed = seal_for(repository, Purpose::Rotation, exchange, &plain, &associated);
        let (enc, sealed) = sealed.ok_or_else(|| damaged(signer_path(key_id), "no usable key"))?;
        shares.push(Share { key_id, enc, sealed: to_hex(&sealed) });
    }
    shares.sort_by_key(|share| share.key_id);
    let count = shares.len();
    let rotation = Rotation { format: FORMAT, number, previous, at, shares };
    Ok((signed::sign(keys, Sort::Rotation, &rotation), count))
}

/// The keys that stand and have no share in a rotation that their key object does not have the keys of, each
/// with the first such rotation, of those that the key at hand has taken up.
pub(crate) fn without_share(
    store: &dyn Store,
    trust: &Trust,
    keys: &KeyMaterial,
) -> Result<Vec<(KeyId, u8)>, StoreError> {
    let repository = keys.repository().repository_id;
    let mut rotations = Vec::new();
    for number in 1..=keys.rotations() {
        // One that is gone or altered is reported as such.
        let bytes = match record(store, &path(number)) {
            Err(error) if error.is_not_found() => continue,
            bytes => bytes?,
        };
        let rotation: Result<(Rotation, _), _> = signed::read(repository, Sort::Rotation, &bytes);
        rotations.extend(rotation.ok().map(|(rotation, _)| (number, rotation)));
    }
    let mut without = Vec::new();
    for known in trust.standing() {
        let key_id = known.signer.key_id;
        let has_share = |rotation: &Rotation| rotation.shares.iter().any(|share| share.key_id == key_id);
        let mut lacking = rotations.iter().filter(|(_, rotation)| !has_share(rotation)).peekable();
        if lacking.peek().is_none() {
            continue;
        }
        let object = match slot::read(store, &key_path(key_id)) {
            Ok(object) => object,
            Err(KeyError::Store(error)) if !error.is_not_found() => return Err(error),
            // It is reported as missing or damaged.
            Err(_) => continue,
        };
        let voucher = known.voucher.as_ref().map(|vouched| &vouched.voucher);
        let created_at = time(voucher.map_or(&object.created_at, |voucher| &voucher.created_at));
        let holds = |number: u8, rotation: &Rotation| match object.rotations {
            Some(count) => number <= count,
            // By the clocks of two hosts.
            None => time(&rotation.at) <= created_at.and_then(|at| at.checked_add(CLOCKS_DIFFER_MAX).ok()),
        };
        let first = lacking.find(|(number, rotation)| !holds(*number, rotation));
        without.extend(first.map(|(number, _)| (key_id, *number)));
    }
    without.sort_unstable();
    Ok(without)
}

fn time(rfc3339: &str) -> Option<jiff::Timestamp> {
    rfc3339.parse().ok()
}

/// A first rotation in which the share of the key that signs it is `plain`.
#[cfg(any(fuzzing, test))]
pub(crate) fn with_share(keys: &KeyMaterial, plain: &[u8]) -> Option<Vec<u8>> {
    let (number, key_id) = (1, keys.key_id());
    let exchange = keys.payload.signers.iter().find(|signer| signer.key_id == key_id)?.exchange?;
    let associated = associated_data(number, key_id, keys.role());
    let repository = keys.repository().repository_id;
    let (enc, sealed) = seal_for(repository, Purpose::Rotation, exchange, plain, &associated)?;
    let shares = vec![Share { key_id, enc, sealed: to_hex(&sealed) }];
    let rotation = Rotation { format: FORMAT, number, previous: NO_OBJECT, at: String::new(), shares };
    Some(signed::sign(keys, Sort::Rotation, &rotation))
}

/// The contents of an honest share for the key.
#[cfg(any(fuzzing, test))]
pub(crate) fn honest_share(keys: &KeyMaterial) -> Vec<u8> {
    to_json(&SealKeys::generate().of_role(keys.role())).to_vec()
}
