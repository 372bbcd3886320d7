//! How well each codec has compressed what is stored, from the index alone.
//!
//! An index part is signed by nobody, so an entry counts only if its pack exists and has the listed size.
//! Packs that no part lists, because their run is under way or their index is damaged, are counted, but their
//! content is not guessed.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_pipe::Codec;

use crate::{
    data::reader::catalog::read_index_parts,
    error::RepoError,
    format::{
        names::{Folder, PackId, RunNo},
        pack::{ChunkKind, ChunkRow},
    },
    interrupt::Interrupt,
    log::history::History,
    repo::Repo,
    store::ObjectInfo,
};

/// The content of chunks, as far as it decides how well they compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Pages and rows.
    Data,
    /// Maps of where these are: leaves, items and roots. Mostly hashes, which do not compress.
    Maps,
}

impl Content {
    fn of(kind: ChunkKind) -> Self {
        match kind {
            ChunkKind::Pages(_) | ChunkKind::Rows => Self::Data,
            ChunkKind::Leaves | ChunkKind::Items | ChunkKind::Roots | ChunkKind::RowLeaf => Self::Maps,
        }
    }

    /// The name as shown to users.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Maps => "maps",
        }
    }
}

/// What one codec has made of one kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecBytes {
    /// The codec.
    pub codec: Codec,
    /// The kind of content.
    pub content: Content,
    /// How many chunks.
    pub chunks: u64,
    /// Bytes of these chunks before compression.
    pub plain_bytes: u64,
    /// Bytes of these chunks in packs, with their seals.
    pub stored_bytes: u64,
}

/// Results of all codecs for the packs of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compression {
    /// Data first, then by codec; combinations that do not occur are left out.
    pub codecs: Vec<CodecBytes>,
    /// Packs whose content no index part lists.
    pub unlisted_packs: u64,
    /// Bytes of these packs.
    pub unlisted_bytes: u64,
}

#[derive(Default)]
struct Sums(BTreeMap<(Content, u8), CodecBytes>);

impl Sums {
    fn add(&mut self, row: &ChunkRow) {
        let (codec, content) = (row.codec, Content::of(row.kind));
        let none = CodecBytes { codec, content, chunks: 0, plain_bytes: 0, stored_bytes: 0 };
        let sum = self.0.entry((content, codec as u8)).or_insert(none);
        sum.chunks += 1;
        sum.plain_bytes += u64::from(row.plain_len);
        sum.stored_bytes += u64::from(row.sealed_len);
    }
}

impl Compression {
    /// Sums up the packs of a log that are `there`. Only a few index parts at a time are in memory.
    pub(crate) fn of(
        repo: &Repo,
        history: &History,
        there: &BTreeMap<(RunNo, u32), ObjectInfo>,
        interrupt: &Interrupt,
    ) -> Result<Self, RepoError> {
        let log = history.log();
        let void = history.void_index(repo)?;
        let mut sums = Sums::default();
        let mut listed = BTreeSet::new();
        let parts = repo.list_folder(log, Folder::Index)?.into_iter();
        let parts: Vec<_> = parts.filter(|(part, _)| !void.contains(part)).collect();
        read_index_parts(repo, log, &parts, |(run, _), packs| {
            interrupt.check()?;
            let packs = match packs {
                // Its packs then count as unlisted, and a check reports it.
                Err(error) if error.is_of_the_object() => return Ok(()),
                packs => packs?,
            };
            for (part, rows) in packs {
                let is_there = there.get(&(run, part)).is_some_and(|it| it.size_bytes == rows.size_bytes);
                if is_there && listed.insert(PackId { run, part }) {
                    rows.rows().iter().for_each(|row| sums.add(row));
                }
            }
            Ok::<_, RepoError>(())
        })?;
        let unlisted =
            there.iter().filter(|((run, part), _)| !listed.contains(&PackId { run: *run, part: *part }));
        let (mut unlisted_packs, mut unlisted_bytes) = (0, 0);
        for (_, info) in unlisted {
            unlisted_packs += 1;
            unlisted_bytes += info.size_bytes;
        }
        Ok(Self { codecs: sums.0.into_values().collect(), unlisted_packs, unlisted_bytes })
    }
}
