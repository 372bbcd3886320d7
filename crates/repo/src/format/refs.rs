//! Refs: which chunks a backup needs, and what a prune declared dead or moved
//! (`docs/reference/repository.md` section 10).
//!
//! They are all that pruning reads: no manifest and no page map is opened to find what is garbage.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{
    columns::{CHUNKS_PER_PACK_MAX, get_chunk, get_pack, put_chunk, put_pack},
    names::{ChunkRef, PackId, RunNo},
    wire::{Decoder, FormatError, VARINT_BYTES_MAX, end, put_varint},
};

/// More than a pack's chunks and directory can come to, so that sums of sizes do
/// not overflow, whoever wrote them.
const PACK_BYTES_MAX: u64 = 1 << 36;
/// Bytes of refs before sealing, at most: what some 500 TB need. In memory, they may take four times that.
pub const REFS_BYTES_MAX: u64 = 1 << 27;
/// Packs that one backup can need, and packs or chunks that one prune can name: more than are in 200 TB.
const COUNT_MAX: usize = 1 << 22;

const BACKUP: u8 = 1;
const PRUNE: u8 = 2;
const REPAIR: u8 = 3;
const UNITS_MAX: u32 = 1 << 20;

/// How much of one chunk is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkNeed {
    /// Pages, leaves, items or root entries in it.
    pub units: u32,
    /// How many of them are needed; 0: the chunk is dead.
    pub needed: u32,
}

/// A pack of which a backup needs something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededPack {
    /// The pack.
    pub pack: PackId,
    /// Size of the object.
    pub size_bytes: u64,
    /// All its chunks, by ordinal.
    pub chunks: Vec<ChunkNeed>,
}

/// What a backup needs, in order of packs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupRefs {
    /// The packs.
    pub packs: Vec<NeededPack>,
}

/// A chunk that a prune wrote anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// Where references point.
    pub from: ChunkRef,
    /// Where the content is now.
    pub to: ChunkRef,
}

/// The refs of another run, made anew by a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuiltRefs {
    /// Of a backup.
    Backup(BackupRefs),
    /// Of a prune.
    Prune(PruneRefs),
}

/// What a repair made anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairRefs {
    /// The refs, by the run that they are of.
    pub rebuilt: BTreeMap<RunNo, RebuiltRefs>,
    /// Index parts, by run and number, that others were written to replace: they count for nothing.
    pub void_index: BTreeSet<(RunNo, u32)>,
}

/// What a prune declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneRefs {
    /// Packs that nothing needs and nothing may ever need again, in order.
    pub dead: Vec<PackId>,
    /// Chunks that are elsewhere now, in order of where they were.
    pub moves: Vec<Move>,
}

fn begin(bytes: &[u8], kind: u8) -> Result<Decoder<'_>, FormatError> {
    let mut decoder = Decoder::new(bytes);
    of_type(&mut decoder, kind)?;
    Ok(decoder)
}

fn of_type(decoder: &mut Decoder<'_>, kind: u8) -> Result<(), FormatError> {
    match decoder.u8("type of refs")? {
        stored if stored == kind => Ok(()),
        BACKUP..=REPAIR => Err(FormatError::rule("type of refs", "is not that of the run's outcome")),
        stored => Err(FormatError::unknown("type of refs", stored)),
    }
}

fn in_order<T: Ord>(field: &'static str, last: Option<&T>, next: &T) -> Result<(), FormatError> {
    if last.is_some_and(|last| last >= next) {
        return Err(FormatError::rule(field, "is not after the one before"));
    }
    Ok(())
}

impl NeededPack {
    /// The ordinals of its needed chunks.
    pub(crate) fn ordinals(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.chunks).filter(|(_, chunk)| chunk.needed > 0).map(|(ordinal, _)| ordinal)
    }

    /// The needed chunks, as the refs name them.
    pub(crate) fn needed(&self) -> impl Iterator<Item = ChunkRef> + '_ {
        self.ordinals().map(|ordinal| ChunkRef { pack: self.pack, ordinal })
    }
}

