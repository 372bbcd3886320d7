//! Entry points for the fuzzer: what it makes up is sealed, hashed, signed and put in its place,
//! so that it gets past the seals to the code behind them. Not part of the product; compiled only for
//! the fuzzer and for its own test.

use std::sync::Arc;

use holdfast_formats::PageSize;
use holdfast_pipe::{Codec, PageHash, codec::compress_patch};

pub use crate::ops::keys::fuzzing::{RecordPiece, Records};
use crate::{
    RepoError,
    data::{
        local_maps,
        reader::{Backup, ReadRows, rows::Joints},
    },
    format::{
        columns::{PageEntry, StoredPage},
        hash::{NO_OBJECT, ObjectHash, object_hash},
        index::{self, IndexedPack},
        item::{FileRole, Item, ItemMap, ItemPath, ItemType, RootEntry, encode_roots},
        manifest::RootPlace,
        names::{ChunkRef, Kind, LogName, PackId, RunNo},
        pack::{ChunkKind, ChunkRow, Directory, Trailer, directory_seal_context},
        page_map::{Leaf, LeafRef, encode_leaf_chunk},
        place::{HEADER_BYTES, ObjectKind, Place},
        refs::{BackupRefs, ChunkNeed, Move, NeededPack, PruneRefs},
        rows::{
            DefinitionMap, DefinitionText, RowChunk, RowEntry, RowHashKey, RowLeafRef, TableMap, TableRows,
            begin_rows, encode_leaf, put_entry, put_row, totals_of,
        },
    },
    keys::Protection,
    log::{
        check_record::{self, Checked},
        history::History,
        outcome::{self, Intent, OutcomeType, PublicPart},
        segment::{self, SegmentReader},
    },
    ops::check::{CheckOptions, check},
    repo::Repo,
    sealed::{RunSecrets, seal_object},
    store::{ObjectPath, mem::MemStore, read_all},
};

const PAGE_BYTES: usize = 1 << 10;
const RUN: RunNo = RunNo(1);
const PACK: PackId = PackId { run: RUN, part: 0 };
/// Longer files are not read: what a lie about a size costs is bounded by what is to be restored.
const READ_BYTES_MAX: u64 = 4 << 20;

/// The piece of a repository that the fuzzer makes up; everything else fits around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A chunk of leaves.
    Leaves,
    /// A chunk of the item table.
    Items,
    /// The roots of the item table.
    Roots,
    /// The manifest head.
    Head,
    /// The refs of the backup.
    BackupRefs,
    /// The index part.
    Index,
    /// The directory of the pack.
    Directory,
    /// The public part of the backup's outcome.
    Public,
    /// The refs of a prune after the backup.
    PruneRefs,
    /// The public part of the prune's outcome.
    PrunePublic,
    /// The lease of a run after all others.
    Lease,
    /// The whole outcome, as it is stored.
    Outcome,
    /// The whole refs object, as it is stored.
    RefsObject,
    /// The whole pack, as it is stored.
    Pack,
    /// The public part of the outcome of a hold after the prune.
    HoldPublic,
    /// A chunk of rows, on which the next chunk is a patch.
    Rows,
    /// A chunk of rows that is a patch, as it is stored.
    RowPatch,
    /// A leaf of rows.
    RowLeaf,
    /// The public part of a segment of the run after all others.
    Segment,
    /// The whole segment, as an archive stores it and its spool holds it.
    SegmentObject,
    /// The record of a check.
    CheckRecord,
    /// The whole record, as it is stored.
    CheckObject,
}

impl Piece {
    /// All pieces.
    pub const ALL: [Self; 22] = [
        Self::Leaves,
        Self::Items,
        Self::Roots,
        Self::Head,
        Self::BackupRefs,
        Self::Index,
        Self::Directory,
        Self::Public,
        Self::PruneRefs,
        Self::PrunePublic,
        Self::Lease,
        Self::Outcome,
        Self::RefsObject,
        Self::Pack,
        Self::HoldPublic,
        Self::Rows,
        Self::RowPatch,
        Self::RowLeaf,
        Self::Segment,
        Self::SegmentObject,
        Self::CheckRecord,
        Self::CheckObject,
    ];
}

