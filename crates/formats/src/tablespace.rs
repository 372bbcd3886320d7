//! What page 0 says about a tablespace: its id and the format of every page in it.
//!
//! The flags are read as strictly as the servers read them: bits that no release ever set give an error,
//! because a format that is not understood cannot be checked.

use crate::{Flavor, PageSize, SpaceId, be};

/// Offsets in page 0. The space id is stored twice: in the page header and in the tablespace header.
const SPACE_ID: usize = 34;
const HEADER: usize = 38;
const FLAGS: usize = HEADER + 16;
/// Bytes of page 0 that [`Geometry::parse`] needs.
pub const PREFIX_BYTES_MIN: usize = FLAGS + 4;

/// MariaDB's algorithms of page compression, from number 1 on (`PAGE_ZLIB_ALGORITHM` and so on). All but the
/// first come from plugins named `provider_` and the algorithm.
pub const COMPRESSION_ALGORITHMS: [&str; 6] = ["zlib", "lz4", "lzo", "lzma", "bzip2", "snappy"];

/// MySQL: the flag of tablespaces that several tables can share (`FSP_FLAGS_POS_SHARED`): general ones, and the
/// dictionary's. The system tablespace does not have it.
pub const MYSQL_FLAG_SHARED: u32 = 1 << 11;

/// Whether the flags say that several tables can share the tablespace. MariaDB's never do.
pub fn is_shared(flavor: Flavor, flags: u32) -> bool {
    flavor == Flavor::MySql && flags & MYSQL_FLAG_SHARED != 0
}

/// The format of one tablespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    flavor: Flavor,
    space_id: SpaceId,
    flags: u32,
    page_size: PageSize,
    logical_page_size: PageSize,
}

/// Why page 0 does not describe a tablespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Fewer than [`PREFIX_BYTES_MIN`] bytes were given.
    #[error("page 0 ends after {bytes} bytes, its header needs {PREFIX_BYTES_MIN}")]
    TooShort {
        /// Bytes given.
        bytes: usize,
    },
    /// The two copies of the space id differ: torn, damaged, or not the first file of a tablespace.
    #[error("page 0 names tablespace {page} in the page header and {tablespace} in the tablespace header")]
    SpaceIdMismatch {
        /// In the page header.
        page: SpaceId,
        /// In the tablespace header.
        tablespace: SpaceId,
    },
    /// No release of this family writes these flags.
    #[error("tablespace {space_id} has flags {flags:#x}, which {flavor} does not use")]
    UnknownFlags {
        /// The tablespace.
        space_id: SpaceId,
        /// As stored.
        flags: u32,
        /// The family whose flags were expected.
        flavor: Flavor,
    },
}

impl Geometry {
    /// Reads the start of page 0. `None` when every byte given is zero: a file that the server has created
    /// but whose first page is still only in its memory (verified on MariaDB 10.11.19: such a file must be
    /// copied as it is, redo initialises all of it).
    ///
    /// Not for the second and later files of a system tablespace: they have no tablespace header and share
    /// the geometry of the first.
    pub fn parse(flavor: Flavor, page0_prefix: &[u8]) -> Result<Option<Geometry>, GeometryError> {
        let (Some(page), Some(tablespace), Some(flags)) = (
            be::u32_at(page0_prefix, SPACE_ID),
            be::u32_at(page0_prefix, HEADER),
            be::u32_at(page0_prefix, FLAGS),
        ) else {
            return Err(GeometryError::TooShort { bytes: page0_prefix.len() });
        };
        if page0_prefix.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if page != tablespace {
            return Err(GeometryError::SpaceIdMismatch {
                page: SpaceId(page),
                tablespace: SpaceId(tablespace),
            });
        }
        Geometry::new(flavor, SpaceId(page), flags).map(Some)
    }

    /// The geometry that `flags` (`FSP_SPACE_FLAGS`) stand for.
    pub fn new(flavor: Flavor, space_id: SpaceId, flags: u32) -> Result<Geometry, GeometryError> {
        match flavor {
            Flavor::MariaDb if flags & mariadb::FULL_CRC32 != 0 => mariadb::full_crc32_sizes(flags),
            Flavor::MariaDb => mariadb::old_sizes(flags),
            Flavor::MySql => mysql::sizes(flags),
        }
        .map(|(page_size, logical_page_size)| Geometry {
            flavor,
            space_id,
            flags,
            page_size,
            logical_page_size,
        })
        .ok_or(GeometryError::UnknownFlags { space_id, flags, flavor })
    }

