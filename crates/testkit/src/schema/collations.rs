//! The collations that a server supports.

use anyhow::Result;
use mysql::{Conn, prelude::Queryable};

use crate::rng::Rng;

/// A collation and its character set.
#[derive(Clone, Debug)]
pub(super) struct Collation {
    pub(super) name: String,
    pub(super) charset: String,
}

/// Character sets that contain every character.
const UNIVERSAL: [&str; 5] = ["utf8mb4", "utf16", "utf16le", "utf32", "gb18030"];
/// Character sets whose characters have one to four bytes, encoded differently in each.
const LONG: [&str; 14] = [
    "utf8mb4", "utf8mb3", "utf16", "utf16le", "utf32", "ucs2", "gb18030", "gbk", "gb2312", "sjis", "cp932",
    "big5", "euckr", "ujis",
];

impl Collation {
    /// Whether it can represent every text.
    pub(super) fn is_universal(&self) -> bool {
        UNIVERSAL.contains(&self.charset.as_str())
    }

    /// Whether every byte is a character.
    pub(super) fn is_of_single_bytes(&self) -> bool {
        !LONG.contains(&self.charset.as_str()) && self.charset != "eucjpms"
    }
}

/// All collations in a fixed order.
pub(super) struct Collations {
    all: Vec<Collation>,
}

impl Collations {
    pub(super) fn read(conn: &mut Conn) -> Result<Collations> {
        let has_full_names: Option<String> = conn.query_first(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'information_schema'
             AND table_name = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND column_name = 'FULL_COLLATION_NAME'",
        )?;
        // MariaDB's newer collations apply to several character sets, with a separate name in each.
        let name = if has_full_names.is_some() { "full_collation_name" } else { "collation_name" };
        let rows: Vec<(String, String)> = conn.query(format!(
            "SELECT {name}, character_set_name FROM information_schema.collation_character_set_applicability
             WHERE character_set_name <> 'binary' ORDER BY 1"
        ))?;
        let all = rows.into_iter().map(|(name, charset)| Collation { name, charset }).collect();
        Ok(Collations { all })
    }

    /// Draws a collation, preferring the most widely used character sets.
    pub(super) fn any(&self, rng: &mut Rng) -> &Collation {
        let charset = match rng.below(10) {
            0..5 => "utf8mb4",
            5..7 => "latin1",
            _ => return &self.all[rng.index(self.all.len())],
        };
        let of_charset: Vec<&Collation> = self.all.iter().filter(|it| it.charset == charset).collect();
        of_charset[rng.index(of_charset.len())]
    }
}
