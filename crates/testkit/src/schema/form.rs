//! Column types.

use super::{Maker, collations::Collation, names::literal};
use crate::rng::Rng;

/// The type of a column.
#[derive(Clone, Debug)]
pub(super) enum Form {
    Integer {
        bytes: u32,
        is_unsigned: bool,
        is_zerofill: bool,
    },
    Decimal {
        digits: u64,
        scale: u64,
        is_unsigned: bool,
    },
    Float,
    Double,
    Bit(u64),
    Year,
    Date,
    Time(u64),
    DateTime(u64),
    Timestamp(u64),
    /// `word`, with a length in characters if it takes one.
    Text {
        word: &'static str,
        length: u64,
        collation: Collation,
        is_compressed: bool,
    },
    /// Like `Text`, with a length in bytes.
    Bytes {
        word: &'static str,
        length: u64,
    },
    Members {
        word: &'static str,
        members: Vec<String>,
        collation: Collation,
    },
    Json,
    Geometry(&'static str),
    /// A type that only MariaDB has.
    Own(&'static str),
}

const LONG_TEXTS: [&str; 4] = ["TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"];
const LONG_BYTES: [&str; 4] = ["TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"];
const SHAPES: [&str; 5] = ["GEOMETRY", "POINT", "LINESTRING", "POLYGON", "GEOMETRYCOLLECTION"];
const MEMBERS: [&str; 10] = ["a", "", "B", "it's", "x y", "\\", "0", "1", "NULL", "\""];
const MEMBERS_UNIVERSAL: [&str; 4] = ["ä", "😀", "ß", "表"];

impl Form {
    /// Draws any type.
    pub(super) fn random(maker: &mut Maker) -> Form {
        let rng = &mut maker.rng;
        match rng.below(if maker.is_mariadb { 34 } else { 32 }) {
            0..6 => Form::integer(rng),
            6..8 => {
                let digits = rng.between(1, 65);
                let scale = rng.below(digits.min(30) + 1);
                Form::Decimal { digits, scale, is_unsigned: rng.percent(20) }
            }
            8 => Form::Float,
            9 => Form::Double,
            10 => Form::Bit(rng.between(1, 64)),
            11 => Form::Year,
            12 => Form::Date,
            13 => Form::Time(rng.below(7)),
            14 => Form::DateTime(rng.below(7)),
            15 => Form::Timestamp(rng.below(7)),
            16..22 => Form::short_text(maker),
            22 => {
                let word = LONG_TEXTS[rng.index(LONG_TEXTS.len())];
                let is_compressed = maker.is_mariadb && rng.percent(10);
                let collation = maker.collations.any(rng).clone();
                Form::Text { word, length: 0, collation, is_compressed }
            }
            23..25 => Form::short_bytes(rng),
            25 => Form::Bytes { word: LONG_BYTES[rng.index(LONG_BYTES.len())], length: 0 },
            26..28 => Form::members(maker),
            28..30 => Form::Json,
            30..32 => Form::Geometry(SHAPES[rng.index(SHAPES.len())]),
            _ => Form::Own(["UUID", "INET6", "INET4"][rng.index(3)]),
        }
    }

    /// Draws a type suitable for the first column of a key.
    pub(super) fn of_key(maker: &mut Maker) -> Form {
        let rng = &mut maker.rng;
        match rng.below(12) {
            0..4 => Form::integer(rng),
            4 => Form::short_bytes(rng),
            5..8 => Form::short_text(maker),
            8 => Form::Decimal { digits: 20, scale: 5, is_unsigned: false },
            9 => [Form::Date, Form::DateTime(6), Form::Timestamp(3), Form::Time(2), Form::Year][rng.index(5)]
                .clone(),
            10 => [Form::Bit(40), Form::Double, Form::Float][rng.index(3)].clone(),
            _ if maker.is_mariadb => Form::Own(["UUID", "INET6"][rng.index(2)]),
            _ => Form::members(maker),
        }
    }

    pub(super) fn integer(rng: &mut Rng) -> Form {
        let bytes = [1, 2, 3, 4, 4, 8, 8][rng.index(7)];
        let is_zerofill = rng.percent(5);
        Form::Integer { bytes, is_unsigned: is_zerofill || rng.percent(40), is_zerofill }
    }

    fn short_text(maker: &mut Maker) -> Form {
        let rng = &mut maker.rng;
        let word = ["CHAR", "VARCHAR"][rng.index(2)];
        let length = if word == "CHAR" { rng.between(1, 60) } else { rng.between(1, 180) };
        let is_compressed = maker.is_mariadb && word == "VARCHAR" && rng.percent(5);
        Form::Text { word, length, collation: maker.collations.any(rng).clone(), is_compressed }
    }

    fn short_bytes(rng: &mut Rng) -> Form {
        Form::Bytes { word: ["BINARY", "VARBINARY"][rng.index(2)], length: rng.between(1, 60) }
    }

    fn members(maker: &mut Maker) -> Form {
        let rng = &mut maker.rng;
        let collation = maker.collations.any(rng).clone();
        let mut pool: Vec<&str> = MEMBERS.to_vec();
        if collation.is_universal() {
            pool.extend(MEMBERS_UNIVERSAL);
        }
        // Under collations that ignore case, a member could occur twice, so each is drawn only once.
        let mut members: Vec<String> = Vec::new();
        for _ in 0..rng.between(1, 8) {
            members.push(pool.remove(rng.index(pool.len())).to_owned());
        }
        if rng.percent(10) {
            let more = (members.len()..rng.between(9, 64) as usize).map(|number| format!("m{number}"));
            members.extend(more);
        }
        Form::Members { word: ["ENUM", "SET"][rng.index(2)], members, collation }
    }

    /// The type as SQL.
    pub(super) fn sql(&self) -> String {
        let digits = |digits: u64| if digits == 0 { String::new() } else { format!("({digits})") };
        match self {
            Form::Integer { bytes, is_unsigned, is_zerofill } => {
                let word = match bytes {
                    1 => "TINYINT",
                    2 => "SMALLINT",
                    3 => "MEDIUMINT",
                    4 => "INT",
                    _ => "BIGINT",
                };
                match (is_zerofill, is_unsigned) {
                    (true, _) => format!("{word}(9) UNSIGNED ZEROFILL"),
                    (_, true) => format!("{word} UNSIGNED"),
                    _ => word.to_owned(),
                }
            }
            Form::Decimal { digits, scale, is_unsigned } => {
                format!("DECIMAL({digits},{scale}){}", if *is_unsigned { " UNSIGNED" } else { "" })
            }
            Form::Float => "FLOAT".to_owned(),
            Form::Double => "DOUBLE".to_owned(),
            Form::Bit(bits) => format!("BIT({bits})"),
            Form::Year => "YEAR".to_owned(),
            Form::Date => "DATE".to_owned(),
            Form::Time(fraction) => format!("TIME{}", digits(*fraction)),
            Form::DateTime(fraction) => format!("DATETIME{}", digits(*fraction)),
            Form::Timestamp(fraction) => format!("TIMESTAMP{}", digits(*fraction)),
            Form::Text { word, length, collation, is_compressed } => {
                let compressed = if *is_compressed { " COMPRESSED" } else { "" };
                format!(
                    "{word}{}{compressed} CHARACTER SET {} COLLATE {}",
                    digits(*length),
                    collation.charset,
                    collation.name
                )
            }
            Form::Bytes { word, length } => format!("{word}{}", digits(*length)),
            Form::Members { word, members, collation } => {
                let members: Vec<String> = members.iter().map(|member| literal(member)).collect();
                format!(
                    "{word}({}) CHARACTER SET {} COLLATE {}",
                    members.join(","),
                    collation.charset,
                    collation.name
                )
            }
            Form::Json => "JSON".to_owned(),
            Form::Geometry(word) | Form::Own(word) => (*word).to_owned(),
        }
    }

    /// Whether a key must use a prefix of it.
    pub(super) fn needs_prefix(&self) -> bool {
        match self {
            Form::Text { word, .. } => LONG_TEXTS.contains(word),
            Form::Bytes { word, .. } => LONG_BYTES.contains(word),
            _ => false,
        }
    }

    /// The longest prefix that a key can use, if a key can use a prefix at all.
    pub(super) fn prefix_max(&self) -> Option<u64> {
        match self {
            Form::Text { is_compressed: true, .. } => None,
            Form::Text { length, .. } | Form::Bytes { length, .. } => {
                Some(if *length == 0 { 40 } else { *length })
            }
            _ => None,
        }
    }

    /// Whether an ordinary index can include it.
    pub(super) fn is_indexable(&self) -> bool {
        !matches!(self, Form::Json | Form::Geometry(_) | Form::Text { is_compressed: true, .. })
    }

    /// Whether a default must be an expression.
    pub(super) fn is_long(&self) -> bool {
        self.needs_prefix() || matches!(self, Form::Json | Form::Geometry(_))
    }
}
