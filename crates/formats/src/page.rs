//! Is this page whole? The checks that a hot copy needs, for every page format of both families.
//!
//! - A page is judged by its own bytes and its place; no key, no second read, no server.
//! - [`PageState::Good`] means that a checksum over the whole body matches. A page that a server would accept
//!   without checking the body (`innodb_checksum_algorithm=none`, encrypted MySQL pages, MariaDB's page
//!   compression before `full_crc32`) is [`PageState::Unverifiable`], never good.
//! - Every algorithm that the family's non-strict mode accepts is accepted, page by page.
//! - Tested on every page of instances with tables of each kind, MariaDB 10.11.19 and 11.8.6 (encrypted ones
//!   included) and MySQL 9.7.4 (not encrypted), 16 KiB pages: none was bad. Checksums of older versions
//!   follow the servers' sources.
//! - The page number is at offset 4 in every format, outside of what is encrypted or compressed, and is
//!   checked. It counts within the tablespace. Only in the doublewrite area of the system tablespace is it
//!   the number of another page; pages there must not be checked at all: [`doublewrite_ranges`].

use std::ops::Range;

use crate::{Flavor, Geometry, PageNo, PageSize, be, checksum, tablespace::COMPRESSION_ALGORITHMS};

/// Offsets in the header of every page.
const CHECKSUM: usize = 0;
const PAGE_NO: usize = 4;
const LSN: usize = 16;
const TYPE: usize = 24;
/// Eight bytes of varying meaning: flush LSN, key version and checksum, or what MySQL's compression needs.
const FLUSH: Range<usize> = 26..34;
/// First byte after the header.
const BODY: usize = 38;

/// The verdict on one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageState {
    /// All bytes are zero: never written, or freed.
    Zero,
    /// The checksum is right and the page belongs here.
    Good,
    /// Torn, damaged, or from another place: read it again.
    Bad,
    /// Nothing stored tells whether the page is whole: without the key or the decompressor, only equal reads
    /// do.
    Unverifiable,
}

/// The algorithm that showed a page to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checksum {
    /// MariaDB's, over all stored bytes.
    FullCrc32,
    /// What both families write unless told otherwise.
    Crc32,
    /// [`Crc32`](Self::Crc32), as early MySQL 5.7 computed it.
    Crc32BigEndian,
    /// InnoDB's own, from before 5.6.
    Innodb,
    /// For `ROW_FORMAT=COMPRESSED`, before CRC-32.
    Adler32,
}

impl Checksum {
    /// All of them, in the order of their numbers.
    pub const ALL: [Checksum; 5] =
        [Self::FullCrc32, Self::Crc32, Self::Crc32BigEndian, Self::Innodb, Self::Adler32];

    /// The name in reports: that of `innodb_checksum_algorithm`, if the server has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::FullCrc32 => "full_crc32",
            Self::Crc32 => "crc32",
            Self::Crc32BigEndian => "crc32_big_endian",
            Self::Innodb => "innodb",
            Self::Adler32 => "adler32",
        }
    }
}

/// The verdict on one page, and its basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The verdict.
    pub state: PageState,
    /// The checksum of a good page; `None` also for a page that servers treat as empty.
    pub checksum: Option<Checksum>,
}

impl Judged {
    const BAD: Judged = Judged::by(PageState::Bad);
    const UNVERIFIABLE: Judged = Judged::by(PageState::Unverifiable);
    /// A page that servers treat as empty has no checksum.
    const EMPTY: Judged = Judged::by(PageState::Good);

    const fn by(state: PageState) -> Judged {
        Judged { state, checksum: None }
    }

    fn good(checksum: Checksum) -> Judged {
        Judged { state: PageState::Good, checksum: Some(checksum) }
    }

    fn good_if(whole: bool, checksum: Checksum) -> Judged {
        if whole { Judged::good(checksum) } else { Judged::BAD }
    }
}

/// The index that a page claims to belong to: the id in the header of index pages, including those of R-trees
/// and of MariaDB's clustered indexes with instant columns. `None` for pages of other types.
#[must_use]
pub fn page_index_id(page: &[u8]) -> Option<u64> {
    const INDEX_TYPES: [u16; 3] = [17855, 17854, 18];
    const INDEX_ID: usize = BODY + 28;
    let page_type = be::u16_at(page, TYPE)?;
    let id = be::u64_at(page, INDEX_ID)?;
    INDEX_TYPES.contains(&page_type).then_some(id)
}