impl BackupRefs {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![BACKUP];
        put_varint(&mut out, self.packs.len() as u64);
        for needed in &self.packs {
            put_pack(&mut out, needed.pack);
            put_varint(&mut out, needed.size_bytes);
            put_varint(&mut out, needed.chunks.len() as u64);
            for chunk in &needed.chunks {
                put_varint(&mut out, u64::from(chunk.units));
                put_varint(&mut out, u64::from(chunk.needed));
            }
        }
        out
    }

    /// Reads the stored form of the refs of run `run`.
    pub fn decode(run: RunNo, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut decoder = Decoder::new(bytes);
        let mut stored = StoredPacks::begin(run, &mut decoder)?;
        let mut packs = Vec::new();
        while let Some(pack) = stored.next(&mut decoder)? {
            packs.push(pack.clone());
        }
        decoder.end("refs")?;
        Ok(Self { packs })
    }
}

/// Decodes the packs of a backup's refs one after another, so that only one is in memory.
struct StoredPacks {
    /// The run that the refs are of.
    run: RunNo,
    left: usize,
    last: Option<PackId>,
    pack: NeededPack,
}

impl StoredPacks {
    /// Bytes that a pack can take in the stored form, at most. What comes before the first pack takes less.
    const BYTES_MAX: usize = (4 + 2 * CHUNKS_PER_PACK_MAX as usize) * VARINT_BYTES_MAX;

    fn begin(run: RunNo, decoder: &mut Decoder<'_>) -> Result<Self, FormatError> {
        of_type(decoder, BACKUP)?;
        // Nothing is allocated for this many.
        let left = decoder.count("pack count", COUNT_MAX, 0)?;
        let pack = NeededPack { pack: PackId { run, part: 0 }, size_bytes: 0, chunks: Vec::new() };
        Ok(Self { run, left, last: None, pack })
    }

    /// The next pack, in order. The decoder must hold [`Self::BYTES_MAX`] bytes, or all that are left.
    fn next(&mut self, decoder: &mut Decoder<'_>) -> Result<Option<&NeededPack>, FormatError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let pack = get_pack(decoder)?;
        in_order("pack", self.last.as_ref(), &pack)?;
        self.last = Some(pack);
        if pack.run > self.run {
            return Err(FormatError::rule("pack", "is of a later run"));
        }
        let size_bytes = decoder.varint("object size")?;
        if size_bytes > PACK_BYTES_MAX {
            return Err(FormatError::rule("object size", "is more than a pack has"));
        }
        let chunk_count = decoder.count("chunk count", CHUNKS_PER_PACK_MAX as usize, 2)?;
        let chunks = &mut self.pack.chunks;
        chunks.clear();
        chunks.reserve(chunk_count);
        for _ in 0..chunk_count {
            let units = decoder.u32_most("units", UNITS_MAX)?;
            chunks.push(ChunkNeed { units, needed: decoder.u32_most("needed units", units)? });
        }
        (self.pack.pack, self.pack.size_bytes) = (pack, size_bytes);
        Ok(Some(&self.pack))
    }
}

/// Goes through the stored form of the refs of the backup `run`, one pack at a time, in order,
/// as [`BackupRefs::decode`] would return them.
///
/// `more` appends the next bytes of the stored form, and returns whether more follow. Errors are found where
/// they are: by then, `each` has been given what comes before.
pub(crate) fn each_needed_pack<E>(
    run: RunNo,
    mut more: impl FnMut(&mut Vec<u8>) -> Result<bool, E>,
    broken: impl Fn(FormatError) -> E,
    mut each: impl FnMut(&NeededPack),
) -> Result<(), E> {
    let mut bytes = Vec::new();
    let mut is_more = true;
    let mut packs = None;
    loop {
        while is_more && bytes.len() < StoredPacks::BYTES_MAX {
            is_more = more(&mut bytes)?;
        }
        // Decode only packs that are certainly complete.
        let least = if is_more { StoredPacks::BYTES_MAX } else { 0 };
        let mut decoder = Decoder::new(&bytes);
        let packs = match &mut packs {
            Some(packs) => packs,
            none => none.insert(StoredPacks::begin(run, &mut decoder).map_err(&broken)?),
        };
        while packs.left > 0 && decoder.left() >= least {
            if let Some(pack) = packs.next(&mut decoder).map_err(&broken)? {
                each(pack);
            }
        }
        let left = decoder.left();
        if packs.left > 0 {
            bytes.drain(..bytes.len() - left);
            continue;
        }
        let mut trailing = left;
        while is_more {
            bytes.clear();
            is_more = more(&mut bytes)?;
            trailing += bytes.len();
        }
        return end("refs", trailing).map_err(&broken);
    }
}

