//! Items: the entries of a backup, the table that holds them, and its roots
//! (`docs/reference/repository.md` section 9).
//!
//! The table is cut at places that the paths determine, not at fixed sizes, so that a stretch of files that
//! did not change is the same bytes as in the previous backup, and is shared with it.

use std::fmt;

use holdfast_formats::{PageSize, SpaceId, table_name::TableFile};
use holdfast_pipe::PageHash;

use crate::format::{
    columns::{self, CHUNK_BYTES_MAX, PageEntry, get_chunk, put_chunk},
    hex::byte_of,
    names::ChunkRef,
    page_map::{LeafRef, PAGES_PER_LEAF, get_leaf_refs, put_leaf_refs},
    rows::{DefinitionMap, TableMap, get_definition, get_table, put_definition, put_table},
    wire::{Decoder, FormatError, put_prefixed, put_varint},
};

/// Files of at most this many pages keep their page entries in the item.
pub const INLINE_PAGES_MAX: u64 = 64;
/// Bytes of a path, at most.
pub const PATH_BYTES_MAX: usize = 4_096;

const CUT_AFTER_BYTES: usize = 16 << 10;
const CUT_BEFORE_BYTES: usize = 512 << 10;

/// Path of an item relative to the data directory: parts separated by `/`, none of them empty, `.` or `..`,
/// without NUL. Bytes, as file names are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemPath(Box<[u8]>);

impl ItemPath {
    /// Takes a path that follows the rules.
    pub fn new(path: impl Into<Vec<u8>>) -> Result<Self, FormatError> {
        let path = path.into();
        if path.len() > PATH_BYTES_MAX {
            return Err(FormatError::rule("path", "is too long"));
        }
        if path.contains(&0) {
            return Err(FormatError::rule("path", "contains NUL"));
        }
        let good = |part: &[u8]| !part.is_empty() && part != b"." && part != b"..";
        if !path.split(|byte| *byte == b'/').all(good) {
            return Err(FormatError::rule("path", "has an empty part, '.' or '..'"));
        }
        Ok(Self(path.into()))
    }

    /// The path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path for these names, the outermost first, whatever they contain: `/`, NUL, `%`, and the dots of
    /// names that are `.` or `..` are written as `%` and two hex digits.
    pub fn of_names<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, FormatError> {
        let mut path = Vec::new();
        for (position, name) in names.into_iter().enumerate() {
            if position > 0 {
                path.push(b'/');
            }
            let is_dots = name == b"." || name == b"..";
            for byte in name {
                match byte {
                    b'/' | b'%' | 0 => path.extend_from_slice(format!("%{byte:02x}").as_bytes()),
                    b'.' if is_dots => path.extend_from_slice(b"%2e"),
                    byte => path.push(*byte),
                }
            }
        }
        Self::new(path)
    }

    /// The names from which [`Self::of_names`] makes this path.
    pub fn names(&self) -> Result<Vec<Vec<u8>>, FormatError> {
        let bad = || FormatError::rule("path", "has a '%' without two lower-case hex digits");
        let name = |part: &[u8]| {
            let mut name = Vec::with_capacity(part.len());
            let mut rest = part;
            while let Some((byte, after)) = rest.split_first() {
                rest = after;
                if *byte == b'%' {
                    let (digits, after) = rest.split_first_chunk::<2>().ok_or_else(bad)?;
                    rest = after;
                    name.push(byte_of(*digits).ok_or_else(bad)?);
                } else {
                    name.push(*byte);
                }
            }
            Ok(name)
        };
        self.0.split(|byte| *byte == b'/').map(name).collect()
    }
}

impl fmt::Display for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

impl fmt::Debug for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ItemType {
    /// A file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// The redo captured while the files were read.
    CapturedRedo = 3,
    /// The rows of a table, and what is needed to create it.
    Table = 4,
    /// What is needed to create anything else: a view, a routine, a user.
    Definition = 5,
}

impl ItemType {
    const ALL: [Self; 5] = [Self::File, Self::Directory, Self::CapturedRedo, Self::Table, Self::Definition];

    /// Whether it is of a logical backup: then it has no pages, and no place in a data directory.
    #[must_use]
    pub fn is_logical(self) -> bool {
        matches!(self, Self::Table | Self::Definition)
    }
}

