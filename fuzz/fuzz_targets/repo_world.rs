//! A whole repository, in which one piece is made up: sealed, hashed and signed, so that what lies behind is reached.
#![no_main]

use std::sync::OnceLock;

use holdfast_repo::fuzzing::{Piece, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    static WORLD: OnceLock<World> = OnceLock::new();
    let world = WORLD.get_or_init(|| World::new().expect("an empty repository"));
    let (piece, bytes) = input;
    let piece = Piece::ALL[usize::from(piece) % Piece::ALL.len()];
    // What is longer than may be stored is refused before it is looked at.
    let _ = world.read_with(piece, bytes);
});
