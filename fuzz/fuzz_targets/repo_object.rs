//! Sealed objects, encrypted: no change of one is ever opened, and any bytes give an answer.
#![no_main]

use std::sync::{Arc, OnceLock};

use holdfast_repo::{
    Kind, LogName, ObjectKind, Password, Place, Protection, Repo, RunNo, format::place::HEADER_BYTES,
    keys::KdfParams, store::mem::MemStore,
};
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 4 << 20;

struct Known {
    repo: Repo,
    log: LogName,
    /// Objects that are right.
    sealed: Vec<Vec<u8>>,
}

fn known() -> Known {
    let password = Password::new("x".to_owned()).expect("a password");
    let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
    let repo = Repo::init(Arc::new(MemStore::new()), &protection).expect("an empty repository");
    let log = LogName { source: "db1".parse().expect("a name"), kind: Kind::Physical };
    let mut sealed = Vec::new();
    for len in [0, 100, (1 << 20) + 5] {
        let secrets = repo.draw_secrets(&log, RunNo(1)).expect("secrets");
        let plain: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        sealed.push(secrets.seal_index(0, &plain).expect("an index part"));
    }
    Known { repo, log, sealed }
}

fuzz_target!(|input: (u8, Vec<(u32, u8)>, u32, &[u8])| {
    static KNOWN: OnceLock<Known> = OnceLock::new();
    let Known { repo, log, sealed } = KNOWN.get_or_init(known);
    let (which, flips, cut, bytes) = input;
    let place = Place { log, kind: ObjectKind::Index, run: RunNo(1), part: 0 };
    let honest = &sealed[usize::from(which) % sealed.len()];

    let mut object = honest.clone();
    object.truncate(object.len() - cut as usize % object.len());
    for (at, flip) in flips {
        let at = at as usize % object.len();
        object[at] ^= flip;
    }
    let opened = repo.open_object(&place, &object, LIMIT);
    assert_eq!(opened.is_ok(), object == *honest, "what was changed must not open");

    // A header that is right, and anything behind it.
    let made_up = [&honest[..HEADER_BYTES], bytes].concat();
    assert!(repo.open_object(&place, &made_up, LIMIT).is_err() || made_up == *honest);
    let _ = repo.open_object(&place, bytes, LIMIT);
});
