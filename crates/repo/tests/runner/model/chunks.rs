//! Packs of abstract chunks: a chunk is a number, and a pack is a JSON list of chunks.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
};

use holdfast_repo::{
    ChunkRef, Folder, LogName, ObjectKind, PackId, Place, Repo, RepoError, RunNo,
    data::writer::{Rewrite, Rewritten, TakeChunkBytes},
    format::refs::Move,
    log::run::{PartCounts, Run},
    store::{Store, StoreError, StoreErrorKind, read_all},
};

pub(crate) type Content = u64;

/// The contents of a model index part: packs and their chunks.
type IndexPart = Vec<(u32, Vec<Content>)>;

pub(crate) const PACK_CHUNKS: usize = 3;

/// Reads the chunks of a pack.
pub(crate) fn read_pack(store: &dyn Store, log: &LogName, pack: PackId) -> Result<Vec<Content>, StoreError> {
    Ok(serde_json::from_slice(&read_all(store, &log.pack(pack), 1 << 20)?).unwrap())
}

/// Writes packs, and an index part after every second one.
pub(crate) struct Writer<'a> {
    run: &'a Run,
    open: Vec<Content>,
    unlisted: IndexPart,
    parts: PartCounts,
    pub(crate) written: Vec<(Content, ChunkRef)>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        let (open, unlisted, written) = (Vec::new(), Vec::new(), Vec::new());
        Self { run, open, unlisted, parts: PartCounts::default(), written }
    }

    pub(crate) fn add(&mut self, content: Content) -> Result<(), RepoError> {
        self.open.push(content);
        if self.open.len() == PACK_CHUNKS { self.close_pack() } else { Ok(()) }
    }

    fn close_pack(&mut self) -> Result<(), RepoError> {
        let part = self.parts.pack;
        self.parts.pack += 1;
        let pack = PackId { run: self.run.no(), part };
        let contents = std::mem::take(&mut self.open);
        let mut upload = self.run.repo().store().put(&self.run.log().pack(pack))?;
        upload.write(&serde_json::to_vec(&contents).unwrap())?;
        upload.finish()?;
        for (ordinal, content) in (0..).zip(&contents) {
            self.written.push((*content, ChunkRef { pack, ordinal }));
        }
        self.unlisted.push((part, contents));
        if self.unlisted.len() == 2 { self.close_index() } else { Ok(()) }
    }

    fn close_index(&mut self) -> Result<(), RepoError> {
        let part = self.parts.index;
        self.parts.index += 1;
        let plain = serde_json::to_vec(&std::mem::take(&mut self.unlisted)).unwrap();
        let object = self.run.secrets().seal_index(part, &plain)?;
        let place = Place { log: self.run.log(), kind: ObjectKind::Index, run: self.run.no(), part };
        self.run.repo().put(&place, &object).map(|_| ())
    }

    pub(crate) fn finish(&mut self) -> Result<PartCounts, RepoError> {
        if !self.open.is_empty() {
            self.close_pack()?;
        }
        if !self.unlisted.is_empty() {
            self.close_index()?;
        }
        Ok(self.parts)
    }
}

/// The chunks that the index parts of a run list.
pub(crate) fn indexed_chunks(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
) -> Result<Vec<(Content, ChunkRef)>, RepoError> {
    let mut parts = Vec::new();
    let prefix = log.folder(Folder::Index);
    repo.store().list(&prefix, &mut |info| {
        parts.extend(Folder::Index.parse(info.path.file_name()));
        true
    })?;
    let mut found = Vec::new();
    for (_, part) in parts.into_iter().filter(|(of, _)| *of == run) {
        let plain = repo.read_object(&Place { log, kind: ObjectKind::Index, run, part }, 1 << 20)?;
        for (part, contents) in serde_json::from_slice::<IndexPart>(&plain).unwrap() {
            let pack = PackId { run, part };
            found.extend((0..).zip(contents).map(|(ordinal, c)| (c, ChunkRef { pack, ordinal })));
        }
    }
    Ok(found)
}

/// The model's way of rewriting chunks.
pub(crate) struct ModelRewrite<'a> {
    pub(crate) repo: &'a Repo,
    pub(crate) log: &'a LogName,
    /// How many chunks fit before the store is full.
    pub(crate) room_chunks: u64,
}

impl Rewrite for ModelRewrite<'_> {
    fn expect(&mut self, _: u64) {}

    fn chunk_bytes(&mut self, packs: &[PackId], take: TakeChunkBytes<'_>) -> Result<(), RepoError> {
        packs.iter().try_for_each(|pack| {
            let chunks = read_pack(&**self.repo.store(), self.log, *pack);
            take(*pack, chunks.map(|chunks| vec![100; chunks.len()]).map_err(Into::into))
        })
    }

    fn check(&mut self, chunks: &[ChunkRef]) -> Result<(), RepoError> {
        chunks
            .iter()
            .try_for_each(|chunk| Ok(read_pack(&**self.repo.store(), self.log, chunk.pack).map(drop)?))
    }

    fn copy(&mut self, run: &Run, chunks: &[ChunkRef]) -> Result<Rewritten, RepoError> {
        let mut packs: HashMap<PackId, Vec<Content>> = HashMap::new();
        let mut writer = Writer::new(run);
        for (written, chunk) in (0..).zip(chunks) {
            if written >= self.room_chunks {
                let full = StoreErrorKind::Io(io::ErrorKind::StorageFull.into());
                return Err(StoreError::new(self.log, full).into());
            }
            if let Entry::Vacant(unread) = packs.entry(chunk.pack) {
                unread.insert(read_pack(&**self.repo.store(), self.log, chunk.pack)?);
            }
            writer.add(packs[&chunk.pack][chunk.ordinal as usize])?;
        }
        let parts = writer.finish()?;
        let moves =
            chunks.iter().zip(&writer.written).map(|(from, (_, to))| Move { from: *from, to: *to }).collect();
        Ok(Rewritten { moves, parts })
    }
}