/// Pieces with their honest contents.
pub type Pieces = Vec<(Piece, Vec<u8>)>;

/// A repository of one small backup, one prune and one hold, in which one piece is made up.
pub struct World {
    repo: Arc<Repo>,
    log: LogName,
}

impl World {
    /// An empty repository without encryption; seals exist and must fit all the same.
    ///
    /// # Errors
    /// If there is no randomness to make keys from.
    pub fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let repo = Repo::init(Arc::new(MemStore::new()), &Protection::None)?;
        Ok(Self { repo: Arc::new(repo), log: LogName { source: "db1".parse()?, kind: Kind::Physical } })
    }

    /// Reads everything there is to read, with `bytes` in the place of `piece`.
    /// What is wrong is an error or a finding.
    ///
    /// # Errors
    /// If the world could not be made, which is no fault of what was made up.
    pub fn read_with(&self, piece: Piece, bytes: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
        self.make(&mut |here, honest| if here == piece { bytes.to_vec() } else { honest })?;
        self.read();
        Ok(())
    }

    /// Every piece with its honest contents: seeds.
    ///
    /// # Errors
    /// If the world could not be made.
    pub fn honest(&self) -> Result<Pieces, Box<dyn std::error::Error>> {
        let mut pieces = Vec::new();
        self.make(&mut |piece, honest| {
            pieces.push((piece, honest.clone()));
            honest
        })?;
        Ok(pieces)
    }

    /// Whether everything can be read, and nothing is wrong with it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let report = check(&self.repo, &self.log, CheckOptions { read_data: Some(1.0), ..options() });
        report
            .is_ok_and(|report| report.findings.is_empty() && report.backups == 1 && report.items_walked > 0)
    }

    fn read(&self) {
        let mut history = History::read(&self.repo, &self.log);
        if history.is_err() {
            history = History::salvage(&self.repo, &self.log, &mut |_, _| {});
        }
        let Ok(history) = history else { return };
        self.read_segments(&history);
        let _ = Checked::read(&self.repo, &self.log, &mut |_| {});
        let _ = check(&self.repo, &self.log, CheckOptions { read_data: Some(1.0), ..options() });
        for outcome in history.standing() {
            let Ok(backup) = Backup::open(&self.repo, &history, outcome.run) else { continue };
            for item in backup.items().map_while(Result::ok) {
                let _ = backup.find(&item.path);
                let _ = backup.definition(&item);
                if let Some(table) = backup.table(&item) {
                    for options in [ReadRows { threads: 0, ..ReadRows::default() }, ReadRows::default()] {
                        let _ = table.read(0..table.chunk_count(), options, &mut |_| Ok::<_, RepoError>(()));
                    }
                }
                if item.size_bytes <= READ_BYTES_MAX {
                    let _ = backup.read_file(&item, &mut |_| Ok::<_, RepoError>(()));
                }
            }
        }
    }

    /// Reads segments as an archiver that continues does, and as its spool does.
    fn read_segments(&self, history: &History) {
        for (run, parts) in segment::list_segments(&self.repo, &self.log).unwrap_or_default() {
            let mut reader = SegmentReader::new(&self.repo, history, run);
            while let Ok(Some(_)) = reader.read_next() {}
            let _ = reader.check_end();
            for part in parts {
                let path = self.log.segment(run, part);
                let Ok(object) = read_all(&**self.repo.store(), &path, READ_BYTES_MAX) else { continue };
                let _ = segment::tail_of_sealed(&self.repo, &self.log, run, part, &object);
            }
        }
    }

    /// Reads the head of a writer's own page maps, made up except for its MAC.
    /// Returns whether it was believed.
    #[must_use]
    pub fn read_local_maps(&self, made_up: &[u8]) -> bool {
        local_maps::read_made_up(&self.repo, &self.log, made_up)
    }

    /// An honest head of page maps, as a writer makes it.
    #[must_use]
    pub fn honest_local_maps(&self) -> Vec<u8> {
        local_maps::honest_head(&self.repo, &self.log)
    }

    fn make(
        &self,
        chosen: &mut dyn FnMut(Piece, Vec<u8>) -> Vec<u8>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        self.clear()?;
        let (log, hash_key) = (&self.log, self.repo.hash_key()?);
        let page_size = PageSize::from_bytes(PAGE_BYTES as u32).ok_or("page size")?;

        let pages: Vec<u8> = (0..6 * PAGE_BYTES).map(|at| (at / PAGE_BYTES + 1) as u8).collect();
        let hashes: Vec<PageHash> = pages.chunks(PAGE_BYTES).map(|page| hash_key.hash(page)).collect();
        let at = |ordinal| ChunkRef { pack: PACK, ordinal };
        let stored =
            |slot: u32| PageEntry::Stored(StoredPage { hash: hashes[slot as usize], chunk: at(0), slot });

        let mut entries = vec![PageEntry::Zero; 70];
        entries[0] = stored(0);
        entries[69] = stored(1);
        let mut leaf = Vec::new();
        Leaf::Full(entries).encode(&mut leaf);
        let leaves = chosen(Piece::Leaves, encode_leaf_chunk(&[leaf]));
        let leaf_ref = LeafRef { chunk: at(1), hash: hash_key.hash(&leaves), slot: 0 };

        let item = |path: &str, pages: u64, map| -> Result<Item, Box<dyn std::error::Error>> {
            Ok(Item {
                path: ItemPath::new(path)?,
                item_type: ItemType::File,
                role: FileRole::Tablespace,
                mode: 0o660,
                size_bytes: pages * PAGE_BYTES as u64,
                page_size,
                tablespace: None,
                outside: None,
                map,
            })
        };
        let inline = ItemMap::Inline(vec![stored(2), PageEntry::Hole, PageEntry::Zero, stored(3)]);
        let mut items = Vec::new();
        item("db/a.ibd", 4, inline)?.encode(&mut items);
        item("db/b.ibd", 70, ItemMap::Leaves(vec![leaf_ref]))?.encode(&mut items);
        let [rows, patch, row_leaf] = self.table(&mut items, chosen, [at(4), at(5), at(6)])?;
        let items = chosen(Piece::Items, items);

        let root = RootEntry {
            first_path: ItemPath::new("db/a.ibd")?,
            item_count: 4,
            hash: hash_key.hash(&items),
            chunk: at(2),
        };
        let roots = encode_roots(&[root]).pop().ok_or("roots")?.1;
        let roots = chosen(Piece::Roots, roots);

        let chunks = [
            Chunk::full(ChunkKind::Pages(page_size), pages, 6),
            Chunk::full(ChunkKind::Leaves, leaves, 1),
            Chunk::full(ChunkKind::Items, items, 4),
            Chunk::full(ChunkKind::Roots, roots.clone(), 1),
            Chunk::full(ChunkKind::Rows, rows.clone(), 1),
            Chunk {
                base: Some(at(4)),
                plain_len: rows.len() as u32,
                ..Chunk::full(ChunkKind::Rows, patch, 1)
            },
            Chunk::full(ChunkKind::RowLeaf, row_leaf, 1),
        ];
        let secrets = self.repo.draw_secrets(log, RUN)?;
        let (pack, rows) = pack(&secrets, &chunks, hashes, chosen);
        let pack = chosen(Piece::Pack, pack);
        self.put(&log.pack(PACK), &pack)?;

        let size_bytes = pack.len() as u64;
        let index = index::encode(&[IndexedPack { part: 0, size_bytes, rows: rows.clone() }]);
        let index = chosen(Piece::Index, index);
        self.put(&log.index(RUN, 0), &secrets.seal_index(0, &index)?)?;

        let needed = [4, 1, 4, 1, 1, 1, 1];
        let needs = rows.iter().zip(needed);
        let refs = BackupRefs {
            packs: vec![NeededPack {
                pack: PACK,
                size_bytes,
                chunks: needs.map(|(row, needed)| ChunkNeed { units: row.unit_count, needed }).collect(),
            }],
        };
        let refs = self.put_refs(RUN, &chosen(Piece::BackupRefs, refs.encode()), chosen)?;

        let place = RootPlace::new(at(3), hash_key.hash(&roots));
        let head = serde_json::json!({
            "schema": 1, "run": RUN.0, "source": "db1", "kind": "physical", "method": "physical",
            "started_at": "2026-11-21T01:00:00Z", "finished_at": "2026-11-21T01:10:00Z",
            "server": {"flavor": "mysql"}, "position": {"precision": "exact", "gtid": "a:1-5"},
            "totals": {"items": 2}, "roots": [place], "flags": ["new-identity"],
        });
        let head = chosen(Piece::Head, serde_json::to_vec(&head)?);
        let public = self.public(RUN, OutcomeType::Backup, NO_OBJECT, Some(refs))?;
        let public = chosen(Piece::Public, serde_json::to_vec(&public)?);
        let bytes = chosen(Piece::Outcome, outcome::encode_raw(&self.repo, log, RUN, &public, Some(&head))?);
        self.put(&log.outcome(RUN), &bytes)?;

        let prune = RunNo(RUN.0 + 1);
        let to = ChunkRef { pack: PackId { run: prune, part: 0 }, ordinal: 0 };
        let dead = PackId { part: 9, ..PACK };
        let from = ChunkRef { pack: dead, ordinal: 3 };
        let refs = PruneRefs { dead: vec![dead], moves: vec![Move { from, to }] };
        let refs = self.put_refs(prune, &chosen(Piece::PruneRefs, refs.encode()), &mut |_, honest| honest)?;
        let public = self.public(prune, OutcomeType::Prune, object_hash(&bytes), Some(refs))?;
        let public = chosen(Piece::PrunePublic, serde_json::to_vec(&public)?);
        let bytes = outcome::encode_raw(&self.repo, log, prune, &public, None)?;
        self.put(&log.outcome(prune), &bytes)?;

        let hold = RunNo(prune.0 + 1);
        let public = PublicPart {
            intent: Some(Intent::Hold),
            backups: vec![RUN.0],
            until: Some("2027-11-21T01:10:00Z".parse()?),
            why: "audit".to_owned(),
            ..self.public(hold, OutcomeType::Hold, object_hash(&bytes), None)?
        };
        let public = chosen(Piece::HoldPublic, serde_json::to_vec(&public)?);
        self.put(&log.outcome(hold), &outcome::encode_raw(&self.repo, log, hold, &public, None)?)?;

        let run = RunNo(hold.0 + 1);
        let previous = object_hash(&read_all(&**self.repo.store(), &log.outcome(hold), u64::MAX)?);
        let public = serde_json::json!({"run": run.0, "part": 0, "previous": previous, "tail": {"at": 1}});
        let public = chosen(Piece::Segment, serde_json::to_vec(&public)?);
        let segment = segment::encode_raw(&self.repo, log, run, &public, b"events")?;
        self.put(&log.segment(run, 0), &chosen(Piece::SegmentObject, segment))?;

        let record =
            chosen(Piece::CheckRecord, check_record::plain_record(&[(PACK, size_bytes, 1_790_000_000)]));
        let (path, record) = check_record::encode_raw(&self.repo, log, 1, &record)?;
        self.put(&path, &chosen(Piece::CheckObject, record))?;

        let lease = br#"{"token":"000102030405060708090a0b0c0d0e0f","intent":"backup"}"#.to_vec();
        self.put(&log.lease(RunNo(hold.0 + 1), 0), &chosen(Piece::Lease, lease))?;
        Ok(())
    }

    /// Adds a table of two chunks, one a patch on the other, and a definition. Returns the chunks of rows and
    /// the leaf, to be stored at the given places.
    fn table(
        &self,
        items: &mut Vec<u8>,
        chosen: &mut dyn FnMut(Piece, Vec<u8>) -> Vec<u8>,
        [base, patch, leaf]: [ChunkRef; 3],
    ) -> Result<[Vec<u8>; 3], Box<dyn std::error::Error>> {
        let hash_key = self.repo.hash_key()?;
        let row_key = RowHashKey::new(hash_key);
        let plain = |last: &[u8]| {
            let mut plain = Vec::new();
            begin_rows(&mut plain);
            [&b"1 one row, and another"[..], b"2 one row, and another", last]
                .into_iter()
                .for_each(|row| put_row(&mut plain, row));
            plain
        };
        let rows = chosen(Piece::Rows, plain(b"3 a row"));
        let next = plain(b"4 a row");
        let mut patched = Vec::new();
        compress_patch(&rows, &next, &mut patched)?;
        let patched = chosen(Piece::RowPatch, patched);
        let entry = |plain: &[u8], chunk, base| {
            let totals =
                RowChunk::parse(plain).ok().and_then(|rows| Joints::summed(row_key.clone()).next(&rows).ok());
            let key = Some(b"key".as_slice().into());
            RowEntry { totals: totals.unwrap_or_default(), hash: hash_key.hash(plain), chunk, base, key }
        };
        let entries = [entry(&rows, base, None), entry(&next, patch, Some(base))];
        let totals = totals_of(&entries)?;
        let mut encoded = Vec::new();
        entries.iter().for_each(|entry| put_entry(&mut encoded, entry));
        let row_leaf = chosen(Piece::RowLeaf, encode_leaf(entries.len(), &encoded));
        let leaf = RowLeafRef { chunk: leaf, hash: hash_key.hash(&row_leaf), entries: 2, totals };
        let definition = DefinitionText::Inline(b"{}".to_vec());
        let map = TableMap { definition: definition.clone(), totals, rows: TableRows::Leaves(vec![leaf]) };
        Item::logical(ItemPath::new("db/t")?, totals.bytes, ItemMap::Table(Box::new(map))).encode(items);
        let map = DefinitionMap { kind: "view".to_owned(), text: definition };
        Item::logical(ItemPath::new("db/view/v")?, 2, ItemMap::Definition(Box::new(map))).encode(items);
        Ok([rows, patched, row_leaf])
    }

    fn public(
        &self,
        run: RunNo,
        outcome_type: OutcomeType,
        previous: ObjectHash,
        refs: Option<ObjectHash>,
    ) -> Result<PublicPart, Box<dyn std::error::Error>> {
        let is_backup = outcome_type == OutcomeType::Backup;
        Ok(PublicPart {
            intent: Some(if is_backup { Intent::Backup } else { Intent::Prune }),
            host: "here".to_owned(),
            refs,
            index_parts: u32::from(is_backup),
            pack_parts: u32::from(is_backup),
            ..PublicPart::bare(run, outcome_type, previous, "2026-11-21T01:10:00Z".parse()?)
        })
    }

    fn put_refs(
        &self,
        run: RunNo,
        plain: &[u8],
        chosen: &mut dyn FnMut(Piece, Vec<u8>) -> Vec<u8>,
    ) -> Result<ObjectHash, RepoError> {
        let place = Place { log: &self.log, kind: ObjectKind::Refs, run, part: 0 };
        let object = chosen(Piece::RefsObject, seal_object(self.repo.keys(), &place, plain)?);
        self.put(&place.path(), &object)?;
        Ok(object_hash(&object))
    }

    fn put(&self, path: &ObjectPath, bytes: &[u8]) -> Result<(), RepoError> {
        self.repo.store().create_if_absent(path, bytes)?;
        Ok(())
    }

    fn clear(&self) -> Result<(), RepoError> {
        let mut paths = Vec::new();
        self.repo.store().list("sources/", &mut |info| {
            paths.push(info.path);
            true
        })?;
        Ok(self.repo.store().delete(&paths)?)
    }
}