/// MariaDB before `full_crc32`: the algorithm that a page is compressed with, as a place in
/// [`COMPRESSION_ALGORITHMS`]. There each page tells, also one that was encrypted afterwards (verified on
/// 10.11.19); later the flags of the tablespace do.
#[must_use]
pub fn page_compressed_with(geometry: &Geometry, page: &[u8]) -> Option<usize> {
    if geometry.flavor() != Flavor::MariaDb || geometry.full_crc32() || !geometry.page_compressed() {
        return None;
    }
    let number = match be::u16_at(page, TYPE)? {
        mariadb::PAGE_COMPRESSED => be::u64_at(page, FLUSH.start)?,
        // The size comes first.
        mariadb::PAGE_COMPRESSED_ENCRYPTED => be::u16_at(page, BODY + 2)?.into(),
        _ => return None,
    };
    let place = usize::try_from(number).ok()?.checked_sub(1)?;
    (place < COMPRESSION_ALGORITHMS.len()).then_some(place)
}

/// The page number that the page says it has.
pub fn page_no(page: &[u8]) -> Option<PageNo> {
    be::u32_at(page, PAGE_NO).map(PageNo)
}

/// Checks one page of the tablespace that `geometry` describes; `page_no` is its number within the
/// tablespace.
pub fn check_page(geometry: &Geometry, page_no: PageNo, bytes: &[u8]) -> PageState {
    judge_page(geometry, page_no, bytes).state
}

/// Like [`check_page`], but with the algorithm.
pub fn judge_page(geometry: &Geometry, page_no: PageNo, bytes: &[u8]) -> Judged {
    if bytes.len() != geometry.page_size().bytes() {
        return Judged::BAD;
    }
    if is_zero(bytes) {
        return Judged::by(PageState::Zero);
    }
    let Some(header) = Header::read(bytes) else { return Judged::BAD };
    let judged = match geometry.flavor() {
        Flavor::MariaDb if geometry.full_crc32() => mariadb::full_crc32(&header, bytes),
        Flavor::MariaDb => mariadb::old(geometry, &header, bytes),
        Flavor::MySql => mysql::check(geometry, &header, bytes),
    };
    // A page that was never used has no number. MySQL's import of a compressed table writes such pages
    // compressed, too.
    let is_empty = judged == Judged::EMPTY || is_blank(bytes);
    match judged.state {
        PageState::Good | PageState::Unverifiable if header.page_no != page_no && !is_empty => Judged::BAD,
        _ => judged,
    }
}

/// The page numbers of the doublewrite area, from page 5 of the system tablespace. Its pages are copies of
/// others, of any format, and must be neither checked nor compared; recovery rewrites what it uses. Empty if
/// the page describes no such area.
///
/// Verified on MariaDB 10.11.19, where it is pages 64 to 191; page 5 is readable even when encrypted. MySQL
/// 9.7.4 describes the same area, though it writes to separate files.
pub fn doublewrite_ranges(page5: &[u8], page_size: PageSize) -> Vec<Range<PageNo>> {
    const MAGIC: u32 = 536_853_855;
    const MAGIC_FROM_END: usize = 190;
    let Some(at) = page_size.bytes().checked_sub(MAGIC_FROM_END) else { return Vec::new() };
    if be::u32_at(page5, at) != Some(MAGIC) {
        return Vec::new();
    }
    let pages = page_size.extent_pages();
    [at + 4, at + 8]
        .into_iter()
        .filter_map(|at| be::u32_at(page5, at))
        .filter_map(|first| Some(PageNo(first)..PageNo(first.checked_add(pages)?)))
        .collect()
}

/// Whether all bytes of a page are zero. Compares with `memcmp`, which is vectorised in every build and stops
/// at the first difference.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    ZEROS.get(..bytes.len()) == Some(bytes)
}

/// Whether all bytes are zero except the eight that servers ignore when they judge an empty page.
fn is_blank(bytes: &[u8]) -> bool {
    bytes
        .split_at_checked(FLUSH.end)
        .is_some_and(|(head, rest)| is_zero(&head[..FLUSH.start]) && is_zero(rest))
}

