//! Bytes that are lower-case hex in JSON.

use std::{fmt, str};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::{Zeroize, ZeroizeOnDrop};

fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// Lower-case hex of `bytes`.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    encode(bytes, &mut out);
    out.into_iter().map(char::from).collect()
}

/// Decodes hex strictly: lower case only, and an even number of digits.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().copied().map(byte_of).collect()
}

/// The byte that two digits stand for, lower case only.
pub(crate) fn byte_of([high, low]: [u8; 2]) -> Option<u8> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    Some(digit(high)? << 4 | digit(low)?)
}

/// N bytes, shown and stored as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> str::FromStr for Hex<N> {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        from_hex(text).and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(NotHex { digits: N * 2 })
    }
}

/// Text that is not the expected hex.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("not {digits} lower-case hex digits")]
pub struct NotHex {
    /// Expected number of digits.
    digits: usize,
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HexVisitor).map(Self)
    }
}

struct HexVisitor<const N: usize>;

impl<const N: usize> de::Visitor<'_> for HexVisitor<N> {
    type Value = [u8; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lower-case hex digits", N * 2)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<[u8; N], E> {
        text.parse::<Hex<N>>().map(|hex| hex.0).map_err(E::custom)
    }
}

/// 32 secret bytes: never shown, wiped when dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret32(pub [u8; 32]);

impl fmt::Debug for Secret32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret32(secret)")
    }
}

impl Serialize for Secret32 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut digits = zeroize::Zeroizing::new(Vec::with_capacity(64));
        encode(&self.0, &mut digits);
        serializer.serialize_str(str::from_utf8(&digits).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Secret32 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HexVisitor).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_strict_both_ways() {
        assert_eq!(to_hex(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(from_hex("001fff"), Some(vec![0, 0x1f, 0xff]));
        for bad in ["0", "0g", "FF", "é"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
        assert!(serde_json::from_str::<Hex<2>>("\"0102\"").is_ok());
        assert!(serde_json::from_str::<Hex<2>>("\"010203\"").is_err());
        assert_eq!(format!("{:?}", Secret32([7; 32])), "Secret32(secret)");
    }
}
