//! Converts text in the servers' character sets to UTF-8.
//!
//! Only character sets known to mean the same here and on the servers are converted (a test compares every
//! character with a server's own conversion); any other is refused by name.

use std::borrow::Cow;

use encoding_rs::Encoding;

use super::definition::ColumnDefinition;

/// How the bytes of a character set become text.
enum Conversion {
    /// The bytes are UTF-8.
    Utf8,
    /// ASCII and nothing else.
    Ascii,
    /// UTF-16, big or little endian; `ucs2` has no surrogate pairs.
    Utf16 { is_little_endian: bool },
    /// UTF-32, big endian.
    Utf32,
    /// As defined by a standard.
    Standard(&'static Encoding),
}

fn conversion(charset: &str) -> Option<Conversion> {
    Some(match charset {
        "utf8mb4" | "utf8mb3" | "utf8" => Conversion::Utf8,
        "ascii" => Conversion::Ascii,
        "ucs2" | "utf16" => Conversion::Utf16 { is_little_endian: false },
        "utf16le" => Conversion::Utf16 { is_little_endian: true },
        "utf32" => Conversion::Utf32,
        "latin1" => Conversion::Standard(encoding_rs::WINDOWS_1252),
        "latin2" => Conversion::Standard(encoding_rs::ISO_8859_2),
        "latin7" => Conversion::Standard(encoding_rs::ISO_8859_13),
        "cp1250" => Conversion::Standard(encoding_rs::WINDOWS_1250),
        "cp1251" => Conversion::Standard(encoding_rs::WINDOWS_1251),
        "cp1256" => Conversion::Standard(encoding_rs::WINDOWS_1256),
        "cp1257" => Conversion::Standard(encoding_rs::WINDOWS_1257),
        "koi8r" => Conversion::Standard(encoding_rs::KOI8_R),
        "macroman" => Conversion::Standard(encoding_rs::MACINTOSH),
        "gbk" => Conversion::Standard(encoding_rs::GBK),
        "cp932" => Conversion::Standard(encoding_rs::SHIFT_JIS),
        "euckr" => Conversion::Standard(encoding_rs::EUC_KR),
        _ => return None,
    })
}

/// Whether text of this character set can be converted.
pub(crate) fn is_known(charset: &str) -> bool {
    conversion(charset).is_some()
}

/// Decodes bytes in a character set; `None` if they are not text in it, or the set is not known.
pub(crate) fn decode<'v>(charset: &str, bytes: &'v [u8]) -> Option<Cow<'v, str>> {
    match conversion(charset)? {
        Conversion::Utf8 => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Conversion::Ascii => {
            std::str::from_utf8(bytes).ok().filter(|text| text.is_ascii()).map(Cow::Borrowed)
        }
        Conversion::Utf16 { is_little_endian } => {
            let (pairs, rest) = bytes.as_chunks::<2>();
            let unit = |pair: &[u8; 2]| {
                if is_little_endian { u16::from_le_bytes(*pair) } else { u16::from_be_bytes(*pair) }
            };
            let text: Result<String, _> = char::decode_utf16(pairs.iter().map(unit)).collect();
            text.ok().filter(|_| rest.is_empty()).map(Cow::Owned)
        }
        Conversion::Utf32 => {
            let (fours, rest) = bytes.as_chunks::<4>();
            let text: Option<String> =
                fours.iter().map(|four| char::from_u32(u32::from_be_bytes(*four))).collect();
            text.filter(|_| rest.is_empty()).map(Cow::Owned)
        }
        Conversion::Standard(encoding) => encoding.decode_without_bom_handling_and_without_replacement(bytes),
    }
}

/// The text of a value of a column.
pub(crate) fn text_of<'v>(column: &ColumnDefinition, value: &'v [u8]) -> Option<Cow<'v, str>> {
    decode(column.charset.as_deref()?, value)
}
