//! Dumps of other tools: any text is read to an end, cut anywhere, and gives the same pieces; what pieces
//! consist of lies in them.
#![no_main]

use std::io::{self, Read};

use holdfast_formats::{
    Flavor,
    dump::{
        About, DumpReader, Ending, Grammar, Metadata, Modes, Piece, about::Place, metadata::FileName, tokens,
    },
    sql::{self, Comments},
};
use libfuzzer_sys::fuzz_target;

/// Gives a few bytes at a time.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.len().min(3).min(buffer.len());
        buffer[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

fn pieces(input: impl Read, grammar: Grammar, ending: Ending, modes: Modes) -> (Vec<(u64, Vec<u8>)>, bool) {
    let mut reader = DumpReader::new(input, grammar, ending, 1 << 12);
    reader.set_modes(modes);
    let mut pieces = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(Piece::Statement { text, line } | Piece::Comment { text, line })) => {
                pieces.push((line, text.to_vec()));
            }
            Ok(None) => return (pieces, true),
            Err(_) => return (pieces, false),
        }
    }
}

fuzz_target!(|input: (bool, bool, bool, bool, &[u8])| {
    let (is_mariadb, is_line, no_backslash_escapes, ansi_quotes, text) = input;
    let grammar = match is_mariadb {
        true => Grammar { flavor: Flavor::MariaDb, version: 101_119 },
        false => Grammar { flavor: Flavor::MySql, version: 90_704 },
    };
    let ending = if is_line { Ending::Line } else { Ending::Delimiter };
    let modes = Modes { no_backslash_escapes, ansi_quotes };
    let (found, is_whole) = pieces(text, grammar, ending, modes);
    assert_eq!((&found, is_whole), (&pieces(Slow(text), grammar, ending, modes).0, is_whole));
    let mut about = About::default();
    for (_, piece) in &found {
        about.hear(piece);
        about.note_place(&Place::of_statement(piece));
        for token in tokens(piece, modes) {
            let _ = (token.name(), token.text(modes));
        }
        let together: Vec<u8> =
            sql::tokens(piece, modes, Comments::InMarks).flat_map(|token| token.bytes).copied().collect();
        assert_eq!(&together, piece);
    }
    if let Ok(text) = std::str::from_utf8(text) {
        let _ = (Metadata::parse(text), FileName::parse(text));
    }
});