struct Header {
    checksum: u32,
    page_no: PageNo,
    lsn: u64,
    page_type: u16,
    /// The first half of [`FLUSH`]: MariaDB's key version before `full_crc32`.
    flush_high: u32,
    /// The second half: the checksum of an encrypted page.
    flush_low: u32,
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Header> {
        Some(Header {
            checksum: be::u32_at(bytes, CHECKSUM)?,
            page_no: page_no(bytes)?,
            lsn: be::u64_at(bytes, LSN)?,
            page_type: be::u16_at(bytes, TYPE)?,
            flush_high: be::u32_at(bytes, FLUSH.start)?,
            flush_low: be::u32_at(bytes, FLUSH.start + 4)?,
        })
    }

    fn lsn_low(&self) -> u32 {
        self.lsn as u32
    }

    fn lsn_high(&self) -> u32 {
        (self.lsn >> 32) as u32
    }
}

/// A plain page with a checksum at both ends. `page` may have been decompressed, hence no geometry.
fn plain(flavor: Flavor, header: &Header, page: &[u8]) -> Judged {
    let end = page.len().saturating_sub(8);
    let (Some(trailer), Some(lsn_low)) = (be::u32_at(page, end), be::u32_at(page, end + 4)) else {
        return Judged::BAD;
    };
    if lsn_low != header.lsn_low() {
        return Judged::BAD;
    }
    let stored = header.checksum;
    if stored == trailer && stored == checksum::page_crc32(page) {
        return Judged::good(Checksum::Crc32);
    }
    if stored == trailer && flavor == Flavor::MySql && stored == checksum::page_crc32_big_endian(page) {
        return Judged::good(Checksum::Crc32BigEndian);
    }
    if is_blank(page) {
        return Judged::EMPTY;
    }
    // Before 4.0.14 the trailer was the whole LSN; `none` and the header-only checksum came later.
    let trailer_fits = trailer == header.lsn_high()
        || trailer == checksum::NO_CHECKSUM
        || trailer == checksum::page_innodb_old(page);
    match stored {
        _ if !trailer_fits => Judged::BAD,
        0 | checksum::NO_CHECKSUM => Judged::UNVERIFIABLE,
        _ => Judged::good_if(stored == checksum::page_innodb_new(page), Checksum::Innodb),
    }
}

/// A `ROW_FORMAT=COMPRESSED` page, judged by the checksum `stored`, which is not always in the usual place.
/// Such a page has no trailer.
fn zip(flavor: Flavor, stored: u32, page: &[u8]) -> Judged {
    if stored == checksum::zip_crc32(page) {
        return Judged::good(Checksum::Crc32);
    }
    if stored == checksum::zip_adler32(page) {
        return Judged::good(Checksum::Adler32);
    }
    if flavor == Flavor::MySql && stored == checksum::zip_crc32_big_endian(page) {
        return Judged::good(Checksum::Crc32BigEndian);
    }
    if stored == checksum::NO_CHECKSUM { Judged::UNVERIFIABLE } else { Judged::BAD }
}

mod mariadb {
    use super::*;

    /// Page types of page compression before `full_crc32`: the stored bytes have no checksum of their own.
    pub(super) const PAGE_COMPRESSED: u16 = 34_354;
    pub(super) const PAGE_COMPRESSED_ENCRYPTED: u16 = 37_401;
    /// `full_crc32`: the other bits of the type are the stored size in units of 256 bytes.
    const STORED_SIZE: u16 = 1 << 15;

    /// Covers plain, page_compressed and encrypted pages alike: the checksum is that of the stored bytes.
    /// Verified on MariaDB 10.11.19 and 11.8.6.
    pub(super) fn full_crc32(header: &Header, page: &[u8]) -> Judged {
        let compressed = header.page_type & STORED_SIZE != 0;
        let stored_bytes =
            if compressed { usize::from(header.page_type & !STORED_SIZE) << 8 } else { page.len() };
        if compressed && stored_bytes >= page.len() {
            return Judged::BAD;
        }
        let Some(stored) = page.get(..stored_bytes) else { return Judged::BAD };
        let Some(at) = stored.len().checked_sub(4) else { return Judged::BAD };
        if be::u32_at(stored, at) != Some(checksum::full_crc32(stored)) {
            return Judged::BAD;
        }
        let key_version = header.checksum;
        let plain = !compressed && key_version == 0;
        let fits = !plain || be::u32_at(stored, at.wrapping_sub(4)) == Some(header.lsn_low());
        Judged::good_if(fits, Checksum::FullCrc32)
    }