fn options() -> CheckOptions {
    CheckOptions { threads: 1, ..CheckOptions::default() }
}

struct Chunk {
    kind: ChunkKind,
    /// As stored, but not sealed.
    bytes: Vec<u8>,
    plain_len: u32,
    unit_count: u32,
    base: Option<ChunkRef>,
}

impl Chunk {
    fn full(kind: ChunkKind, bytes: Vec<u8>, unit_count: u32) -> Self {
        Self { kind, plain_len: bytes.len() as u32, bytes, unit_count, base: None }
    }
}

/// Builds a pack of these chunks. Returns it with its rows.
fn pack(
    secrets: &RunSecrets,
    chunks: &[Chunk],
    hashes: Vec<PageHash>,
    chosen: &mut dyn FnMut(Piece, Vec<u8>) -> Vec<u8>,
) -> (Vec<u8>, Vec<ChunkRow>) {
    let mut pack = secrets.pack_header(0).to_vec();
    debug_assert_eq!(pack.len(), HEADER_BYTES);
    let key = secrets.pack_key(0);
    let mut rows = Vec::new();
    for (ordinal, chunk) in (0..).zip(chunks) {
        let mut row = ChunkRow {
            kind: chunk.kind,
            codec: if chunk.base.is_some() { Codec::ZstdPatch } else { Codec::None },
            plain_len: chunk.plain_len,
            sealed_len: 0,
            unit_count: chunk.unit_count,
            base: chunk.base,
        };
        let mut sealed = chunk.bytes.clone();
        key.seal(row.seal_context(ordinal as u32), &mut sealed);
        row.sealed_len = sealed.len() as u32;
        pack.extend_from_slice(&sealed);
        rows.push(row);
    }
    let directory = Directory { rows: rows.clone(), hashes };
    let plain = chosen(Piece::Directory, directory.encode());
    let mut sealed = plain.clone();
    key.seal(directory_seal_context(plain.len() as u32), &mut sealed);
    let trailer =
        Trailer { offset: pack.len() as u64, sealed_len: sealed.len() as u32, plain_len: plain.len() as u32 };
    pack.extend_from_slice(&sealed);
    pack.extend_from_slice(&trailer.encode());
    (pack, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::rows::decode_leaf;

    /// Everything around the made-up piece is right, and a piece that is cut
    /// anywhere is refused, not believed.
    #[test]
    fn the_honest_world_is_sound_and_no_piece_can_be_cut() {
        let world = World::new().unwrap();
        let pieces = world.honest().unwrap();
        assert!(world.is_sound());
        for (piece, bytes) in pieces {
            world.read_with(piece, &bytes).unwrap();
            assert!(world.is_sound() || piece == Piece::Pack || piece == Piece::Outcome, "{piece:?}");
            for cut in (0..bytes.len()).step_by(31) {
                world.read_with(piece, &bytes[..cut]).unwrap();
                // An unreadable lease counts as none, and a check writes its own record anew.
                let is_replaced = matches!(piece, Piece::Lease | Piece::CheckRecord | Piece::CheckObject);
                assert!(!world.is_sound() || is_replaced, "{piece:?} cut at {cut}");
            }
        }
    }

    /// The head of page maps is believed as it was written, but not when it is cut or of another repository.
    #[test]
    fn honest_local_maps_are_believed_and_cannot_be_cut() {
        let world = World::new().unwrap();
        let honest = world.honest_local_maps();
        assert!(world.read_local_maps(&honest));
        // The manifest head itself is for the reader to check.
        let description = honest.len() - b"{}".len();
        assert!((0..description).all(|cut| !world.read_local_maps(&honest[..cut])));
        assert!(!world.read_local_maps(&World::new().unwrap().honest_local_maps()));
    }

    /// Leaves that are sealed and hashed correctly but do not fit their chunks:
    /// the table and the rows are named.
    #[test]
    fn leaves_that_lie_about_their_chunks_are_found_by_the_name_of_the_table() {
        let world = World::new().unwrap();
        let pieces = world.honest().unwrap();
        let leaf = &pieces.iter().find(|(piece, _)| *piece == Piece::RowLeaf).unwrap().1;
        let honest = decode_leaf(leaf).unwrap();
        let of = |change: &dyn Fn(&mut Vec<RowEntry>)| {
            let mut entries = honest.clone();
            change(&mut entries);
            let mut encoded = Vec::new();
            entries.iter().for_each(|entry| put_entry(&mut encoded, entry));
            world.read_with(Piece::RowLeaf, &encode_leaf(entries.len(), &encoded)).unwrap();
            let report =
                check(&world.repo, &world.log, CheckOptions { read_data: Some(1.0), ..options() }).unwrap();
            report.findings.iter().map(|finding| finding.object.clone()).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(of(&|_| {}), "");
        let swapped = of(&|entries| {
            let [a, b] = &mut entries[..] else { panic!("two entries") };
            std::mem::swap(&mut a.chunk, &mut b.chunk);
            std::mem::swap(&mut a.base, &mut b.base);
        });
        assert!(swapped.contains("db/t rows 0") && swapped.contains("db/t rows 1"), "{swapped}");
        let rows = of(&|entries| {
            entries[0].totals.checksum.0 ^= 1;
            entries[1].totals.checksum.0 = entries[1]
                .totals
                .checksum
                .0
                .wrapping_add(honest[0].totals.checksum.0.wrapping_sub(entries[0].totals.checksum.0));
        });
        assert!(rows.contains("db/t rows 0") && rows.contains("db/t rows 1"), "{rows}");
        let base = of(&|entries| entries[1].base = None);
        assert!(base.contains("db/t rows 1"), "{base}");
        let other = of(&|entries| entries[1].chunk.ordinal = 2);
        assert!(other.contains("db/t rows 1"), "{other}");
    }

    /// Not a test: writes the pieces of the honest world as seeds, below the
    /// directory named in the environment.
    #[test]
    #[ignore = "writes fuzz/seeds"]
    fn write_seeds() {
        let dir = std::path::PathBuf::from(std::env::var_os("HOLDFAST_FUZZ_SEEDS").unwrap());
        let write = |target: &str, name: String, parts: &[&[u8]]| {
            let dir = dir.join(target);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(name), parts.concat()).unwrap();
        };
        let pieces = World::new().unwrap().honest().unwrap();
        let pack_bytes = pieces.iter().find(|(piece, _)| *piece == Piece::Pack).unwrap().1.len() as u64;
        for (number, piece) in (0_u8..).zip(Piece::ALL) {
            let bytes = &pieces.iter().find(|(of, _)| *of == piece).unwrap().1;
            let name = format!("{piece:?}").to_lowercase();
            write("repo_world", name.clone(), &[&[number], bytes]);
            let (target, front) = match piece {
                Piece::Leaves => ("repo_leaf", vec![]),
                Piece::Items => ("repo_items", vec![]),
                Piece::Rows | Piece::RowLeaf => ("repo_rows", vec![]),
                Piece::Roots | Piece::Head => ("repo_roots", vec![]),
                Piece::Index => ("repo_index", vec![]),
                Piece::Directory => ("repo_directory", pack_bytes.to_le_bytes().to_vec()),
                Piece::BackupRefs | Piece::PruneRefs => ("repo_refs", 2_u64.to_le_bytes().to_vec()),
                _ => continue,
            };
            write(target, name, &[&front, bytes]);
        }
        write("repo_local_maps", "head".to_owned(), &[&World::new().unwrap().honest_local_maps()]);
        let records = Records::new().unwrap().honest();
        for (number, (piece, bytes)) in (0_u8..).zip(records) {
            write("repo_records", format!("{piece:?}").to_lowercase(), &[&[number], &bytes]);
        }
        let leaf = crate::format::page_map::split_leaf_chunk(&pieces[0].1).unwrap()[0].to_vec();
        write("repo_leaf", "full".to_owned(), &[&leaf]);
    }
}
