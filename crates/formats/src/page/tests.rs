#![allow(clippy::single_range_in_vec_init)] // one range of bytes that a checksum leaves out

use super::*;
use crate::SpaceId;
use proptest::prelude::*;

const LSN_VALUE: u64 = 0x0000_0007_1234_5678;

fn geometry(flavor: Flavor, flags: u32) -> Geometry {
    Geometry::new(flavor, SpaceId(5), flags).unwrap()
}

fn put(page: &mut [u8], at: usize, value: u32) {
    page[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// A page with a header, some body, and the low half of the LSN `lsn_from_end` bytes before its end.
fn blank(bytes: usize, number: u32, page_type: u16, lsn_from_end: Option<usize>) -> Vec<u8> {
    let mut page: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
    page[..BODY].fill(0);
    put(&mut page, PAGE_NO, number);
    page[LSN..LSN + 8].copy_from_slice(&LSN_VALUE.to_be_bytes());
    page[TYPE..TYPE + 2].copy_from_slice(&page_type.to_be_bytes());
    put(&mut page, 34, 5);
    if let Some(from_end) = lsn_from_end {
        put(&mut page, bytes - from_end, LSN_VALUE as u32);
    }
    page
}

fn seal_plain(page: &mut [u8], new: fn(&[u8]) -> u32) {
    let sum = new(page);
    let end = page.len() - 8;
    put(page, 0, sum);
    put(page, end, sum);
}

fn plain_page(number: u32) -> Vec<u8> {
    let mut page = blank(16384, number, 17855, Some(4));
    seal_plain(&mut page, checksum::page_crc32);
    page
}

fn full_crc32_page(number: u32) -> Vec<u8> {
    let mut page = blank(16384, number, 17855, Some(8));
    let sum = checksum::full_crc32(&page);
    put(&mut page, 16380, sum);
    page
}

fn zip_page(bytes: usize, number: u32, sum: fn(&[u8]) -> u32) -> Vec<u8> {
    let mut page = blank(bytes, number, 17855, None);
    let sum = sum(&page);
    put(&mut page, 0, sum);
    page
}

/// Every single damaged byte outside of `ignored` must be noticed.
fn assert_notices_damage(geometry: &Geometry, page: &[u8], ignored: &[Range<usize>]) {
    assert_eq!(check_page(geometry, PageNo(3), page), PageState::Good);
    for at in (0..page.len()).step_by(13).chain(0..64).chain(page.len() - 16..page.len()) {
        if ignored.iter().any(|range| range.contains(&at)) {
            continue;
        }
        let mut damaged = page.to_vec();
        damaged[at] ^= 0x40;
        assert_eq!(check_page(geometry, PageNo(3), &damaged), PageState::Bad, "byte {at}");
    }
}

const MARIADB_FULL: u32 = 0x15;
const MARIADB_FULL_COMPRESSED: u32 = 0x35;
const MARIADB_OLD: u32 = 0x21;
const MARIADB_ZIP_8K: u32 = 0x29;
const MARIADB_OLD_COMPRESSED: u32 = 0x10021;
const MYSQL: u32 = 0x4021;
const MYSQL_ZIP_1K: u32 = 0x4021 | 1 << 1;

#[test]
fn zero_pages_and_wrong_lengths() {
    for (flavor, flags) in [(Flavor::MariaDb, MARIADB_FULL), (Flavor::MySql, MYSQL)] {
        let geometry = geometry(flavor, flags);
        assert_eq!(check_page(&geometry, PageNo(3), &[0; 16384]), PageState::Zero);
        assert_eq!(check_page(&geometry, PageNo(3), &[0; 16383]), PageState::Bad);
        assert_eq!(check_page(&geometry, PageNo(3), &[]), PageState::Bad);
    }
    let mut page = [0; 16384];
    page[30] = 1;
    assert_eq!(check_page(&geometry(Flavor::MySql, MYSQL), PageNo(3), &page), PageState::Good);
    assert_eq!(check_page(&geometry(Flavor::MariaDb, MARIADB_OLD), PageNo(3), &page), PageState::Good);
    assert_eq!(check_page(&geometry(Flavor::MariaDb, MARIADB_FULL), PageNo(3), &page), PageState::Bad);
}

#[test]
fn damage_is_noticed_in_every_plain_format() {
    assert_notices_damage(&geometry(Flavor::MariaDb, MARIADB_FULL), &full_crc32_page(3), &[]);
    // Bytes 26 to 37 are outside of the old checksum by design.
    assert_notices_damage(&geometry(Flavor::MariaDb, MARIADB_OLD), &plain_page(3), &[26..38]);
    assert_notices_damage(&geometry(Flavor::MySql, MYSQL), &plain_page(3), &[26..38]);
    // The compressed row format leaves out the LSN too.
    let zip = zip_page(8192, 3, checksum::zip_crc32);
    assert_notices_damage(&geometry(Flavor::MariaDb, MARIADB_ZIP_8K), &zip, &[16..24, 26..34]);
    let zip = zip_page(1024, 3, checksum::zip_crc32);
    assert_notices_damage(&geometry(Flavor::MySql, MYSQL_ZIP_1K), &zip, &[16..24, 26..34]);
}

#[test]
fn a_page_of_another_place_is_bad() {
    for (flavor, flags, page) in [
        (Flavor::MariaDb, MARIADB_FULL, full_crc32_page(3)),
        (Flavor::MariaDb, MARIADB_OLD, plain_page(3)),
        (Flavor::MySql, MYSQL, plain_page(3)),
        (Flavor::MySql, MYSQL_ZIP_1K, zip_page(1024, 3, checksum::zip_crc32)),
    ] {
        assert_eq!(check_page(&geometry(flavor, flags), PageNo(3), &page), PageState::Good);
        assert_eq!(check_page(&geometry(flavor, flags), PageNo(4), &page), PageState::Bad);
    }
    let encrypted = blank(16384, 3, 15, None);
    assert_eq!(check_page(&geometry(Flavor::MySql, MYSQL), PageNo(3), &encrypted), PageState::Unverifiable);
    assert_eq!(check_page(&geometry(Flavor::MySql, MYSQL), PageNo(4), &encrypted), PageState::Bad);
}

#[test]
fn a_torn_page_is_bad() {
    let older = full_crc32_page(3);
    let mut newer = blank(16384, 3, 17855, None);
    newer[LSN + 7] += 1;
    put(&mut newer, 16376, LSN_VALUE as u32 + 1);
    newer[9000] ^= 1;
    let sum = checksum::full_crc32(&newer);
    put(&mut newer, 16380, sum);
    let geometry = geometry(Flavor::MariaDb, MARIADB_FULL);
    assert_eq!(check_page(&geometry, PageNo(3), &newer), PageState::Good);
    for sectors in 1..32 {
        let torn = [&newer[..sectors * 512], &older[sectors * 512..]].concat();
        assert_eq!(check_page(&geometry, PageNo(3), &torn), PageState::Bad, "{sectors} sectors");
    }
}

#[test]
fn checksums_of_the_past_are_accepted() {
    let old = geometry(Flavor::MariaDb, MARIADB_OLD);
    let mysql = geometry(Flavor::MySql, MYSQL);

    let mut innodb = blank(16384, 3, 17855, Some(4));
    let sum = checksum::page_innodb_new(&innodb);
    put(&mut innodb, 0, sum);
    let sum = checksum::page_innodb_old(&innodb);
    put(&mut innodb, 16376, sum);
    assert_notices_damage(&old, &innodb, &[26..38]);
    let by = |geometry: &Geometry, page: &[u8]| judge_page(geometry, PageNo(3), page).checksum;
    assert_eq!(by(&mysql, &innodb), Some(Checksum::Innodb));

    let mut big_endian = blank(16384, 3, 17855, Some(4));
    seal_plain(&mut big_endian, checksum::page_crc32_big_endian);
    assert_notices_damage(&mysql, &big_endian, &[26..38]);
    assert_eq!(check_page(&old, PageNo(3), &big_endian), PageState::Bad, "MariaDB does not know it");
    assert_eq!(by(&mysql, &big_endian), Some(Checksum::Crc32BigEndian));

    let packed = geometry(Flavor::MySql, MYSQL_ZIP_1K);
    let zip = zip_page(1024, 3, checksum::zip_adler32);
    assert_notices_damage(&packed, &zip, &[16..24, 26..34]);
    assert_eq!(by(&packed, &zip), Some(Checksum::Adler32));
    let zip = zip_page(1024, 3, checksum::zip_crc32_big_endian);
    assert_notices_damage(&packed, &zip, &[16..24, 26..34]);
    assert_eq!(by(&packed, &zip), Some(Checksum::Crc32BigEndian));
    assert_eq!(by(&mysql, &plain_page(3)), Some(Checksum::Crc32));
    let full = geometry(Flavor::MariaDb, MARIADB_FULL);
    assert_eq!(by(&full, &full_crc32_page(3)), Some(Checksum::FullCrc32));
}

#[test]
fn without_a_checksum_nothing_is_verified() {
    let mut none = blank(16384, 3, 17855, Some(4));
    put(&mut none, 0, checksum::NO_CHECKSUM);
    put(&mut none, 16376, checksum::NO_CHECKSUM);
    for (flavor, flags) in [(Flavor::MariaDb, MARIADB_OLD), (Flavor::MySql, MYSQL)] {
        assert_eq!(check_page(&geometry(flavor, flags), PageNo(3), &none), PageState::Unverifiable);
    }
    put(&mut none, 16380, 1);
    assert_eq!(check_page(&geometry(Flavor::MySql, MYSQL), PageNo(3), &none), PageState::Bad, "torn LSN");

    let zip = zip_page(1024, 3, |_| checksum::NO_CHECKSUM);
    assert_eq!(check_page(&geometry(Flavor::MySql, MYSQL_ZIP_1K), PageNo(3), &zip), PageState::Unverifiable);

    let mut before_4_0_14 = blank(16384, 3, 17855, Some(4));
    put(&mut before_4_0_14, 16376, (LSN_VALUE >> 32) as u32);
    assert_eq!(
        check_page(&geometry(Flavor::MySql, MYSQL), PageNo(3), &before_4_0_14),
        PageState::Unverifiable
    );
}

#[test]
fn mariadb_page_compression() {
    // full_crc32: only the stored part counts.
    let mut page = blank(16384, 3, 1 << 15 | 20, None);
    page[20 * 256..].fill(0);
    let sum = checksum::full_crc32(&page[..20 * 256]);
    put(&mut page, 20 * 256 - 4, sum);
    let full = geometry(Flavor::MariaDb, MARIADB_FULL_COMPRESSED);
    assert_notices_damage(&full, &page, &[20 * 256..16384]);
    for impossible in [0u16, 64, 200] {
        page[TYPE..TYPE + 2].copy_from_slice(&(1 << 15 | impossible).to_be_bytes());
        assert_eq!(check_page(&full, PageNo(3), &page), PageState::Bad);
    }
    // Before `full_crc32`: nothing stored tells whether the page is whole.
    let old = geometry(Flavor::MariaDb, MARIADB_OLD_COMPRESSED);
    for page_type in [34354, 37401] {
        let mut page = blank(16384, 3, page_type, None);
        assert_eq!(check_page(&old, PageNo(3), &page), PageState::Unverifiable);
        let numbered = if page_type == 34354 { 26..34 } else { 40..42 };
        for (number, place) in [(0, None), (1, Some(0)), (2, Some(1)), (6, Some(5)), (7, None)] {
            page[numbered.clone()].fill(0);
            page[numbered.end - 1] = number;
            assert_eq!(page_compressed_with(&old, &page), place);
            assert_eq!(page_compressed_with(&full, &page), None);
        }
        assert_eq!(check_page(&geometry(Flavor::MariaDb, MARIADB_OLD), PageNo(3), &page), PageState::Bad);
    }
}

#[test]
fn mariadb_encrypted_pages_have_a_checksum_of_the_ciphertext() {
    let mut page = blank(16384, 3, 17855, None);
    put(&mut page, 0, 1);
    let sum = checksum::full_crc32(&page);
    put(&mut page, 16380, sum);
    assert_notices_damage(&geometry(Flavor::MariaDb, MARIADB_FULL), &page, &[]);

    let mut page = blank(16384, 3, 17855, Some(4));
    put(&mut page, 26, 1);
    let sum = checksum::page_crc32(&page);
    put(&mut page, 30, sum);
    assert_notices_damage(
        &geometry(Flavor::MariaDb, MARIADB_OLD),
        &page,
        &[0..4, 26..30, 34..38, 16376..16384],
    );

    let mut page = blank(8192, 3, 17855, None);
    put(&mut page, 26, 1);
    let sum = checksum::zip_crc32(&page);
    put(&mut page, 30, sum);
    assert_notices_damage(&geometry(Flavor::MariaDb, MARIADB_ZIP_8K), &page, &[0..4, 16..24, 26..30]);
}

fn mysql_compressed(algorithm: u8, compress: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut original = blank(16384, 3, 17855, Some(4));
    for (i, byte) in original[BODY..16376].iter_mut().enumerate() {
        *byte = (i / 100) as u8;
    }
    seal_plain(&mut original, checksum::page_crc32);
    let body = compress(&original[BODY..]);
    assert!(body.len() < 8192);
    let mut page = vec![0; 16384];
    page[..BODY].copy_from_slice(&original[..BODY]);
    page[TYPE..TYPE + 2].copy_from_slice(&14u16.to_be_bytes());
    page[26] = 1;
    page[27] = algorithm;
    page[28..30].copy_from_slice(&17855u16.to_be_bytes());
    page[30..32].copy_from_slice(&(16384u16 - 38).to_be_bytes());
    page[32..34].copy_from_slice(&(body.len() as u16).to_be_bytes());
    page[BODY..BODY + body.len()].copy_from_slice(&body);
    page
}

fn zlib(plain: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn mysql_page_compression_is_undone_to_check() {
    let mysql = geometry(Flavor::MySql, MYSQL);
    for page in [mysql_compressed(1, zlib), mysql_compressed(2, lz4_flex::block::compress)] {
        assert_eq!(check_page(&mysql, PageNo(3), &page), PageState::Good);
        assert_eq!(check_page(&mysql, PageNo(4), &page), PageState::Bad);
        let stored = BODY + usize::from(be::u16_at(&page, 32).unwrap());
        for at in (8..26).chain(27..32).chain(BODY..stored) {
            let mut damaged = page.clone();
            damaged[at] ^= 0x21;
            assert_ne!(check_page(&mysql, PageNo(3), &damaged), PageState::Good, "byte {at}");
        }
    }
}

/// MySQL 9.7.4's import of a compressed table writes unused pages as zeros, compressed. The server treats
/// them as empty; such a page with any content is damaged.
#[test]
fn a_page_of_zeros_may_be_compressed() {
    let compressed = |original: &[u8]| {
        let body = zlib(&original[BODY..]);
        let mut page = vec![0; 16384];
        page[TYPE..TYPE + 2].copy_from_slice(&14u16.to_be_bytes());
        page[26..28].copy_from_slice(&[2, 1]);
        page[30..32].copy_from_slice(&(16384u16 - 38).to_be_bytes());
        page[32..34].copy_from_slice(&(body.len() as u16).to_be_bytes());
        page[BODY..BODY + body.len()].copy_from_slice(&body);
        page
    };
    let mysql = geometry(Flavor::MySql, MYSQL);
    let mut original = vec![0; 16384];
    assert_eq!(check_page(&mysql, PageNo(50), &compressed(&original)), PageState::Good);
    original[9000] = 1;
    assert_eq!(check_page(&mysql, PageNo(50), &compressed(&original)), PageState::Bad);
}

#[test]
fn the_doublewrite_area_is_found() {
    let mut page5 = vec![0; 16384];
    let size = PageSize::from_bytes(16384).unwrap();
    assert!(doublewrite_ranges(&page5, size).is_empty());
    put(&mut page5, 16384 - 190, 536_853_855);
    put(&mut page5, 16384 - 186, 64);
    put(&mut page5, 16384 - 182, 128);
    assert_eq!(doublewrite_ranges(&page5, size), [PageNo(64)..PageNo(128), PageNo(128)..PageNo(192)]);
    put(&mut page5, 16384 - 182, u32::MAX);
    assert_eq!(doublewrite_ranges(&page5, size).len(), 1);
    assert!(doublewrite_ranges(&page5[..16000], size).is_empty());
}

#[test]
fn a_page_says_its_number() {
    let page = plain_page(3);
    assert_eq!(page_no(&page), Some(PageNo(3)));
    assert_eq!(page_no(&page[..7]), None);
}

proptest! {
    /// Random bytes around every field that steers the check never panic, and are never good by chance.
    #[test]
    fn hostile_pages_are_harmless(
        flavor in prop_oneof![Just(Flavor::MariaDb), Just(Flavor::MySql)],
        flags: u32,
        head in proptest::collection::vec(any::<u8>(), BODY..200),
        page_type in prop_oneof![any::<u16>(), 13u16..18, Just(34354), Just(37401), 0x8000u16..0x8044],
    ) {
        if let Ok(geometry) = Geometry::new(flavor, SpaceId(1), flags & 0x1_7FFF) {
            let mut page = vec![0; geometry.page_size().bytes()];
            page[..head.len()].copy_from_slice(&head);
            page[TYPE..TYPE + 2].copy_from_slice(&page_type.to_be_bytes());
            let number = page_no(&page).unwrap();
            prop_assert_ne!(check_page(&geometry, number, &page), PageState::Good);
        }
    }

    #[test]
    fn any_page_5_gives_ranges(page in proptest::collection::vec(any::<u8>(), 0..4096)) {
        doublewrite_ranges(&page, PageSize::from_bytes(4096).unwrap());
        doublewrite_ranges(&page, PageSize::from_bytes(1024).unwrap());
    }
}