/// What a file is to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileRole {
    /// Not known.
    #[default]
    Other = 0,
    /// A tablespace of tables.
    Tablespace = 1,
    /// An undo tablespace.
    UndoTablespace = 2,
    /// Part of the system tablespace.
    SystemTablespace = 3,
    /// An Aria log.
    AriaLog = 4,
    /// The Aria control file.
    AriaControl = 5,
    /// An Aria table's data or index.
    AriaTable = 6,
    /// A file of the replication log.
    Binlog = 7,
    /// A table file of another engine.
    TableFile = 8,
}

impl FileRole {
    const ALL: [Self; 9] = [
        Self::Other,
        Self::Tablespace,
        Self::UndoTablespace,
        Self::SystemTablespace,
        Self::AriaLog,
        Self::AriaControl,
        Self::AriaTable,
        Self::Binlog,
        Self::TableFile,
    ];

    /// Whether the file belongs to a table, which its path names.
    #[must_use]
    pub fn is_of_table(self) -> bool {
        matches!(self, Self::Tablespace | Self::AriaTable | Self::TableFile)
    }
}

/// Id and flags of a tablespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tablespace {
    /// Its id.
    pub space: SpaceId,
    /// Its flags, as in its first page.
    pub flags: u32,
}

/// One entry of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where it goes, below the data directory.
    pub path: ItemPath,
    /// What it is.
    pub item_type: ItemType,
    /// What it is to the server.
    pub role: FileRole,
    /// Permission bits, at most 0777.
    pub mode: u16,
    /// Its size; the last page is padded with zeros beyond it. For a table, the size of its
    /// rows; for a definition, its length.
    pub size_bytes: u64,
    /// Size of the pages that it is cut into.
    pub page_size: PageSize,
    /// Id and flags of a tablespace.
    pub tablespace: Option<Tablespace>,
    /// Absolute path of the file on the source, if it was not below the data directory.
    pub outside: Option<Vec<u8>>,
    /// Where its pages are.
    pub map: ItemMap,
}

/// Where the pages of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemMap {
    /// The page entries themselves.
    Inline(Vec<PageEntry>),
    /// Leaf `l` maps the pages from `4096 * l` on.
    Leaves(Vec<LeafRef>),
    /// Where the rows of a table are.
    Table(Box<TableMap>),
    /// A definition, or where it is.
    Definition(Box<DefinitionMap>),
}

/// Number of pages in `size_bytes`.
#[must_use]
pub fn page_count(size_bytes: u64, page_size: PageSize) -> u64 {
    size_bytes.div_ceil(page_size.bytes() as u64)
}

/// Number of leaves of a file of `pages` pages, if it has leaves.
#[must_use]
pub fn leaf_count(pages: u64) -> u64 {
    pages.div_ceil(u64::from(PAGES_PER_LEAF))
}

impl Item {
    /// The item of something that has no pages: a table or a definition.
    #[must_use]
    pub fn logical(path: ItemPath, size_bytes: u64, map: ItemMap) -> Self {
        let item_type = match map {
            ItemMap::Definition(_) => ItemType::Definition,
            _ => ItemType::Table,
        };
        Self {
            path,
            item_type,
            role: FileRole::Other,
            mode: 0,
            size_bytes,
            page_size: PageSize::DEFAULT_FILE,
            tablespace: None,
            outside: None,
            map,
        }
    }

    /// The table that it is, or that the file holds rows or indexes of, as `db.t`; partitions are of their table.
    #[must_use]
    pub fn table(&self) -> Option<String> {
        match self.item_type {
            ItemType::Table => {
                let names = self.path.names().ok()?;
                let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
                Some(names.join("."))
            }
            ItemType::File => {
                let path = String::from_utf8_lossy(self.path.as_bytes());
                let table = TableFile::from_path(&path).filter(|_| self.role.is_of_table())?;
                Some(format!("{}.{}", table.database, table.table))
            }
            ItemType::Directory | ItemType::CapturedRedo | ItemType::Definition => None,
        }
    }