impl PruneRefs {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![PRUNE];
        put_varint(&mut out, self.dead.len() as u64);
        for dead in &self.dead {
            put_pack(&mut out, *dead);
        }
        put_varint(&mut out, self.moves.len() as u64);
        for Move { from, to } in &self.moves {
            put_chunk(&mut out, *from);
            put_chunk(&mut out, *to);
        }
        out
    }

    /// Reads the stored form of the refs of run `run`. What is dead or moved is of earlier runs, and moves
    /// lead into packs of this run, so following moves always ends.
    pub fn decode(run: RunNo, bytes: &[u8]) -> Result<Self, FormatError> {
        Self::decode_within(run, run, bytes)
    }

    /// As [`decode`](Self::decode), with moves that lead into packs of any run from `run` to `last`.
    fn decode_within(run: RunNo, last: RunNo, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut decoder = begin(bytes, PRUNE)?;
        let count = decoder.count("dead count", COUNT_MAX, 2)?;
        let mut dead = Vec::with_capacity(count);
        for _ in 0..count {
            let pack = get_pack(&mut decoder)?;
            in_order("dead pack", dead.last(), &pack)?;
            if pack.run >= run {
                return Err(FormatError::rule("dead pack", "is not of an earlier run"));
            }
            dead.push(pack);
        }
        let count = decoder.count("move count", usize::MAX, 6)?;
        let mut moves: Vec<Move> = Vec::with_capacity(count);
        for _ in 0..count {
            let next = Move { from: get_chunk(&mut decoder)?, to: get_chunk(&mut decoder)? };
            in_order("move", moves.last().map(|last| &last.from), &next.from)?;
            if next.from.pack.run >= run || !(run..=last).contains(&next.to.pack.run) {
                return Err(FormatError::rule("move", "does not lead from an earlier run into this one"));
            }
            moves.push(next);
        }
        decoder.end("refs")?;
        Ok(Self { dead, moves })
    }
}

