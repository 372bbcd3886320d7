//! holdfast.json and keys: as they are stored, and the payload behind the slot of a repository without encryption.
#![no_main]

use std::sync::Arc;

use holdfast_repo::{
    Repo,
    store::{ObjectPath, Store, mem::MemStore},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8], bool)| {
    let (first, second, is_payload) = input;
    let store = MemStore::new();
    let put = |path: &str, bytes: &[u8]| {
        let path = ObjectPath::new(path).expect("a path");
        store.create_if_absent(&path, bytes).expect("memory");
    };
    put("holdfast.json", first);
    if is_payload {
        let hex: String = second.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = format!(
            r#"{{"format":2,"key_id":"0001020304050607","role":"operator","label":"","created_at":"2026-11-21T01:00:00Z","slot":{{"kind":"none"}},"sealed":"{hex}"}}"#
        );
        put("keys/0001020304050607", key.as_bytes());
    } else {
        put("keys/0001020304050607", second);
    }
    let _ = Repo::open(Arc::new(store), None);
});