    pub(super) fn old(geometry: &Geometry, header: &Header, page: &[u8]) -> Judged {
        if geometry.page_compressed()
            && matches!(header.page_type, PAGE_COMPRESSED | PAGE_COMPRESSED_ENCRYPTED)
        {
            return Judged::UNVERIFIABLE;
        }
        let as_plain = if geometry.row_compressed() {
            zip(Flavor::MariaDb, header.checksum, page)
        } else {
            plain(Flavor::MariaDb, header, page)
        };
        // The field of the key version may hold something else: a sequence number in R-tree pages, a flush
        // LSN in old system tablespaces. So the page has to fail as a plain one first.
        match as_plain.state {
            PageState::Bad if header.flush_high != 0 => encrypted(geometry, header, page),
            _ => as_plain,
        }
    }

    /// The checksum of the ciphertext follows the key version; the one at offset 0 is still that of the plain
    /// page.
    fn encrypted(geometry: &Geometry, header: &Header, page: &[u8]) -> Judged {
        let stored = header.flush_low;
        if geometry.row_compressed() {
            return zip(Flavor::MariaDb, stored, page);
        }
        match stored {
            checksum::NO_CHECKSUM => Judged::UNVERIFIABLE,
            _ if stored == checksum::page_crc32(page) => Judged::good(Checksum::Crc32),
            _ => Judged::good_if(stored == checksum::page_innodb_new(page), Checksum::Innodb),
        }
    }
}

mod mysql {
    use super::*;

    const COMPRESSED: u16 = 14;
    const ENCRYPTED: u16 = 15;
    const COMPRESSED_AND_ENCRYPTED: u16 = 16;
    const ENCRYPTED_RTREE: u16 = 17;

    pub(super) fn check(geometry: &Geometry, header: &Header, page: &[u8]) -> Judged {
        match header.page_type {
            // Header in clear, checksum of the plain page, trailer ciphertext. Verified on MySQL 9.7.4.
            ENCRYPTED | COMPRESSED_AND_ENCRYPTED | ENCRYPTED_RTREE => Judged::UNVERIFIABLE,
            _ if geometry.row_compressed() => zip(Flavor::MySql, header.checksum, page),
            COMPRESSED => compressed(page),
            _ => plain(Flavor::MySql, header, page),
        }
    }

    /// A page of `COMPRESSION='zlib'` or `'lz4'`: its checksum is that of the original page, so that page has
    /// to be restored first. Verified on MySQL 9.7.4.
    fn compressed(page: &[u8]) -> Judged {
        restore(page).map_or(Judged::BAD, |original| {
            Header::read(&original).map_or(Judged::BAD, |header| plain(Flavor::MySql, &header, &original))
        })
    }

    /// Layout of [`FLUSH`] in such a page: version, algorithm, then as 16-bit numbers the original type, the
    /// original size without header, the compressed size.
    fn restore(page: &[u8]) -> Option<Vec<u8>> {
        const ZLIB: u8 = 1;
        const LZ4: u8 = 2;
        let algorithm = *page.get(FLUSH.start + 1)?;
        let original_type = page.get(FLUSH.start + 2..FLUSH.start + 4)?;
        let original_bytes = usize::from(be::u16_at(page, FLUSH.start + 4)?);
        let compressed_bytes = usize::from(be::u16_at(page, FLUSH.start + 6)?);
        let compressed = page.get(BODY..BODY + compressed_bytes)?;
        if BODY + original_bytes != page.len() {
            return None;
        }
        let mut original = vec![0; page.len()];
        let (head, body) = original.split_at_mut_checked(BODY)?;
        head[..TYPE].copy_from_slice(&page[..TYPE]);
        head[TYPE..FLUSH.start].copy_from_slice(original_type);
        head[FLUSH.end..].copy_from_slice(&page[FLUSH.end..BODY]);
        let restored_bytes = match algorithm {
            ZLIB => inflate(compressed, body)?,
            LZ4 => lz4_flex::block::decompress_into(compressed, body).ok()?,
            _ => return None,
        };
        (restored_bytes == original_bytes).then_some(original)
    }

    fn inflate(compressed: &[u8], into: &mut [u8]) -> Option<usize> {
        use flate2::{Decompress, FlushDecompress, Status};
        let mut zlib = Decompress::new(true);
        match zlib.decompress(compressed, into, FlushDecompress::Finish) {
            Ok(Status::StreamEnd) => usize::try_from(zlib.total_out()).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
