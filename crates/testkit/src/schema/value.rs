//! Values at the limits of types, and some in between.

use std::fmt::Write;

use super::form::Form;
use crate::rng::Rng;

const DATES: [&str; 9] = [
    "0000-00-00",
    "2024-00-00",
    "2023-05-00",
    "2023-02-31",
    "0001-01-01",
    "1000-01-01",
    "9999-12-31",
    "1970-01-01",
    "2024-02-29",
];
const FLOATS: [&str; 9] = [
    "0e0",
    "-0e0",
    "1.17549435e-38",
    "1e-45",
    "-3.4028234663852886e38",
    "3.4028234663852886e38",
    "1e0/3e0",
    "16777217e0",
    "-1.5e0",
];
const DOUBLES: [&str; 9] = [
    "0e0",
    "-0e0",
    "5e-324",
    "-2.2250738585072014e-308",
    "1.7976931348623157e308",
    "-1.7976931348623157e308",
    "0.1e0 + 0.2e0",
    "9007199254740993e0",
    "1e22",
];
const DOCUMENTS: [&str; 10] = [
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "0",
    "-9223372036854775808",
    "18446744073709551615",
    "{\"a\": [1, 2, {\"b\": \"ä😀\\\\n\\\\u0001\"}], \"\": null, \"it''s\": \"\\\\\\\\\"}",
    "[[[[[]]]], \"a\", false]",
];
const CHARACTERS: [&str; 24] = [
    "a", "B", "0", " ", "'", "\"", "\\", "\n", "\r", "\t", "\0", "\u{1a}", "%", "`", ";", "ä", "ß", "€", "я",
    "表", "😀", "\u{301}", "\u{200b}", "İ",
];

/// A random value as a literal.
pub(super) fn any(form: &Form, rng: &mut Rng) -> String {
    if rng.percent(40) {
        return edge(form, rng);
    }
    match form {
        Form::Integer { bytes, is_unsigned, .. } => {
            // Small numbers are frequent; others are spread widely.
            let bits = if rng.percent(50) { 6 } else { bytes * 8 - 1 };
            let number = rng.next_u64() >> (64 - bits);
            if !is_unsigned && rng.percent(40) { format!("-{number}") } else { number.to_string() }
        }
        Form::Decimal { digits, scale, is_unsigned } => {
            let sign = if !is_unsigned && rng.percent(40) { "-" } else { "" };
            format!("{sign}{}", decimal(*digits, *scale, rng))
        }
        Form::Float => {
            let number = f32::from_bits(rng.next_u64() as u32);
            if number.is_finite() { format!("{number:e}") } else { "1e0".to_owned() }
        }
        Form::Double => {
            let number = f64::from_bits(rng.next_u64());
            if number.is_finite() { format!("{number:e}") } else { "1e0".to_owned() }
        }
        Form::Bit(bits) => format!("b'{:b}'", rng.next_u64() >> (64 - bits)),
        Form::Year => rng.between(1901, 2155).to_string(),
        Form::Date => format!("'{}'", date(rng)),
        Form::Time(_) => {
            let sign = if rng.percent(30) { "-" } else { "" };
            format!("'{sign}{}'", time(rng, 838))
        }
        Form::DateTime(_) => format!("'{} {}'", date(rng), time(rng, 23)),
        Form::Timestamp(_) => {
            let year = rng.between(1971, 2037);
            format!("'{year}-{:02}-{:02} {}'", rng.between(1, 12), rng.between(1, 28), time(rng, 23))
        }
        Form::Text { length, .. } => {
            let length = if *length == 0 { 300 } else { *length };
            let longest = if rng.percent(20) { length } else { length.min(8) };
            text(form, rng.below(longest + 1), rng)
        }
        Form::Bytes { length, .. } => {
            let length = if *length == 0 { 255 } else { *length };
            bytes(rng.below(length + 1), rng)
        }
        Form::Members { word, members, .. } => {
            if *word == "ENUM" {
                (rng.index(members.len()) + 1).to_string()
            } else {
                (rng.next_u64() >> (64 - members.len() as u32)).to_string()
            }
        }
        Form::Json => {
            let number = rng.next_u64() >> rng.below(64);
            format!("'{{\"k{}\": [{number}, \"{number:x}\"], \"z\": {{}}}}'", rng.below(3))
        }
        Form::Geometry(word) => geometry(word, rng),
        Form::Own("UUID") => {
            let (one, two) = (rng.next_u64(), rng.next_u64());
            format!(
                "'{:08x}-{:04x}-{:04x}-{:04x}-{:012x}'",
                one >> 32,
                (one >> 16) & 0xFFFF,
                one & 0xFFFF,
                two >> 48,
                two & 0xFFFF_FFFF_FFFF
            )
        }
        Form::Own("INET4") => {
            let number = rng.next_u64() as u32;
            format!("'{}'", std::net::Ipv4Addr::from(number))
        }
        Form::Own(_) => {
            let number = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
            format!("'{}'", std::net::Ipv6Addr::from(number))
        }
    }
}