    /// Number of pages of the file.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        match self.item_type.is_logical() {
            true => 0,
            false => page_count(self.size_bytes, self.page_size),
        }
    }

    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut rest = Vec::with_capacity(self.path.as_bytes().len() + 64);
        put_prefixed(&mut rest, self.path.as_bytes());
        rest.push(self.item_type as u8);
        rest.push(self.role as u8);
        rest.extend_from_slice(&self.mode.to_le_bytes());
        put_varint(&mut rest, self.size_bytes);
        rest.push(self.page_size.log2() as u8);
        put_varint(&mut rest, self.tablespace.map_or(0, |tablespace| u64::from(tablespace.space.0) + 1));
        rest.extend_from_slice(&self.tablespace.map_or(0, |tablespace| tablespace.flags).to_le_bytes());
        put_prefixed(&mut rest, self.outside.as_deref().unwrap_or_default());
        match &self.map {
            ItemMap::Inline(entries) => {
                rest.push(0);
                put_varint(&mut rest, entries.len() as u64);
                columns::encode(entries, &mut rest);
            }
            ItemMap::Leaves(leaves) => {
                rest.push(1);
                put_leaf_refs(&mut rest, leaves);
            }
            ItemMap::Table(table) => {
                rest.push(2);
                put_table(&mut rest, table);
            }
            ItemMap::Definition(definition) => {
                rest.push(3);
                put_definition(&mut rest, definition);
            }
        }
        put_prefixed(out, &rest);
    }

    /// Reads one item of a table.
    pub fn decode(table: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let mut decoder = Decoder::new(table.prefixed("item length", CHUNK_BYTES_MAX)?);
        let path = ItemPath::new(decoder.prefixed("path length", PATH_BYTES_MAX)?)?;
        let number = decoder.u8("type")?;
        let item_type = find(ItemType::ALL, |known| *known as u8, number, "type")?;
        let number = decoder.u8("role")?;
        let role = find(FileRole::ALL, |known| *known as u8, number, "role")?;
        let mode = decoder.u16("mode")?;
        if mode > 0o777 {
            return Err(FormatError::rule("mode", "has bits other than permissions"));
        }
        let size_bytes = decoder.varint("size")?;
        let log2 = decoder.u8("page size")?;
        let page_size = page_size_from_log2(log2)?;
        let space = decoder.between("space id", 0, 1 << 32)?.checked_sub(1);
        let flags = decoder.u32("tablespace flags")?;
        let tablespace = match space.map(u32::try_from) {
            None if flags == 0 => None,
            Some(Ok(space)) => Some(Tablespace { space: SpaceId(space), flags }),
            _ => return Err(FormatError::rule("tablespace flags", "stand without a space")),
        };
        let outside = decoder.prefixed("outside path", PATH_BYTES_MAX)?;
        if outside.contains(&0) || outside.first().is_some_and(|byte| *byte != b'/') {
            return Err(FormatError::rule("outside path", "is not an absolute path"));
        }
        let outside = (!outside.is_empty()).then(|| outside.to_vec());
        let pages = page_count(size_bytes, page_size);
        let map = match decoder.u8("map")? {
            0 | 1 if item_type.is_logical() => {
                return Err(FormatError::rule("map", "is not that of the item's type"));
            }
            2 if item_type == ItemType::Table => {
                ItemMap::Table(Box::new(get_table(&mut decoder, size_bytes)?))
            }
            3 if item_type == ItemType::Definition => {
                ItemMap::Definition(Box::new(get_definition(&mut decoder, size_bytes)?))
            }
            0 => {
                let count = decoder.count("entry count", INLINE_PAGES_MAX as usize, 1)?;
                if count as u64 != pages {
                    return Err(FormatError::rule("entry count", "does not match the size"));
                }
                ItemMap::Inline(columns::decode(&mut decoder, count)?)
            }
            1 => {
                let leaves = get_leaf_refs(&mut decoder)?;
                if leaves.len() as u64 != leaf_count(pages) {
                    return Err(FormatError::rule("leaf count", "does not match the size"));
                }
                ItemMap::Leaves(leaves)
            }
            2 | 3 => return Err(FormatError::rule("map", "is not that of the item's type")),
            number => return Err(FormatError::unknown("map", number)),
        };
        if item_type.is_logical() && (role, mode, page_size) != (FileRole::Other, 0, PageSize::DEFAULT_FILE) {
            return Err(FormatError::rule("role, mode and page size", "are those of a file"));
        }
        if item_type.is_logical() && (tablespace.is_some() || outside.is_some()) {
            return Err(FormatError::rule("tablespace and outside path", "are those of a file"));
        }
        if item_type == ItemType::Directory && size_bytes != 0 {
            return Err(FormatError::rule("size", "of a directory is not 0"));
        }
        Ok(Self { path, item_type, role, mode, size_bytes, page_size, tablespace, outside, map })
    }
}

