//! Names of objects, as a store lists them, and names that people type.
#![no_main]

use holdfast_repo::{Folder, Kind, SourceName, format::item::ItemPath, store::ObjectPath};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for folder in [
        Folder::Segments,
        Folder::Checks,
        Folder::Runs,
        Folder::Packs,
        Folder::Index,
        Folder::Refs,
        Folder::Outcomes,
        Folder::Reports,
    ] {
        let _ = folder.parse(text);
    }
    if let Ok(name) = text.parse::<SourceName>() {
        assert!(!name.as_str().contains('/') && !name.as_str().starts_with('.'));
    }
    let _ = text.parse::<Kind>();
    let _ = ObjectPath::new(text);
    if let Ok(path) = ItemPath::new(text) {
        assert!(path.as_bytes().split(|byte| *byte == b'/').all(|part| !part.is_empty() && part != b".."));
    }
});
