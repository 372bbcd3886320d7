//! The checksums that InnoDB writes into pages, now and in the past.
//!
//! "crc32c" everywhere is CRC-32C (Castagnoli, reflected, initial and final 0xffffffff), the ordinary one of
//! libraries and of the CPU instruction. Every function takes one whole page; in a slice too short for its
//! layout the missing parts count as empty.

/// What `innodb_checksum_algorithm=none` stores instead of a checksum.
pub const NO_CHECKSUM: u32 = 0xDEAD_BEEF;

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// CRC-32C of the bytes whose checksum is `crc`, followed by `bytes`.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}

/// Page header up to the flush LSN, which may be written past the buffer pool and is never covered.
const HEADER: std::ops::Range<usize> = 4..26;
/// First byte of the page body.
const BODY: usize = 38;
/// The trailer of a plain page: checksum again, low half of the LSN.
const TRAILER: usize = 8;

fn part(page: &[u8], range: std::ops::Range<usize>) -> &[u8] {
    page.get(range).unwrap_or_default()
}

fn body(page: &[u8]) -> &[u8] {
    part(page, BODY..page.len().saturating_sub(TRAILER))
}

/// The checksum of a plain page in the formats before `full_crc32`, and of every plain MySQL page: two CRCs,
/// XORed. Verified on MySQL 9.7.4 and MariaDB 10.11.19.
pub fn page_crc32(page: &[u8]) -> u32 {
    crc32c(part(page, HEADER)) ^ crc32c(body(page))
}

/// [`page_crc32`] as MySQL 5.7 computed it at first: each aligned group of eight bytes enters in reverse
/// order.
pub fn page_crc32_big_endian(page: &[u8]) -> u32 {
    crc32c_words_reversed(part(page, HEADER), HEADER.start) ^ crc32c_words_reversed(body(page), BODY)
}

/// The `full_crc32` checksum of MariaDB 10.5 and later: all stored bytes but the checksum itself, which
/// follows them. `stored` is the page or, if it is page_compressed, the stored part of it. Verified on
/// MariaDB 10.11.19.
pub fn full_crc32(stored: &[u8]) -> u32 {
    crc32c(part(stored, 0..stored.len().saturating_sub(4)))
}

/// The checksum of a `ROW_FORMAT=COMPRESSED` page: three CRCs, XORed. The LSN is not covered. Verified on
/// MySQL 9.7.4 and MariaDB 10.11.19.
pub fn zip_crc32(page: &[u8]) -> u32 {
    let [offsets, kind, rest] = zip_parts(page);
    crc32c(offsets) ^ crc32c(kind) ^ crc32c(rest)
}

/// [`zip_crc32`] in the byte order of early MySQL 5.7.
pub fn zip_crc32_big_endian(page: &[u8]) -> u32 {
    let [offsets, kind, rest] = zip_parts(page);
    crc32c_words_reversed(offsets, 4) ^ crc32c_words_reversed(kind, 24) ^ crc32c_words_reversed(rest, 34)
}

/// The `innodb` checksum of a `ROW_FORMAT=COMPRESSED` page: Adler-32 that starts at 0 instead of 1.
pub fn zip_adler32(page: &[u8]) -> u32 {
    let [offsets, kind, rest] = zip_parts(page);
    adler32(adler32(adler32(0, offsets), kind), rest)
}

/// The `innodb` checksum of a plain page, stored at its start: the default until MySQL 5.7 and MariaDB 10.2.
pub fn page_innodb_new(page: &[u8]) -> u32 {
    fold(part(page, HEADER)).wrapping_add(fold(body(page)))
}

/// The older `innodb` checksum, stored in the trailer next to [`page_innodb_new`]: covers the header only.
pub fn page_innodb_old(page: &[u8]) -> u32 {
    fold(part(page, 0..HEADER.end))
}

/// The parts that a compressed page's checksum covers: previous and next page, type, and from the space id to
/// the end.
fn zip_parts(page: &[u8]) -> [&[u8]; 3] {
    [part(page, 4..16), part(page, 24..26), part(page, 34..page.len())]
}

/// `bytes` begin at page offset `at`; the groups are aligned to the page.
fn crc32c_words_reversed(bytes: &[u8], at: usize) -> u32 {
    let (before, rest) = bytes.split_at(at.wrapping_neg().rem_euclid(8).min(bytes.len()));
    let (words, after) = rest.as_chunks::<8>();
    let crc = words.iter().fold(crc32c(before), |crc, word| {
        let mut word = *word;
        word.reverse();
        crc32c_append(crc, &word)
    });
    crc32c_append(crc, after)
}

/// InnoDB's own hash, which predates CRCs; one step per byte.
fn fold(bytes: &[u8]) -> u32 {
    const MASK: u32 = 1_463_735_687;
    const MASK_2: u32 = 1_653_893_711;
    bytes.iter().fold(0u32, |fold, &byte| {
        let byte = u32::from(byte);
        let mixed = (fold ^ byte ^ MASK_2) << 8;
        (mixed.wrapping_add(fold) ^ MASK).wrapping_add(byte)
    })
}

fn adler32(start: u32, bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    /// The most bytes that can be added before either sum could overflow.
    const RUN: usize = 5_552;
    let (mut a, mut b) = (start & 0xFFFF, start >> 16);
    for run in bytes.chunks(RUN) {
        for &byte in run {
            a += u32::from(byte);
            b += a;
        }
        a %= MODULUS;
        b %= MODULUS;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_is_castagnoli() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_append(crc32c(b"1234"), b"56789"), 0xE306_9283);
    }

    #[test]
    fn adler32_is_the_ordinary_one_from_1() {
        assert_eq!(adler32(1, b"Wikipedia"), 0x11E6_0398);
        let long = vec![0xFF; 100_000];
        let slow = long.iter().fold((1u64, 0u64), |(a, b), &x| {
            let a = (a + u64::from(x)) % 65_521;
            (a, (b + a) % 65_521)
        });
        assert_eq!(u64::from(adler32(1, &long)), slow.1 << 16 | slow.0);
    }

    #[test]
    fn reversed_words_are_aligned_to_the_page() {
        // From offset 4: four bytes as they are, one group reversed, two bytes as they are.
        let bytes = b"abcd12345678yz";
        assert_eq!(crc32c_words_reversed(bytes, 4), crc32c(b"abcd87654321yz"));
        assert_eq!(crc32c_words_reversed(b"ab", 1), crc32c(b"ab"));
    }

    #[test]
    fn short_slices_are_harmless() {
        for len in 0..64 {
            let page = vec![7u8; len];
            for f in [
                page_crc32,
                page_crc32_big_endian,
                full_crc32,
                zip_crc32,
                zip_crc32_big_endian,
                zip_adler32,
                page_innodb_new,
                page_innodb_old,
            ] {
                f(&page);
            }
        }
    }
}