fn find<T: Copy, const N: usize>(
    all: [T; N],
    number_of: impl Fn(&T) -> u8,
    number: u8,
    field: &'static str,
) -> Result<T, FormatError> {
    all.into_iter().find(|known| number_of(known) == number).ok_or(FormatError::unknown(field, number))
}

pub(crate) fn page_size_from_log2(log2: u8) -> Result<PageSize, FormatError> {
    1_u32
        .checked_shl(u32::from(log2))
        .and_then(PageSize::from_bytes)
        .ok_or(FormatError::rule("page size", "is not 1 to 64 KiB"))
}

/// All items of one chunk of the table, in order.
pub fn decode_items(plain: &[u8]) -> Result<Vec<Item>, FormatError> {
    let mut decoder = Decoder::new(plain);
    let mut items: Vec<Item> = Vec::new();
    while decoder.left() > 0 {
        let item = Item::decode(&mut decoder)?;
        if items.last().is_some_and(|last| last.path >= item.path) {
            return Err(FormatError::rule("path", "is not after the one before"));
        }
        items.push(item);
    }
    Ok(items)
}

/// One chunk of the item table, cut and ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemChunk {
    /// Path of its first item.
    pub first_path: ItemPath,
    /// Items in it.
    pub item_count: u32,
    /// The items one after another.
    pub plain: Vec<u8>,
}

/// Cuts encoded items, given in path order, into chunks.
#[derive(Debug, Default)]
pub struct ItemCutter {
    open: Option<ItemChunk>,
}

impl ItemCutter {
    /// Adds one item. Returns the chunks that it completes: none, one, or two.
    ///
    /// An item that fits no chunk (a file of more leaves than 1 MiB can name) is an error.
    pub fn push(
        &mut self,
        path: &ItemPath,
        encoded: &[u8],
    ) -> Result<impl Iterator<Item = ItemChunk> + use<>, FormatError> {
        if encoded.len() > CHUNK_BYTES_MAX {
            return Err(FormatError::rule("item", "has more leaves than format version 2 can name"));
        }
        let full = self.open.take_if(|open| open.plain.len() + encoded.len() > CUT_BEFORE_BYTES);
        let open = self.open.get_or_insert_with(|| ItemChunk {
            first_path: path.clone(),
            item_count: 0,
            plain: Vec::with_capacity(CUT_AFTER_BYTES * 2),
        });
        open.plain.extend_from_slice(encoded);
        open.item_count += 1;
        let cut = blake3::hash(path.as_bytes()).as_bytes()[0] < 2;
        let complete = self.open.take_if(|open| cut && open.plain.len() >= CUT_AFTER_BYTES);
        Ok(full.into_iter().chain(complete))
    }

    /// The last chunk, if any.
    pub fn finish(self) -> Option<ItemChunk> {
        self.open
    }
}

/// One chunk of the item table, as the roots name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootEntry {
    /// Path of its first item.
    pub first_path: ItemPath,
    /// Items in it.
    pub item_count: u32,
    /// Hash of its plain bytes.
    pub hash: PageHash,
    /// Where it is.
    pub chunk: ChunkRef,
}

const ROOT_ENTRY_BYTES_MAX: usize = PATH_BYTES_MAX + 48;

/// Plain bytes of the chunks of roots for `entries`, which are in path order,
/// each with its number of entries.
#[must_use]
pub fn encode_roots(entries: &[RootEntry]) -> Vec<(u32, Vec<u8>)> {
    let mut chunks = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        let mut body = Vec::new();
        let mut count = 0;
        while let Some(entry) = rest.get(count)
            && body.len() + ROOT_ENTRY_BYTES_MAX < CHUNK_BYTES_MAX
        {
            put_prefixed(&mut body, entry.first_path.as_bytes());
            put_varint(&mut body, u64::from(entry.item_count));
            body.extend_from_slice(&entry.hash.0);
            put_chunk(&mut body, entry.chunk);
            count += 1;
        }
        let mut plain = Vec::with_capacity(body.len() + 4);
        put_varint(&mut plain, count as u64);
        plain.extend_from_slice(&body);
        chunks.push((count as u32, plain));
        rest = &rest[count..];
    }
    chunks
}

