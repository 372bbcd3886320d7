//! Aria files: whether a file is one, which server made it, and whether a page is whole.
//!
//! Everything here was observed on servers: MariaDB 10.11.19 with block sizes of 8 and 16 KiB, transactional
//! and not, with and without page checksums, plain and encrypted; MariaDB 11.8.6 with 8 KiB, plain. Every
//! page agreed, also after nearly all rows of a table of 12,648 pages had been deleted.
//!
//! - A table has an index file `.MAI`, whose header says how both files are made, and a data file `.MAD`.
//! - The data file has pages only in the `PAGE` row format. Other row formats have no checksums.
//! - Pages are numbered by their place in the file. The last four bytes are a CRC-32 (zlib's), little-endian,
//!   that starts from the page number, so a page in the wrong place is noticed. In data files it covers all
//!   other bytes, in index files the bytes in use. The two largest values stand for "no checksum".
//! - An encrypted page has the checksum of the plain one.

use crate::gtid::Uuid;
use crate::page::{PageState, is_zero};
use crate::{PageNo, PageSize, be};

const CONTROL_MAGIC: &[u8] = &[0xFE, 0xFE, 0x0C];
const TABLE_MAGIC: &[u8] = &[0xFE, 0xFE, 0x09];
const UUID_BYTES: usize = 16;

/// The uuid in an `aria_log_control`: identifies the server instance that its tables and logs belong to. A
/// restore or a copy keeps it. `None` if `file` is not a control file.
pub fn control_uuid(file: &[u8]) -> Option<Uuid> {
    const UUID_AT: usize = 4;
    let uuid = file.starts_with(CONTROL_MAGIC).then(|| file.get(UUID_AT..UUID_AT + UUID_BYTES)).flatten()?;
    uuid.try_into().ok().map(Uuid)
}

/// A copy of an `aria_log_control` with a new number of the newest log, beyond which recovery reads no logs:
/// the last number that follows the current one without a gap, according to `has_log`. A log beyond a gap is
/// not this server's. `None` if `file` is not a whole control file.
///
/// The file holds what was fixed when it was made, with the lengths of its two parts at 20 and 22; then a
/// CRC-32 of the rest, the LSN of the last checkpoint (3 bytes log number, 4 bytes offset), the number of the
/// newest log, and more; all little-endian.
pub fn control_with_newest_log(file: &[u8], has_log: impl Fn(u32) -> bool) -> Option<Vec<u8>> {
    const MADE_BYTES_AT: usize = 20;
    const REST_BYTES_AT: usize = 22;
    const MADE_BYTES_MIN: usize = REST_BYTES_AT + 2;
    const LOG_AT: usize = 4 + 7;

    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(*file.get(at..)?.first_chunk()?)));
    let (made_bytes, rest_bytes) = (u16_at(MADE_BYTES_AT)?, u16_at(REST_BYTES_AT)?);
    // The second part must not overlap the first, which stays as it is.
    if made_bytes < MADE_BYTES_MIN {
        return None;
    }
    let mut changed = file.starts_with(CONTROL_MAGIC).then(|| file.get(..made_bytes + rest_bytes))??.to_vec();
    let rest = changed.get_mut(made_bytes..)?;
    let (crc, content) = rest.split_first_chunk_mut::<4>()?;
    if u32::from_le_bytes(*crc) != crc32fast::hash(content) {
        return None;
    }
    let number = content.get_mut(LOG_AT - 4..)?.first_chunk_mut::<4>()?;
    let mut newest = u32::from_le_bytes(*number);
    while let Some(next) = newest.checked_add(1).filter(|next| has_log(*next)) {
        newest = next;
    }
    *number = newest.to_le_bytes();
    *crc = crc32fast::hash(content).to_le_bytes();
    Some(changed)
}

/// How an Aria table is made, from the header of its index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AriaTable {
    block_size: PageSize,
    index_start: u64,
    uuid: Uuid,
    paged: bool,
    transactional: bool,
    encrypted: bool,
}