    /// The family of the server that wrote the file.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// The tablespace's id.
    pub fn space_id(&self) -> SpaceId {
        self.space_id
    }

    /// The flags as stored.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Size of a page in the file: the unit of page numbers.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Size of a page in the server's memory: `innodb_page_size`. Larger than [`Geometry::page_size`] in
    /// `ROW_FORMAT=COMPRESSED` tables.
    pub fn logical_page_size(&self) -> PageSize {
        self.logical_page_size
    }

    /// Whether several tables can share the tablespace, by its flags ([`is_shared`]).
    pub fn is_shared(&self) -> bool {
        is_shared(self.flavor, self.flags)
    }

    /// MariaDB's default format since 10.5: one checksum over all stored bytes.
    pub fn full_crc32(&self) -> bool {
        self.flavor == Flavor::MariaDb && self.flags & mariadb::FULL_CRC32 != 0
    }

    /// `ROW_FORMAT=COMPRESSED`. In MariaDB never `full_crc32`.
    pub fn row_compressed(&self) -> bool {
        !self.full_crc32() && zip_shift(self.flags) != 0
    }

    /// MariaDB's `PAGE_COMPRESSED=1`: pages have holes at their end that are worth keeping. Always false for
    /// MySQL, whose page compression shows in the type of each page only.
    pub fn page_compressed(&self) -> bool {
        match self.flavor {
            Flavor::MariaDb if self.full_crc32() => self.flags & mariadb::FULL_CRC32_ALGORITHM != 0,
            Flavor::MariaDb => self.flags & mariadb::PAGE_COMPRESSION != 0,
            Flavor::MySql => false,
        }
    }

    /// The algorithm of MariaDB's page compression, as `innodb_compression_algorithm` names it. `None` if
    /// pages are not compressed, or if the flags do not tell: before `full_crc32`, each page may have been
    /// compressed by another algorithm.
    pub fn compression_algorithm(&self) -> Option<&'static str> {
        let numbered = self.full_crc32().then_some((self.flags & mariadb::FULL_CRC32_ALGORITHM) >> 5)?;
        let name = COMPRESSION_ALGORITHMS.get(usize::try_from(numbered).ok()?.checked_sub(1)?)?;
        Some(name)
    }

    /// Whether pages may be encrypted. MySQL has a flag for it. MariaDB keeps its encryption metadata after
    /// the extent descriptors of page 0, hence the page as an argument; `None` if `page0` ends before that.
    ///
    /// Says nothing about a single page: pages written before encryption was switched on stay plain.
    pub fn encrypted(&self, page0: &[u8]) -> Option<bool> {
        match self.flavor {
            Flavor::MySql => Some(self.flags & mysql::ENCRYPTION != 0),
            Flavor::MariaDb => mariadb::has_crypt_data(self.page_size, self.logical_page_size, page0),
        }
    }
}

/// Bits 1 to 4: the compressed page size is 512 << this; 0 = not compressed.
fn zip_shift(flags: u32) -> u32 {
    flags >> 1 & 15
}

/// Physical and logical page size of the flags that MySQL, and MariaDB before `full_crc32`, share in bits 0
/// to 9.
fn shared_sizes(flags: u32) -> Option<(PageSize, PageSize)> {
    const POST_ANTELOPE: u32 = 1;
    const ATOMIC_BLOBS: u32 = 1 << 5;
    // 512 << shift, and 0 for 16 KiB, which is never written as 5.
    const SHIFT_16K: u32 = 5;
    let page_shift = match flags >> 6 & 15 {
        0 => SHIFT_16K,
        shift @ (3 | 4 | 6 | 7) => shift,
        _ => return None,
    };
    let logical = PageSize::from_log2(9 + page_shift)?;
    let zip = zip_shift(flags);
    let blobs = flags & (POST_ANTELOPE | ATOMIC_BLOBS);
    if blobs == ATOMIC_BLOBS || zip != 0 && blobs != POST_ANTELOPE | ATOMIC_BLOBS {
        return None;
    }
    match zip {
        0 => Some((logical, logical)),
        zip if zip <= page_shift.min(SHIFT_16K) => Some((PageSize::from_log2(9 + zip)?, logical)),
        _ => None,
    }
}

