//! The head of a writer's own page maps: behind a MAC that is right, and without one.
#![no_main]

use std::sync::OnceLock;

use holdfast_repo::fuzzing::World;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    static WORLD: OnceLock<World> = OnceLock::new();
    let _ = WORLD.get_or_init(|| World::new().expect("an empty repository")).read_local_maps(bytes);
});