/// Why a file is not the index file of an Aria table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AriaTableError {
    /// The header is longer than the bytes given; it fits into the first block.
    #[error("aria index file header ends after {bytes} bytes")]
    TooShort {
        /// Bytes given.
        bytes: usize,
    },
    /// The file begins differently.
    #[error("not the index file of an aria table")]
    NotAria,
    /// A block size that does not exist.
    #[error("aria index file has block size {bytes}")]
    BlockSize {
        /// As stored.
        bytes: u16,
    },
}

impl AriaTable {
    /// Reads the start of a `.MAI` file.
    pub fn parse(index_prefix: &[u8]) -> Result<AriaTable, AriaTableError> {
        // The header, then at the offset stored at `BASE` what was fixed when the table was made.
        const BASE: usize = 12;
        const ROW_FORMAT: usize = 22;
        const ROW_FORMAT_PAGE: u8 = 3;
        const BASE_INDEX_START: usize = 16;
        const BASE_OPTIONS: usize = 90;
        const BASE_OPTION_ENCRYPTED: u16 = 1;
        const BASE_BLOCK_SIZE: usize = 100;
        const BASE_TRANSACTIONAL: usize = 106;

        let too_short = AriaTableError::TooShort { bytes: index_prefix.len() };
        if !index_prefix.starts_with(TABLE_MAGIC) {
            return Err(AriaTableError::NotAria);
        }
        let base_at = usize::from(be::u16_at(index_prefix, BASE).ok_or(too_short)?);
        let base = index_prefix.get(base_at..).ok_or(too_short)?;
        let block_bytes = be::u16_at(base, BASE_BLOCK_SIZE).ok_or(too_short)?;
        Ok(AriaTable {
            block_size: PageSize::from_bytes(u32::from(block_bytes))
                .ok_or(AriaTableError::BlockSize { bytes: block_bytes })?,
            index_start: be::u64_at(base, BASE_INDEX_START).ok_or(too_short)?,
            uuid: Uuid(*base.first_chunk::<UUID_BYTES>().ok_or(too_short)?),
            paged: index_prefix.get(ROW_FORMAT) == Some(&ROW_FORMAT_PAGE),
            transactional: *base.get(BASE_TRANSACTIONAL).ok_or(too_short)? != 0,
            encrypted: be::u16_at(base, BASE_OPTIONS).ok_or(too_short)? & BASE_OPTION_ENCRYPTED != 0,
        })
    }

    /// The size of a page in both files: `aria_block_size` of the server.
    pub fn block_size(&self) -> PageSize {
        self.block_size
    }

    /// The uuid of the server instance that made the table, as in its control file.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Whether the table's changes are in the Aria log. If not, a copy made while it is written to cannot be
    /// recovered.
    pub fn is_transactional(&self) -> bool {
        self.transactional
    }

    /// Checks one page of the data file. In a row format without pages, the answer is
    /// [`PageState::Unverifiable`].
    pub fn check_data_page(&self, page_no: PageNo, bytes: &[u8]) -> PageState {
        if !self.paged {
            return PageState::Unverifiable;
        }
        self.check(page_no, bytes, |covered| covered.len())
    }

    /// Checks one page of the index file. The pages of the header change with the table's state and have no
    /// checksum.
    pub fn check_index_page(&self, page_no: PageNo, bytes: &[u8]) -> PageState {
        if u64::from(page_no.0) << self.block_size.log2() < self.index_start {
            return PageState::Unverifiable;
        }
        self.check(page_no, bytes, |covered| self.index_bytes_used(covered))
    }

    /// The bytes of an index page in use, as the page says. The offset of that field depends on the table.
    fn index_bytes_used(&self, page: &[u8]) -> usize {
        const USED_AT: usize = 2;
        /// LSN and transaction id.
        const TRANSACTIONAL_BYTES: usize = 13;
        let at = if self.transactional { TRANSACTIONAL_BYTES + USED_AT } else { USED_AT };
        be::u16_at(page, at).map_or(usize::MAX, usize::from)
    }