/// An extreme value: the least, the greatest, an empty one, or one that is easily lost.
pub(super) fn edge(form: &Form, rng: &mut Rng) -> String {
    match form {
        Form::Integer { bytes, is_unsigned, .. } => {
            let bits = bytes * 8;
            let greatest = u64::MAX >> (64 - bits);
            match (is_unsigned, rng.below(4)) {
                (_, 0) => "0".to_owned(),
                (true, 1) => greatest.to_string(),
                (true, _) => rng.below(3).to_string(),
                (false, 1) => (greatest >> 1).to_string(),
                (false, 2) => format!("-{}", (greatest >> 1) + 1),
                (false, _) => "-1".to_owned(),
            }
        }
        Form::Decimal { digits, scale, is_unsigned } => {
            let nines = |count: u64| "9".repeat(count as usize);
            let sign = if !is_unsigned && rng.percent(50) { "-" } else { "" };
            match rng.below(3) {
                0 => "0".to_owned(),
                1 if digits == scale => format!("{sign}0.{}", nines(*scale)),
                1 if *scale == 0 => format!("{sign}{}", nines(*digits)),
                1 => format!("{sign}{}.{}", nines(digits - scale), nines(*scale)),
                _ if *scale > 0 => format!("{sign}0.{}1", "0".repeat(*scale as usize - 1)),
                _ => "1".to_owned(),
            }
        }
        Form::Float => FLOATS[rng.index(FLOATS.len())].to_owned(),
        Form::Double => DOUBLES[rng.index(DOUBLES.len())].to_owned(),
        Form::Bit(bits) => {
            let greatest = u64::MAX >> (64 - bits);
            format!("b'{:b}'", if rng.percent(50) { greatest } else { 0 })
        }
        Form::Year => rng.pick(&["1901", "2155", "0", "1970"]).to_owned(),
        Form::Date => format!("'{}'", rng.pick(&DATES)),
        Form::Time(_) => {
            let all = ["-838:59:59", "838:59:59", "00:00:00", "-00:00:01", "838:59:58.999999"];
            format!("'{}'", rng.pick(&all))
        }
        Form::DateTime(_) => {
            let time = rng.pick(&["00:00:00", "23:59:59", "12:00:00.000001"]);
            format!("'{} {time}'", rng.pick(&DATES))
        }
        Form::Timestamp(_) => {
            let all = [
                "0000-00-00 00:00:00",
                "1970-01-01 00:00:01",
                "2038-01-19 03:14:07",
                "2026-03-29 02:30:00",
                "2026-10-25 01:30:00.5",
            ];
            format!("'{}'", rng.pick(&all))
        }
        Form::Text { word, length, .. } => match rng.below(6) {
            0 => "''".to_owned(),
            1 => "'trailing  '".to_owned(),
            2 => "'NULL'".to_owned(),
            3 if *word == "MEDIUMTEXT" || *word == "LONGTEXT" => "REPEAT('long ', 20000)".to_owned(),
            3 if *length == 0 => "REPEAT('x', 255)".to_owned(),
            3 => format!("REPEAT('y', {length})"),
            4 => "'\\\\N'".to_owned(),
            _ => text(form, (*length).clamp(1, 9), rng),
        },
        Form::Bytes { word, length } => match rng.below(5) {
            0 => "''".to_owned(),
            1 if *word == "MEDIUMBLOB" || *word == "LONGBLOB" => "REPEAT(x'FF', 90000)".to_owned(),
            1 if *length == 0 => "REPEAT(x'00', 255)".to_owned(),
            1 => format!("REPEAT(x'FF', {length})"),
            2 => "x'00'".to_owned(),
            3 => "'  '".to_owned(),
            _ => bytes((*length).clamp(1, 20), rng),
        },
        Form::Members { word: "ENUM", members, .. } => members.len().to_string(),
        Form::Members { members, .. } => {
            let all = u64::MAX >> (64 - members.len() as u32);
            (if rng.percent(50) { all } else { 0 }).to_string()
        }
        Form::Json => format!("'{}'", rng.pick(&DOCUMENTS)),
        Form::Geometry(word) => geometry(word, rng),
        Form::Own("UUID") => {
            let all = ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"];
            format!("'{}'", rng.pick(&all))
        }
        Form::Own("INET4") => format!("'{}'", rng.pick(&["0.0.0.0", "255.255.255.255"])),
        Form::Own(_) => format!("'{}'", rng.pick(&["::", "::1", "::ffff:1.2.3.4", "ff02::1"])),
    }
}