impl RepairRefs {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![REPAIR];
        put_varint(&mut out, self.rebuilt.len() as u64);
        for (run, refs) in &self.rebuilt {
            let bytes = match refs {
                RebuiltRefs::Backup(refs) => refs.encode(),
                RebuiltRefs::Prune(refs) => refs.encode(),
            };
            put_varint(&mut out, run.0);
            put_varint(&mut out, bytes.len() as u64);
            out.extend_from_slice(&bytes);
        }
        put_varint(&mut out, self.void_index.len() as u64);
        for (run, part) in &self.void_index {
            put_pack(&mut out, PackId { run: *run, part: *part });
        }
        out
    }

    /// Reads the stored form of the refs of the repair `run`. Refs made anew record where chunks have gone
    /// since, so they may name packs of any run up to this one.
    pub fn decode(run: RunNo, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut decoder = begin(bytes, REPAIR)?;
        let count = decoder.count("rebuilt count", usize::MAX, 3)?;
        let mut rebuilt = BTreeMap::new();
        for _ in 0..count {
            let of = RunNo(decoder.between("run", 1, run.0.saturating_sub(1))?);
            in_order("run", rebuilt.last_key_value().map(|(last, _)| last), &of)?;
            let len = decoder.count("length", usize::MAX, 1)?;
            let refs = decoder.bytes("refs", len)?;
            let refs = match refs.first() {
                Some(&PRUNE) => RebuiltRefs::Prune(PruneRefs::decode_within(of, run, refs)?),
                _ => RebuiltRefs::Backup(BackupRefs::decode(run, refs)?),
            };
            rebuilt.insert(of, refs);
        }
        let count = decoder.count("void count", usize::MAX, 2)?;
        let mut void_index = BTreeSet::new();
        for _ in 0..count {
            let PackId { run: of, part } = get_pack(&mut decoder)?;
            in_order("index part", void_index.last(), &(of, part))?;
            void_index.insert((of, part));
        }
        decoder.end("refs")?;
        Ok(Self { rebuilt, void_index })
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, collection::btree_set, collection::vec, prelude::*};

    use super::*;
    use crate::format::columns::PART_MAX;

    const RUN: RunNo = RunNo(1_000);

    fn any_pack(runs: std::ops::Range<u64>) -> impl Strategy<Value = PackId> {
        (runs, 0..=PART_MAX).prop_map(|(run, part)| PackId { run: RunNo(run), part })
    }

    fn any_chunk(runs: std::ops::Range<u64>) -> impl Strategy<Value = ChunkRef> {
        (any_pack(runs), 0..CHUNKS_PER_PACK_MAX).prop_map(|(pack, ordinal)| ChunkRef { pack, ordinal })
    }

    fn any_backup() -> impl Strategy<Value = BackupRefs> {
        let need = (0..=UNITS_MAX)
            .prop_flat_map(|units| (0..=units).prop_map(move |needed| ChunkNeed { units, needed }));
        btree_map(any_pack(1..1_001), (0..=PACK_BYTES_MAX, vec(need, 0..9)), 0..9).prop_map(|packs| {
            BackupRefs {
                packs: packs
                    .into_iter()
                    .map(|(pack, (size_bytes, chunks))| NeededPack { pack, size_bytes, chunks })
                    .collect(),
            }
        })
    }

    fn any_prune() -> impl Strategy<Value = PruneRefs> {
        let moves = btree_map(any_chunk(1..1_000), any_chunk(1_000..1_001), 0..9);
        (btree_set(any_pack(1..1_000), 0..9), moves).prop_map(|(dead, moves)| PruneRefs {
            dead: dead.into_iter().collect(),
            moves: moves.into_iter().map(|(from, to)| Move { from, to }).collect(),
        })
    }

    proptest! {
        #[test]
        fn refs_come_back_and_no_cut_is_taken_for_them(backup in any_backup(), prune in any_prune()) {
            let bytes = backup.encode();
            prop_assert_eq!(BackupRefs::decode(RUN, &bytes), Ok(backup));
            prop_assert!(PruneRefs::decode(RUN, &bytes).is_err());
            for cut in 0..bytes.len() {
                prop_assert!(BackupRefs::decode(RUN, &bytes[..cut]).is_err());
                prop_assert_eq!(gone_through(&bytes[..cut], 7), BackupRefs::decode(RUN, &bytes[..cut]));
            }
            let bytes = prune.encode();
            prop_assert_eq!(PruneRefs::decode(RUN, &bytes), Ok(prune));
            for cut in 0..bytes.len() {
                prop_assert!(PruneRefs::decode(RUN, &bytes[..cut]).is_err());
            }
        }

        #[test]
        fn refs_made_anew_come_back(backup in any_backup(), prune in any_prune(), void in btree_set((1..1_000_u64, 0..9_u32), 0..9)) {
            let rebuilt = [(RunNo(7), RebuiltRefs::Backup(backup)), (RunNo(1_000), RebuiltRefs::Prune(prune))];
            let void_index = void.into_iter().map(|(run, part)| (RunNo(run), part)).collect();
            let refs = RepairRefs { rebuilt: rebuilt.into_iter().collect(), void_index };
            let bytes = refs.encode();
            prop_assert_eq!(RepairRefs::decode(RunNo(1_001), &bytes), Ok(refs));
            for cut in 0..bytes.len() {
                prop_assert!(RepairRefs::decode(RunNo(1_001), &bytes[..cut]).is_err());
            }
        }

        #[test]
        fn random_bytes_never_panic(kind in 1..4_u8, rest in vec(any::<u8>(), 0..200)) {
            let mut bytes = vec![kind];
            bytes.extend(rest);
            prop_assert_eq!(gone_through(&bytes, 3), BackupRefs::decode(RUN, &bytes));
            let _ = PruneRefs::decode(RUN, &bytes);
            let _ = RepairRefs::decode(RUN, &bytes);
        }
    }

    /// Refs of more than a few pieces, so that packs cross their borders.
    fn long_refs() -> BackupRefs {
        let pack = |part: u32| {
            let count = if part % 7 == 3 { CHUNKS_PER_PACK_MAX } else { part * 37 % 1_000 };
            let need = |at: u32| {
                let units = if at.is_multiple_of(5) { UNITS_MAX } else { 64 };
                ChunkNeed { units, needed: at % (units + 1) }
            };
            NeededPack {
                pack: PackId { run: RunNo(1 + u64::from(part / 9)), part },
                size_bytes: u64::from(part) << 20,
                chunks: (0..count).map(need).collect(),
            }
        };
        BackupRefs { packs: (0..150).map(pack).collect() }
    }

    /// What going through `bytes` in pieces of `piece` bytes finds.
    /// No more is held than a pack can take, and a piece.
    fn gone_through(bytes: &[u8], piece: usize) -> Result<BackupRefs, FormatError> {
        let mut pieces = bytes.chunks(piece).peekable();
        let mut packs = Vec::new();
        let more = |held: &mut Vec<u8>| {
            assert!(held.len() < StoredPacks::BYTES_MAX, "{} bytes are held", held.len());
            held.extend_from_slice(pieces.next().unwrap_or_default());
            Ok(pieces.peek().is_some())
        };
        each_needed_pack(RUN, more, |error| error, |pack| packs.push(pack.clone()))?;
        Ok(BackupRefs { packs })
    }

    /// Going through refs gives the same result as reading them whole, errors included.
    #[test]
    fn refs_in_pieces_are_those_that_are_read_whole() {
        let refs = long_refs();
        let good = refs.encode();
        assert!(good.len() > 3 * StoredPacks::BYTES_MAX);
        let mut all = vec![good.clone(), [&good[..], &[0]].concat(), [&good[..], &vec![7; 1 << 20]].concat()];
        all.push(PruneRefs::default().encode());
        all.push(Vec::new());
        // Counts that are too large or too small, and values that nobody can have, all over.
        for at in (0..14).chain((14..good.len()).step_by(good.len() / 40)) {
            all.push(good[..at].to_vec());
            for byte in [0x00, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                all.push(bad);
            }
            all.push([&good[..at], &[0xff; 30]].concat());
        }
        let mut wrong = 0;
        for bytes in all {
            let whole = BackupRefs::decode(RUN, &bytes);
            wrong += usize::from(whole.is_err());
            for piece in [60_001, StoredPacks::BYTES_MAX, 1 << 20, usize::MAX] {
                assert_eq!(gone_through(&bytes, piece), whole, "pieces of {piece}");
            }
        }
        assert!(wrong > 100, "{wrong}");
        assert_eq!(gone_through(&good, 1_000), Ok(refs));
    }

    /// A count alone makes nobody allocate memory for that many.
    #[test]
    fn counts_that_nothing_is_behind_cost_nothing() {
        let mut bytes = vec![BACKUP];
        put_varint(&mut bytes, COUNT_MAX as u64);
        put_pack(&mut bytes, PackId { run: RunNo(1), part: 0 });
        put_varint(&mut bytes, PACK_BYTES_MAX);
        put_varint(&mut bytes, u64::from(CHUNKS_PER_PACK_MAX));
        assert!(BackupRefs::decode(RUN, &bytes).is_err());
        assert!(gone_through(&bytes, 3).is_err());
        put_varint(&mut bytes, u64::from(CHUNKS_PER_PACK_MAX) + 1);
        assert!(gone_through(&bytes, 3).is_err());
        let mut more = vec![BACKUP];
        put_varint(&mut more, COUNT_MAX as u64 + 1);
        assert!(BackupRefs::decode(RUN, &more).is_err());
    }

    #[test]
    fn moves_lead_forward_only() {
        let at = |run, ordinal| ChunkRef { pack: PackId { run: RunNo(run), part: 0 }, ordinal };
        for (from, to) in
            [(at(5, 0), at(5, 1)), (at(4, 0), at(4, 1)), (at(6, 0), at(5, 0)), (at(4, 0), at(6, 0))]
        {
            let bytes = PruneRefs { dead: vec![], moves: vec![Move { from, to }] }.encode();
            assert!(PruneRefs::decode(RunNo(5), &bytes).is_err(), "{from} to {to}");
        }
    }
}
