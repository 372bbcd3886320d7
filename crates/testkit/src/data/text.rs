//! Natural-looking text: few words are frequent and most are rare, so that it compresses as real text does.

use std::fmt::Write;

use crate::rng::Rng;

const WORDS: usize = 20_000;
const TABLE_BITS: u32 = 18;
const SYLLABLES: [&str; 26] = [
    "ba", "re", "ti", "con", "mo", "la", "ver", "in", "ex", "sta", "pro", "ment", "ing", "ed", "er", "tion",
    "al", "ous", "ly", "un", "de", "ra", "si", "ko", "men", "tu",
];

/// Words with a Zipf distribution.
pub(crate) struct Vocabulary {
    words: Vec<String>,
    /// Indexes of words, each repeated in proportion to its frequency: one look-up draws a word.
    table: Vec<u16>,
}

impl Vocabulary {
    /// The only vocabulary: it does not depend on a data set's seed.
    pub(crate) fn new() -> Vocabulary {
        let mut rng = Rng::new(1);
        let words: Vec<String> =
            (0..WORDS).map(|_| (0..rng.between(1, 4)).map(|_| rng.pick(&SYLLABLES)).collect()).collect();
        let weight = |rank: usize| 1.0 / (rank as f64 + 2.7);
        let total: f64 = (0..WORDS).map(weight).sum();
        let slots = 1usize << TABLE_BITS;
        let mut table = Vec::with_capacity(slots);
        let mut cumulated = 0.0;
        for rank in 0..WORDS {
            cumulated += weight(rank) / total;
            table.resize((cumulated * slots as f64) as usize, rank as u16);
        }
        table.resize(slots, 0);
        Vocabulary { words, table }
    }

    /// Draws a word.
    pub(crate) fn word(&self, rng: &mut Rng) -> &str {
        &self.words[usize::from(self.table[(rng.next_u64() >> (64 - TABLE_BITS)) as usize])]
    }

    /// Appends `count` words with spaces between them.
    pub(crate) fn push_words(&self, rng: &mut Rng, count: u64, out: &mut String) {
        for i in 0..count {
            if i > 0 {
                out.push(' ');
            }
            out.push_str(self.word(rng));
        }
    }
}

/// Appends `len` random bytes as an SQL hexadecimal literal.
pub(crate) fn push_hex(rng: &mut Rng, len: u64, out: &mut String) {
    out.push_str("X'");
    for _ in 0..len / 8 {
        // Writing to a string cannot fail.
        write!(out, "{:016x}", rng.next_u64()).ok();
    }
    for _ in 0..len % 8 {
        write!(out, "{:02x}", rng.below(256)).ok();
    }
    out.push('\'');
}
