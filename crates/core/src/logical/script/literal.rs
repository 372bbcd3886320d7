//! Writes values as SQL literals, so that a server stores the exact bytes again.
//!
//! Written for a session with `SET NAMES utf8mb4` whose `sql_mode` has neither `NO_BACKSLASH_ESCAPES` nor
//! strictness. Text is written as text if the server takes it unchanged; anything else is bytes in hex, which
//! it does not convert.

use std::io::{self, Write};

use crate::logical::stored::definition::{ColumnDefinition, Form};

/// Character sets that encode ASCII characters as ASCII.
const ASCII_COMPATIBLE: [&str; 14] = [
    "utf8mb4", "utf8mb3", "utf8", "latin1", "ascii", "latin2", "latin5", "latin7", "cp1250", "cp1251",
    "cp1256", "cp1257", "koi8r", "greek",
];

/// Writes a value of a column; `None` is NULL.
pub(crate) fn write(out: &mut impl Write, column: &ColumnDefinition, value: Option<&[u8]>) -> io::Result<()> {
    let Some(value) = value else { return out.write_all(b"NULL") };
    match column.form {
        Form::Number | Form::Members if is_number(value) => out.write_all(value),
        // A zero written as a number has no sign.
        Form::Number | Form::Members | Form::Float | Form::Ascii | Form::Json => quoted(out, value),
        Form::Bytes => hex(out, value),
        Form::Text => {
            let charset = column.charset.as_deref().unwrap_or_default();
            let is_plain = if charset.starts_with("utf8") {
                std::str::from_utf8(value).is_ok()
            } else {
                value.is_ascii() && ASCII_COMPATIBLE.contains(&charset)
            };
            if is_plain { quoted(out, value) } else { hex(out, value) }
        }
    }
}

fn is_number(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
}

fn quoted(out: &mut impl Write, value: &[u8]) -> io::Result<()> {
    out.write_all(b"'")?;
    let mut rest = value;
    while let Some(at) = first_of(rest, [0, b'\n', b'\r', b'\\', b'\'', b'"', 0x1A]) {
        out.write_all(&rest[..at])?;
        let escape: &[u8] = match rest[at] {
            0 => b"\\0",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\\' => b"\\\\",
            b'\'' => b"\\'",
            b'"' => b"\\\"",
            _ => b"\\Z",
        };
        out.write_all(escape)?;
        rest = &rest[at + 1..];
    }
    out.write_all(rest)?;
    out.write_all(b"'")
}

/// The place of the first of these characters. Most values have none of them: each is looked for in a whole
/// block without a branch, which compilers do for many bytes at a time.
pub(crate) fn first_of<const N: usize>(bytes: &[u8], characters: [u8; N]) -> Option<usize> {
    const BLOCK: usize = 32;
    let has =
        |block: &[u8; BLOCK], it: u8| block.iter().fold(0, |has, byte| has | u8::from(*byte == it)) != 0;
    let has_none =
        |block: &&[u8; BLOCK]| !characters.iter().fold(false, |has_one, it| has_one | has(block, *it));
    let begin = bytes.as_chunks().0.iter().take_while(has_none).count() * BLOCK;
    bytes[begin..].iter().position(|byte| characters.contains(byte)).map(|at| begin + at)
}

/// Writes bytes in hex.
pub(crate) fn hex(out: &mut impl Write, value: &[u8]) -> io::Result<()> {
    const PIECE: usize = 512;
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.write_all(b"x'")?;
    let mut digits = [0; 2 * PIECE];
    for piece in value.chunks(PIECE) {
        for (pair, byte) in digits.chunks_exact_mut(2).zip(piece) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        out.write_all(&digits[..2 * piece.len()])?;
    }
    out.write_all(b"'")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In any block, and at any place in it.
    #[test]
    fn the_first_of_them() {
        for length in 0..100 {
            let mut bytes = vec![b'a'; length];
            assert_eq!(first_of(&bytes, [0, b'\\']), None);
            for at in (0..length).rev() {
                bytes[at] = if at % 2 == 0 { 0 } else { b'\\' };
                assert_eq!(first_of(&bytes, [0, b'\\']), Some(at));
            }
        }
    }

    #[test]
    fn literals() {
        let column = |form, charset: Option<&str>| ColumnDefinition {
            name: "c".into(),
            column_type: "x".into(),
            form,
            charset: charset.map(str::to_owned),
        };
        let text = |charset| column(Form::Text, Some(charset));
        for (column, value, expected) in [
            (column(Form::Number, None), Some(&b"-12.50"[..]), "-12.50"),
            (column(Form::Float, None), Some(b"-0"), "'-0'"),
            (column(Form::Members, None), Some(b"18446744073709551615"), "18446744073709551615"),
            (column(Form::Bytes, None), Some(b"\0\xFF'"), "x'00FF27'"),
            (column(Form::Bytes, None), Some(b""), "x''"),
            (column(Form::Bytes, None), None, "NULL"),
            (text("utf8mb4"), Some("a'😀\n".as_bytes()), "'a\\'😀\\n'"),
            (text("utf8mb4"), Some(b"\xFF"), "x'FF'"),
            (text("latin1"), Some(b"\xE4"), "x'E4'"),
            (text("latin1"), Some(b"a\\"), "'a\\\\'"),
            (text("utf16"), Some(b"\0a"), "x'0061'"),
            (text("sjis"), Some(b"a"), "x'61'"),
        ] {
            let mut out = Vec::new();
            write(&mut out, &column, value).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