fn decimal(digits: u64, scale: u64, rng: &mut Rng) -> String {
    let mut number = String::from("0");
    for at in 0..digits {
        if at == digits - scale {
            number.push('.');
        }
        let _ = write!(number, "{}", rng.below(10));
    }
    number
}

fn date(rng: &mut Rng) -> String {
    let year = if rng.percent(80) { rng.between(1990, 2030) } else { rng.between(1, 9999) };
    format!("{year:04}-{:02}-{:02}", rng.between(1, 12), rng.between(1, 28))
}

fn time(rng: &mut Rng, hours_max: u64) -> String {
    let hours = if rng.percent(90) { rng.below(24) } else { rng.below(hours_max + 1) };
    format!("{hours:02}:{:02}:{:02}.{:06}", rng.below(60), rng.below(60), rng.below(1_000_000))
}

/// Characters that its character set has, or converts.
fn text(form: &Form, length: u64, rng: &mut Rng) -> String {
    let Form::Text { collation, .. } = form else { return "''".to_owned() };
    if collation.is_of_single_bytes() && rng.percent(60) {
        return format!("_{} {}", collation.charset, bytes(length, rng));
    }
    let characters: String = (0..length).map(|_| CHARACTERS[rng.index(CHARACTERS.len())]).collect();
    format!("_utf8mb4 {}", hex(characters.as_bytes()))
}

fn bytes(length: u64, rng: &mut Rng) -> String {
    let all: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
    hex(&all)
}

fn hex(bytes: &[u8]) -> String {
    let mut literal = "x'".to_owned();
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(literal, "{byte:02X}");
    }
    literal + "'"
}

fn geometry(word: &str, rng: &mut Rng) -> String {
    let number = |rng: &mut Rng| match rng.below(6) {
        0 => "0".to_owned(),
        1 => "1e300".to_owned(),
        2 => "-1e-300".to_owned(),
        _ => format!("{}.{}", rng.below(2000) as i64 - 1000, rng.below(1000)),
    };
    let mut point = || format!("{} {}", number(rng), number(rng));
    let text = match word {
        "POINT" | "GEOMETRY" => format!("POINT({})", point()),
        "LINESTRING" => format!("LINESTRING({},{},3 4)", point(), point()),
        "POLYGON" => "POLYGON((0 0,0 3,3 3,3 0,0 0),(1 1,1 2,2 2,2 1,1 1))".to_owned(),
        _ => format!("GEOMETRYCOLLECTION(POINT({}),LINESTRING(0 0,1 1))", point()),
    };
    let system = if rng.percent(15) { ", 3857" } else { "" };
    format!("ST_GeomFromText('{text}'{system})")
}