mod mariadb {
    use super::{HEADER, PageSize, shared_sizes};

    /// Set in every `full_crc32` tablespace; in the older layout it would be a compressed page size of 16 MiB
    /// or more.
    pub(super) const FULL_CRC32: u32 = 1 << 4;
    /// `full_crc32`: the compression algorithm, 0 = none.
    pub(super) const FULL_CRC32_ALGORITHM: u32 = 7 << 5;
    /// Older layout.
    pub(super) const PAGE_COMPRESSION: u32 = 1 << 16;
    /// Older layout: what MySQL 5.6 used for DATA DIRECTORY may be left over in bit 10.
    const DATA_DIR: u32 = 1 << 10;

    pub(super) fn full_crc32_sizes(flags: u32) -> Option<(PageSize, PageSize)> {
        let shift = flags & 15;
        let known = shift | FULL_CRC32 | FULL_CRC32_ALGORITHM;
        if flags & !known != 0 || !(3..=7).contains(&shift) {
            return None;
        }
        PageSize::from_log2(9 + shift).map(|size| (size, size))
    }

    pub(super) fn old_sizes(flags: u32) -> Option<(PageSize, PageSize)> {
        const SHARED: u32 = (1 << 10) - 1;
        if flags & !(SHARED | DATA_DIR | PAGE_COMPRESSION) != 0 {
            return None;
        }
        shared_sizes(flags)
    }

    /// Reads the place that the server's `fsp_header_get_encryption_offset` gives: after one descriptor per
    /// extent.
    pub(super) fn has_crypt_data(physical: PageSize, logical: PageSize, page0: &[u8]) -> Option<bool> {
        const MAGIC: &[u8] = b"s\x0e\x0cREt";
        const DESCRIPTORS: usize = HEADER + 112;
        const DESCRIPTOR_HEAD_BYTES: usize = 24;
        let extent_pages = logical.extent_pages() as usize;
        let descriptor_bytes = DESCRIPTOR_HEAD_BYTES + extent_pages / 4;
        let at = HEADER + DESCRIPTORS + descriptor_bytes * physical.bytes() / extent_pages;
        page0.get(at..at + MAGIC.len()).map(|magic| magic == MAGIC)
    }
}

mod mysql {
    use super::{PageSize, shared_sizes};

    pub(super) const ENCRYPTION: u32 = 1 << 13;
    /// Bit 10 DATA DIRECTORY, 11 shared, 12 temporary, 13 encryption, 14 serialized dictionary information.
    const KNOWN: u32 = (1 << 15) - 1;