/// Reads one chunk of roots.
pub fn decode_roots(plain: &[u8]) -> Result<Vec<RootEntry>, FormatError> {
    let mut decoder = Decoder::new(plain);
    let count = decoder.count("root count", CHUNK_BYTES_MAX, 21)?;
    let mut entries: Vec<RootEntry> = Vec::with_capacity(count);
    for _ in 0..count {
        let first_path = ItemPath::new(decoder.prefixed("first path", PATH_BYTES_MAX)?)?;
        if entries.last().is_some_and(|last| last.first_path >= first_path) {
            return Err(FormatError::rule("first path", "is not after the one before"));
        }
        entries.push(RootEntry {
            first_path,
            item_count: decoder.u32_most("item count", CHUNK_BYTES_MAX as u32)?,
            hash: PageHash(decoder.array("hash")?),
            chunk: get_chunk(&mut decoder)?,
        });
    }
    decoder.end("roots")?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::{
        columns::tests::any_entry,
        names::{PackId, RunNo},
        rows::{
            DefinitionText,
            tests::{any_definition, any_table},
        },
    };

    fn any_file() -> impl Strategy<Value = Item> {
        let map = prop_oneof![
            prop::collection::vec(any_entry(), 0..=64).prop_map(ItemMap::Inline),
            prop::collection::vec((1..9_u64, 0..9_u32, 0..9_u32), 1..20).prop_map(|leaves| {
                ItemMap::Leaves(
                    leaves
                        .into_iter()
                        .map(|(run, part, ordinal)| LeafRef {
                            chunk: ChunkRef { pack: PackId { run: RunNo(run), part }, ordinal },
                            hash: PageHash([part as u8; 16]),
                            slot: ordinal,
                        })
                        .collect(),
                )
            }),
        ];
        (
            "[a-z]{1,8}(/[a-z#@]{1,12}){0,3}",
            map,
            10..=16_u32,
            0..0o1000_u16,
            prop::option::of((any::<u32>(), any::<u32>())),
            prop::option::of("/[a-z/]{1,20}"),
        )
            .prop_map(|(path, map, log2, mode, tablespace, outside)| {
                let page_size = PageSize::from_bytes(1 << log2).unwrap();
                let pages = match &map {
                    ItemMap::Inline(entries) => entries.len() as u64,
                    ItemMap::Leaves(leaves) => leaves.len() as u64 * 4_096,
                    ItemMap::Table(_) | ItemMap::Definition(_) => unreachable!("files have pages"),
                };
                Item {
                    path: ItemPath::new(path).unwrap(),
                    item_type: ItemType::File,
                    role: FileRole::Tablespace,
                    mode,
                    size_bytes: pages * page_size.bytes() as u64,
                    page_size,
                    tablespace: tablespace.map(|(space, flags)| Tablespace { space: SpaceId(space), flags }),
                    outside: outside.map(String::into_bytes),
                    map,
                }
            })
    }

    fn any_item() -> impl Strategy<Value = Item> {
        let path = || "[a-z]{1,8}(/[a-z#@%]{1,12}){0,2}".prop_map(|path| ItemPath::new(path).unwrap());
        prop_oneof![
            any_file(),
            (path(), any_table()).prop_map(|(path, table)| {
                let size_bytes = table.totals.bytes;
                Item::logical(path, size_bytes, ItemMap::Table(Box::new(table)))
            }),
            (path(), any_definition()).prop_map(|(path, definition)| {
                let size_bytes = definition.text.len();
                Item::logical(path, size_bytes, ItemMap::Definition(Box::new(definition)))
            }),
        ]
    }

    proptest! {
        #[test]
        fn names_come_back_from_paths(names in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..4)) {
            let path = ItemPath::of_names(names.iter().map(Vec::as_slice)).unwrap();
            prop_assert_eq!(path.names().unwrap(), names);
        }

        #[test]
        fn items_come_back(item in any_item()) {
            let mut bytes = Vec::new();
            item.encode(&mut bytes);
            prop_assert_eq!(decode_items(&bytes), Ok(vec![item]));
        }

        #[test]
        fn damaged_items_never_panic(
            item in any_item(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>()
        ) {
            let mut bytes = Vec::new();
            item.encode(&mut bytes);
            let cut = cut.index(bytes.len());
            prop_assert!(cut == 0 || decode_items(&bytes[..cut]).is_err());
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(decode_items(&bytes), Ok(vec![item]));
        }

        #[test]
        fn the_table_is_whole_after_cutting_and_cut_alike_around_a_change(count in 1..3_000_usize, changed in any::<prop::sample::Index>()) {
            let items: Vec<_> = (0..count).map(|i| (ItemPath::new(format!("db/t{i:06}")).unwrap(), vec![i as u8; 200])).collect();
            let cut = |items: &[(ItemPath, Vec<u8>)]| {
                let mut cutter = ItemCutter::default();
                let mut chunks = Vec::new();
                for (path, bytes) in items {
                    chunks.extend(cutter.push(path, bytes).unwrap());
                }
                chunks.extend(cutter.finish());
                chunks
            };
            let before = cut(&items);
            prop_assert_eq!(before.iter().flat_map(|c| c.plain.clone()).collect::<Vec<_>>(), items.iter().flat_map(|i| i.1.clone()).collect::<Vec<_>>());
            prop_assert_eq!(before.iter().map(|c| c.item_count as usize).sum::<usize>(), count);
            let mut other = items.clone();
            other[changed.index(count)].1[0] ^= 1;
            let after = cut(&other);
            prop_assert_eq!(before.iter().zip(&after).filter(|(a, b)| a != b).count(), 1);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_items(&bytes);
            let _ = decode_roots(&bytes);
        }
    }

    #[test]
    fn what_a_later_version_adds_is_told_from_damage() {
        let mut bytes = Vec::new();
        let definition = DefinitionMap { kind: "view".to_owned(), text: DefinitionText::Inline(vec![1]) };
        Item::logical(ItemPath::new("a").unwrap(), 1, ItemMap::Definition(Box::new(definition)))
            .encode(&mut bytes);
        // After the lengths of the item and of its path, and the path; before the map: mode, size, page size,
        // space, flags, and the length of the outside path.
        for (at, field) in [(3, "type"), (4, "role"), (15, "map")] {
            let mut bytes = bytes.clone();
            bytes[at] = 9;
            assert_eq!(decode_items(&bytes), Err(FormatError::unknown(field, 9)));
        }
    }

    #[test]
    fn roots_come_back_over_several_chunks() {
        let entries: Vec<_> = (0..9_000_u32)
            .map(|i| RootEntry {
                first_path: ItemPath::new(format!("{}/{i:08}", "d".repeat(200))).unwrap(),
                item_count: i,
                hash: PageHash([i as u8; 16]),
                chunk: ChunkRef { pack: PackId { run: RunNo(1), part: i }, ordinal: 0 },
            })
            .collect();
        let chunks = encode_roots(&entries);
        assert!(chunks.len() > 1);
        assert!(chunks.iter().all(|(_, plain)| plain.len() <= CHUNK_BYTES_MAX));
        let again: Vec<_> = chunks.iter().flat_map(|(_, plain)| decode_roots(plain).unwrap()).collect();
        assert_eq!(again, entries);
    }

    #[test]
    fn paths_cannot_leave_the_data_directory() {
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b"] {
            assert!(ItemPath::new(bad).is_err(), "{bad:?}");
        }
        assert!(ItemPath::new("a/..b/c.").is_ok());
        let names: [&[u8]; 3] = [b"..", b"a/../b", b"100%\0"];
        let path = ItemPath::of_names(names).unwrap();
        assert_eq!(path.to_string(), "%2e%2e/a%2f../b/100%25%00".replace("../b", "..%2fb"));
        assert_eq!(path.names().unwrap(), names);
        for bad in ["a%2", "%+f", "%2F", "%-1", "% 1"] {
            assert!(ItemPath::new(bad).unwrap().names().is_err(), "{bad:?}");
        }
    }
}