    /// `bytes_used` returns how many of the bytes before the checksum are covered by it.
    fn check(&self, page_no: PageNo, bytes: &[u8], bytes_used: impl FnOnce(&[u8]) -> usize) -> PageState {
        /// The smaller of the two values that stand for no checksum: bitmap pages, other pages.
        const NO_CHECKSUM_MIN: u32 = 0xFFFF_FFFE;
        if bytes.len() != self.block_size.bytes() {
            return PageState::Bad;
        }
        if is_zero(bytes) {
            return PageState::Zero;
        }
        let Some((covered, stored)) = bytes.split_last_chunk() else { return PageState::Bad };
        let stored = u32::from_le_bytes(*stored);
        if self.encrypted || stored >= NO_CHECKSUM_MIN {
            return PageState::Unverifiable;
        }
        let Some(used) = covered.get(..bytes_used(covered)) else { return PageState::Bad };
        let mut crc = crc32fast::Hasher::new_with_initial(page_no.0);
        crc.update(used);
        // A checksum that would mean "none" is stored as the largest value below.
        if crc.finalize().min(NO_CHECKSUM_MIN - 1) == stored { PageState::Good } else { PageState::Bad }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The head of a real index file: two columns, two keys, 8 KiB blocks, transactional.
    fn head() -> Vec<u8> {
        let mut head = vec![0; 8192];
        head[..24].copy_from_slice(&[
            0xFE, 0xFE, 9, 3, 0x0C, 2, 2, 0x0C, 0, 0xD7, 0, 0x87, 1, 7, 0, 2, 0, 0, 2, 0, 0, 0, 3, 3,
        ]);
        let base = &mut head[0x107..];
        base[..16].copy_from_slice(&[7; 16]);
        base[22..24].copy_from_slice(&[0x20, 0]);
        base[100..102].copy_from_slice(&[0x20, 0]);
        base[106] = 1;
        head
    }

    fn sealed(page_no: u32, used: usize) -> Vec<u8> {
        let mut page: Vec<u8> = (0..8192).map(|i| (i * 11) as u8).collect();
        page[2..4].copy_from_slice(&(used as u16).to_be_bytes());
        page[15..17].copy_from_slice(&(used as u16).to_be_bytes());
        let mut crc = crc32fast::Hasher::new_with_initial(page_no);
        crc.update(&page[..used]);
        page[8188..].copy_from_slice(&crc.finalize().to_le_bytes());
        page
    }

    #[test]
    fn control_files_are_recognised() {
        let mut control = vec![0xFE, 0xFE, 0x0C, 1];
        control.extend([9; 48]);
        assert_eq!(control_uuid(&control), Some(Uuid([9; 16])));
        assert_eq!(control_uuid(&control[..19]), None);
    }

    #[test]
    fn the_index_file_says_how_the_table_is_made() {
        let mut head = head();
        let table = AriaTable::parse(&head).unwrap();
        assert_eq!(table.block_size().bytes(), 8192);
        assert_eq!(table.uuid(), Uuid([7; 16]));
        assert!(table.is_transactional() && table.paged);
        head[0x107 + 106] = 0;
        head[22] = 1;
        let table = AriaTable::parse(&head).unwrap();
        assert!(!table.is_transactional() && !table.paged);
        assert_eq!(table.check_data_page(PageNo(1), &sealed(1, 8188)), PageState::Unverifiable);
        head[0x107 + 101] = 1;
        assert_eq!(AriaTable::parse(&head), Err(AriaTableError::BlockSize { bytes: 0x2001 }));
        assert_eq!(AriaTable::parse(&head[..0x107]), Err(AriaTableError::TooShort { bytes: 0x107 }));
        assert_eq!(AriaTable::parse(b"\xFE\xFE\x0C"), Err(AriaTableError::NotAria));
    }

    #[test]
    fn damage_and_misplacement_are_noticed() {
        let table = AriaTable::parse(&head()).unwrap();
        let data = sealed(5, 8188);
        assert_eq!(table.check_data_page(PageNo(5), &data), PageState::Good);
        assert_eq!(table.check_data_page(PageNo(6), &data), PageState::Bad);
        assert_eq!(table.check_data_page(PageNo(5), &data[1..]), PageState::Bad);
        let index = sealed(5, 1000);
        assert_eq!(table.check_index_page(PageNo(5), &index), PageState::Good);
        for at in (0..8192).step_by(7) {
            let mut damaged = data.clone();
            damaged[at] ^= 1;
            assert_eq!(table.check_data_page(PageNo(5), &damaged), PageState::Bad, "byte {at}");
            let mut damaged = index.clone();
            damaged[at] ^= 1;
            let expected = if (1000..8188).contains(&at) { PageState::Good } else { PageState::Bad };
            assert_eq!(table.check_index_page(PageNo(5), &damaged), expected, "byte {at}");
        }
        assert_eq!(table.check_index_page(PageNo(5), &sealed(5, 8188)), PageState::Good);
        let mut too_much = sealed(5, 8188);
        too_much[15..17].copy_from_slice(&8189u16.to_be_bytes());
        assert_eq!(table.check_index_page(PageNo(5), &too_much), PageState::Bad);
    }

    #[test]
    fn what_has_no_checksum_is_not_verified() {
        let mut table = AriaTable::parse(&head()).unwrap();
        let mut page = sealed(5, 8188);
        assert_eq!(table.check_index_page(PageNo(0), &page), PageState::Unverifiable, "the header");
        assert_eq!(table.check_data_page(PageNo(5), &[0; 8192]), PageState::Zero);
        for filler in [0xFFFF_FFFFu32, 0xFFFF_FFFE] {
            page[8188..].copy_from_slice(&filler.to_le_bytes());
            assert_eq!(table.check_data_page(PageNo(5), &page), PageState::Unverifiable);
        }
        table.encrypted = true;
        assert_eq!(table.check_data_page(PageNo(5), &sealed(5, 8188)), PageState::Unverifiable);
    }

    /// Both control files are from one server, before and after its log had grown to seven files.
    #[test]
    fn a_control_file_is_led_to_newer_logs() {
        let file = |rest: &[u8]| {
            let made = b"\xfe\xfe\x0c\x01\x18\x64\xda\xc3\xe5\x68\x11\xf1\xa3\x90\x02\xfc\x00\x00\x00\x01\x1e\x00\x16\x00\x00\x20\xb7\x34\x6a\x0a";
            [&made[..], rest].concat()
        };
        let first =
            file(b"\x1e\xe9\x19\x69\x01\x00\x00\x67\x4c\x06\x00\x01\x00\x00\x00\xe3\x00\x00\x00\x00\x00\x00");
        let later =
            file(b"\x5d\x23\xac\x81\x01\x00\x00\x67\x4c\x06\x00\x07\x00\x00\x00\xe3\x00\x00\x00\x00\x00\x00");
        assert_eq!(control_with_newest_log(&first, |log| log <= 7 || log == 100).unwrap(), later);
        assert_eq!(control_with_newest_log(&later, |log| log <= 3).unwrap(), later);
        assert_eq!(control_with_newest_log(&first[..51], |_| false), None);
        let mut torn = first.clone();
        torn[40] ^= 1;
        assert_eq!(control_with_newest_log(&torn, |_| false), None);
    }

    /// Found by the fuzzer: with a second part that began within the first one, a checksum replaced the
    /// server's uuid.
    #[test]
    fn the_parts_of_a_control_file_do_not_overlap() {
        const MADE_BYTES: usize = 13;
        let mut file = [&b"\xfe\xfe\x0c\x01"[..], &[7; 16], &[MADE_BYTES as u8, 0, 30, 0], &[0; 40]].concat();
        let crc = crc32fast::hash(&file[MADE_BYTES + 4..MADE_BYTES + 30]).to_le_bytes();
        file[MADE_BYTES..MADE_BYTES + 4].copy_from_slice(&crc);
        assert_eq!(control_with_newest_log(&file, |_| false), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..400), page_no: u32) {
            let _ = AriaTable::parse(&bytes);
            control_uuid(&bytes);
            control_with_newest_log(&bytes, |log| log == page_no);
            let mut head = head();
            head[0x107..0x107 + bytes.len().min(100)].copy_from_slice(&bytes[..bytes.len().min(100)]);
            let table = AriaTable::parse(&head).unwrap();
            head[..bytes.len()].copy_from_slice(&bytes);
            prop_assert_ne!(table.check_data_page(PageNo(page_no), &head), PageState::Good);
            prop_assert_ne!(table.check_index_page(PageNo(page_no), &head), PageState::Good);
        }
    }
}