    pub(super) fn sizes(flags: u32) -> Option<(PageSize, PageSize)> {
        (flags & !KNOWN == 0).then(|| shared_sizes(flags)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(flavor: Flavor, flags: u32) -> Option<(usize, usize)> {
        let geometry = Geometry::new(flavor, SpaceId(7), flags).ok()?;
        Some((geometry.page_size().bytes(), geometry.logical_page_size().bytes()))
    }

    fn page0(space: u32, flags: u32) -> Vec<u8> {
        let mut page = vec![0; 16384];
        page[34..38].copy_from_slice(&space.to_be_bytes());
        page[38..42].copy_from_slice(&space.to_be_bytes());
        page[54..58].copy_from_slice(&flags.to_be_bytes());
        page
    }

    #[test]
    fn mariadb_flags_seen_on_servers() {
        use Flavor::MariaDb;
        assert_eq!(sizes(MariaDb, 0x15), Some((16384, 16384)));
        assert_eq!(sizes(MariaDb, 0x13), Some((4096, 4096)));
        assert_eq!(sizes(MariaDb, 0x17), Some((65536, 65536)));
        assert_eq!(sizes(MariaDb, 0x29), Some((8192, 16384)));
        assert_eq!(sizes(MariaDb, 0x23), Some((1024, 16384)));
        assert_eq!(sizes(MariaDb, 0), Some((16384, 16384)));
        assert_eq!(sizes(MariaDb, 0x10021), Some((16384, 16384)));

        let full = Geometry::new(MariaDb, SpaceId(1), 0x35).unwrap();
        assert!(full.full_crc32() && full.page_compressed() && !full.row_compressed());
        let old = Geometry::new(MariaDb, SpaceId(1), 0x10021).unwrap();
        assert!(!old.full_crc32() && old.page_compressed() && !old.row_compressed());
        let zip = Geometry::new(MariaDb, SpaceId(1), 0x29).unwrap();
        assert!(!zip.full_crc32() && !zip.page_compressed() && zip.row_compressed());

        let algorithm = |flags| Geometry::new(MariaDb, SpaceId(1), flags).unwrap().compression_algorithm();
        assert_eq!(algorithm(0x35), Some("zlib"));
        assert_eq!(algorithm(0xd5), Some("snappy"));
        assert_eq!([0x15, 0xf5, 0x10021, 0x29].map(algorithm), [None; 4]);
    }

    #[test]
    fn mysql_flags() {
        use Flavor::MySql;
        const SDI: u32 = 1 << 14;
        assert_eq!(sizes(MySql, SDI | 0x21), Some((16384, 16384)));
        assert_eq!(sizes(MySql, SDI | 0x21 | 1 << 1), Some((1024, 16384)));
        assert_eq!(sizes(MySql, SDI | 0x21 | 5 << 1), Some((16384, 16384)));
        assert_eq!(sizes(MySql, SDI | 0x21 | 3 << 6 | 2 << 1), Some((2048, 4096)));
        let of_16k = Geometry::new(MySql, SpaceId(1), SDI | 0x21 | 5 << 1).unwrap();
        assert!(of_16k.row_compressed(), "KEY_BLOCK_SIZE=16 uses the compressed form too");
        let encrypted = Geometry::new(MySql, SpaceId(1), SDI | 0x21 | 1 << 13).unwrap();
        assert_eq!(encrypted.encrypted(&[]), Some(true));
        assert_eq!(of_16k.encrypted(&[]), Some(false));
    }

    #[test]
    fn flags_no_server_writes_are_refused() {
        for flags in [0x12, 0x18, 0x115, 0x20, 1 << 11, 1 << 17, 5 << 6, 8 << 6, 0x8, 0x21 | 6 << 1] {
            assert_eq!(sizes(Flavor::MariaDb, flags), None, "{flags:#x}");
        }
        for flags in [0x20, 1 << 15, 5 << 6, 8 << 6, 0x8, 0x21 | 6 << 1, 0x21 | 3 << 6 | 4 << 1] {
            assert_eq!(sizes(Flavor::MySql, flags), None, "{flags:#x}");
        }
    }

    #[test]
    fn a_zero_page_0_is_a_file_not_yet_initialised() {
        assert_eq!(Geometry::parse(Flavor::MariaDb, &[0; 64]), Ok(None));
        assert_eq!(Geometry::parse(Flavor::MySql, &[0; 57]), Err(GeometryError::TooShort { bytes: 57 }));
        let system = Geometry::parse(Flavor::MariaDb, &{
            let mut page = page0(0, 0x15);
            page[25] = 8;
            page
        });
        assert_eq!(system.unwrap().unwrap().space_id(), SpaceId::SYSTEM);
    }

    #[test]
    fn the_two_space_ids_must_agree() {
        let mut page = page0(9, 0x15);
        assert_eq!(Geometry::parse(Flavor::MariaDb, &page).unwrap().unwrap().space_id(), SpaceId(9));
        page[41] = 8;
        assert_eq!(
            Geometry::parse(Flavor::MariaDb, &page),
            Err(GeometryError::SpaceIdMismatch { page: SpaceId(9), tablespace: SpaceId(8) })
        );
    }

    #[test]
    fn mariadb_notes_encryption_behind_the_extent_descriptors() {
        let mut page = page0(9, 0x15);
        let geometry = Geometry::parse(Flavor::MariaDb, &page).unwrap().unwrap();
        assert_eq!(geometry.encrypted(&page), Some(false));
        page[10428..10434].copy_from_slice(b"s\x0e\x0cREt");
        assert_eq!(geometry.encrypted(&page), Some(true));
        assert_eq!(geometry.encrypted(&page[..10433]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200), flags: u32) {
            for flavor in [Flavor::MariaDb, Flavor::MySql] {
                if let Ok(Some(geometry)) = Geometry::parse(flavor, &bytes) {
                    geometry.encrypted(&bytes);
                }
                if let Ok(geometry) = Geometry::new(flavor, SpaceId(1), flags) {
                    prop_assert!(geometry.page_size() <= geometry.logical_page_size());
                }
            }
        }
    }
}
