//! Names that need quotes, and comments that need more escaping.

use crate::rng::Rng;

/// The maximum length of object names, in characters.
const LENGTH_MAX: usize = 64;

const WORDS: [&str; 34] = [
    "customer",
    "order",
    "select",
    "table",
    "key",
    "Group",
    "primary",
    "row_start",
    "a b",
    " lead",
    "back`tick",
    "``",
    "dot.ted",
    "it's",
    "\"quoted\"",
    "back\\slash",
    "größe",
    "表の名",
    "имя",
    "İı",
    "%wild_",
    "semi;colon",
    "-- no comment",
    "/* none */",
    "#hash",
    "@at",
    "$dollar",
    "1st",
    "2e5",
    "sla/sh",
    "(pair)",
    "a,b",
    "COMMENT",
    "CONSTRAINT",
];

const REMARKS: [&str; 12] = [
    "",
    "plain",
    "it's",
    "\"quoted\"",
    "back\\slash \\n \\",
    "`a` int, PRIMARY KEY (`a`)",
    ") ENGINE=MyISAM",
    "größe €",
    "COLLATE latin1_bin",
    "/*!99999 no */ -- x # y",
    "line\nbreak\ttab",
    "DEFAULT NULL, ENGINE='CONNECT' PARTITION BY x",
];

/// Generates unique names.
#[derive(Debug, Default)]
pub(super) struct Names {
    given: u32,
}

impl Names {
    /// A name that no other object has, even if case and accents are ignored.
    pub(super) fn any(&mut self, rng: &mut Rng) -> String {
        self.given += 1;
        let number = self.given;
        match rng.below(20) {
            0..8 => format!("n{number}"),
            8 => {
                let end = number.to_string();
                let mut name = "long_".repeat(LENGTH_MAX / 5 + 1);
                name.truncate(LENGTH_MAX - end.len());
                name + &end
            }
            9 => format!("{number}{}", rng.pick(&WORDS)),
            10 => format!("{} {} {number}", rng.pick(&WORDS), rng.pick(&WORDS)),
            _ => format!("{}{number}", rng.pick(&WORDS)),
        }
    }
}

/// A random comment text, sometimes one that looks like a statement.
pub(super) fn remark(rng: &mut Rng, length_max: usize) -> String {
    let mut text = format!("{}{}", rng.pick(&REMARKS), rng.pick(&REMARKS));
    if rng.percent(10) {
        text.push('😀');
    }
    if rng.percent(5) {
        text = text.repeat(9);
    }
    literal(&text.chars().take(length_max).collect::<String>())
}

/// Quotes a text as a literal.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
