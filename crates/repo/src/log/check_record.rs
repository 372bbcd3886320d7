//! What checks have read and found good, and when (`docs/reference/repository.md` section 11a).
//!
//! - A record contains everything known when it was written, so only the newest whole and believed one
//!   counts, and all older ones can be deleted. If two checks write at once, the second creates the next
//!   number, which includes what the first recorded.
//! - A pack found damaged, or gone although it is needed, is bad. It is read again by every check, no backup builds
//!   on it, and no expire takes a backup that needs it for a good one. Beyond that, records only decide what to read
//!   next: if one is lost, data is read once more.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    error::{Damage, RepoError},
    format::{
        names::{Folder, LogName, PackId, RunNo},
        place::{ObjectKind, Place},
        wire::{Decoder, FormatError, put_varint},
    },
    keys::Role,
    log::signed::{signed_bytes, split_signed},
    repo::Repo,
    sealed::{seal_object, sealed_limit_bytes},
    store::{ObjectInfo, ObjectPath, read_all},
};

const MAGIC: &[u8; 4] = b"HFC1";
const CONTEXT: &[u8] = b"holdfast check 1\0";
const FORMAT: u8 = 1;
/// Plain bytes of a record, at most: some ten times what 100 TB need.
const RECORD_BYTES_MAX: u64 = 1 << 28;
const OBJECT_BYTES_MAX: u64 = sealed_limit_bytes(RECORD_BYTES_MAX) + 128;
const PART_MAX: u32 = 999_999;
/// The highest number that a name has room for.
const NUMBER_MAX: u64 = 9_999_999_999;
/// How often to try again after other checks have written a record first.
const ATTEMPTS: u32 = 20;

/// A pack that was read completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadPack {
    size_bytes: u64,
    /// When reading began, in seconds since 1970 by the store's clock.
    at_s: u64,
}

/// Marks a pack that was found damaged or gone. To programs that do not know the mark, it has a size that no pack has,
/// and was read at a time that does not count.
const FOUND_BAD: ReadPack = ReadPack { size_bytes: 0, at_s: NEVER };
const NEVER: u64 = 0;

/// When packs of a log were last read and found good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    packs: BTreeMap<PackId, ReadPack>,
}

/// How long data has gone unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// The oldest time at which a pack was last read, or written if nobody has read it since.
    pub since: Option<SystemTime>,
    /// Packs that no check has read.
    pub never_packs: u64,
    /// Their bytes.
    pub never_bytes: u64,
}

impl Unread {
    /// Adds a pack of a run that had `ended` by then.
    pub(crate) fn add(
        &mut self,
        checked: &Checked,
        pack: PackId,
        info: &ObjectInfo,
        ended: Option<SystemTime>,
    ) {
        let since = checked.since(pack, info, ended);
        self.since = Some(self.since.map_or(since, |oldest| oldest.min(since)));
        if checked.read_at(pack, info).is_none() {
            self.never_packs += 1;
            self.never_bytes += info.size_bytes;
        }
    }
}

impl Checked {
    /// The newest record that is whole and believed; without one, nothing was read. Reports to `each`
    /// what is wrong with newer ones.
    pub fn read(repo: &Repo, log: &LogName, each: &mut dyn FnMut(RepoError)) -> Result<Self, RepoError> {
        Ok(newest(repo, log, each)?.map_or_else(Self::default, |(_, checked)| checked))
    }

    /// When the pack was last read, if that is known of the object that is stored now.
    fn read_at(&self, pack: PackId, info: &ObjectInfo) -> Option<SystemTime> {
        let read = self.packs.get(&pack).filter(|read| read.size_bytes == info.size_bytes)?;
        if read.at_s == NEVER {
            return None;
        }
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(read.at_s))?;
        // Times are recorded in whole seconds, and an object created after the read is another one.
        (at + Duration::from_secs(1) > info.created_at).then_some(at)
    }

    /// Since when nobody has read the pack: when it was last read, or written. A run writes no pack after it has
    /// `ended`: an object that appeared later is a copy, or has another owner, and nobody has read it.
    #[must_use]
    pub fn since(&self, pack: PackId, info: &ObjectInfo, ended: Option<SystemTime>) -> SystemTime {
        let written = ended.map_or(info.created_at, |ended| ended.min(info.created_at));
        self.read_at(pack, info).unwrap_or(written)
    }

    /// For how long nobody has read the pack. Reads dated in the future are ignored, and a pack that was found bad
    /// last counts as never read.
    #[must_use]
    pub fn unread_for(
        &self,
        pack: PackId,
        info: &ObjectInfo,
        ended: Option<SystemTime>,
        now: SystemTime,
    ) -> Duration {
        if self.is_bad(pack) {
            return Duration::MAX;
        }
        now.duration_since(self.since(pack, info, ended)).unwrap_or(Duration::MAX)
    }

    /// Whether any pack is known to be damaged.
    #[must_use]
    pub fn has_found_damage(&self) -> bool {
        self.packs.values().any(|read| *read == FOUND_BAD)
    }

    /// Whether the last check that has read the pack found it damaged.
    #[must_use]
    pub fn is_bad(&self, pack: PackId) -> bool {
        self.packs.get(&pack) == Some(&FOUND_BAD)
    }

    fn mark_bad(&mut self, packs: &[PackId]) {
        self.packs.extend(packs.iter().map(|pack| (*pack, FOUND_BAD)));
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        put_varint(&mut out, self.packs.len() as u64);
        for (pack, read) in &self.packs {
            put_varint(&mut out, pack.run.0);
            put_varint(&mut out, u64::from(pack.part));
            put_varint(&mut out, read.size_bytes);
            put_varint(&mut out, read.at_s);
        }
        out
    }

    fn decode(plain: &[u8]) -> Result<Self, FormatError> {
        let mut decoder = Decoder::new(plain);
        match decoder.u8("format")? {
            FORMAT => {}
            format => return Err(FormatError::unknown("format", format)),
        }
        let count = decoder.count("pack count", usize::MAX, 4)?;
        let mut packs = BTreeMap::new();
        for _ in 0..count {
            let run = RunNo(decoder.between("run", 1, u64::MAX)?);
            let pack = PackId { run, part: decoder.u32_most("part", PART_MAX)? };
            if packs.last_key_value().is_some_and(|(last, _)| *last >= pack) {
                return Err(FormatError::rule("pack", "is not after the one before"));
            }
            let size_bytes = decoder.varint("object size")?;
            packs.insert(pack, ReadPack { size_bytes, at_s: decoder.varint("time")? });
        }
        decoder.end("record")?;
        Ok(Self { packs })
    }
}

fn place(log: &LogName, number: u64) -> Place<'_> {
    Place { log, kind: ObjectKind::CheckRecord, run: RunNo(number), part: 0 }
}

fn numbers(repo: &Repo, log: &LogName) -> Result<Vec<u64>, RepoError> {
    Ok(repo.list_folder(log, Folder::Checks)?.into_keys().map(|(number, _)| number.0).collect())
}

fn newest(
    repo: &Repo,
    log: &LogName,
    each: &mut dyn FnMut(RepoError),
) -> Result<Option<(u64, Checked)>, RepoError> {
    let listed = numbers(repo, log)?.into_iter().collect();
    match newest_of(repo, log, &listed, &mut |_, error| each(error))? {
        Listed::Newest(found) | Listed::Replaced(found) => Ok(found),
    }
}

/// The newest of the listed records that is whole and believed.
enum Listed {
    Newest(Option<(u64, Checked)>),
    /// Another check has written the next record since, and deleted a newer one.
    Replaced(Option<(u64, Checked)>),
}

/// Looks for it from the newest on, and tells what is wrong with each newer one.
fn newest_of(
    repo: &Repo,
    log: &LogName,
    listed: &BTreeSet<u64>,
    each: &mut dyn FnMut(u64, RepoError),
) -> Result<Listed, RepoError> {
    let mut is_replaced = false;
    let mut found = None;
    for number in listed.iter().rev().copied() {
        match read_record(repo, log, number) {
            Ok(checked) => {
                found = Some((number, checked));
                break;
            }
            Err(error) if error.is_not_found() => is_replaced = true,
            Err(error) if error.is_of_the_object() => each(number, error),
            Err(error) => return Err(error),
        }
    }
    Ok(if is_replaced { Listed::Replaced(found) } else { Listed::Newest(found) })
}

fn read_record(repo: &Repo, log: &LogName, number: u64) -> Result<Checked, RepoError> {
    let place = place(log, number);
    let object = read_all(&**repo.store(), &place.path(), OBJECT_BYTES_MAX)?;
    let ([sealed, rest], role) = split_signed(repo, &place, MAGIC, CONTEXT, &object)?;
    if role != Role::Operator {
        return Err(RepoError::damaged(place, Damage::Role { act: "record of a check", role }));
    }
    if !rest.is_empty() {
        return Err(RepoError::malformed(place, "it has a second part"));
    }
    let plain = repo.open_object(&place, sealed, RECORD_BYTES_MAX)?;
    Checked::decode(&plain).map_err(|error| RepoError::damaged(place, Damage::from(error)))
}

/// The stored form of a record with any contents.
#[cfg(any(fuzzing, test))]
pub(crate) fn encode_raw(
    repo: &Repo,
    log: &LogName,
    number: u64,
    plain: &[u8],
) -> Result<(ObjectPath, Vec<u8>), RepoError> {
    let place = place(log, number);
    let sealed = seal_object(repo.keys(), &place, plain)?;
    Ok((place.path(), signed_bytes(repo, &place, MAGIC, CONTEXT, &[&sealed, &[]])))
}

/// Plain bytes of a record of these packs, each with its size and when it was read.
#[cfg(any(fuzzing, test))]
pub(crate) fn plain_record(packs: &[(PackId, u64, u64)]) -> Vec<u8> {
    let read = |&(pack, size_bytes, at_s): &_| (pack, ReadPack { size_bytes, at_s });
    Checked { packs: packs.iter().map(read).collect() }.encode()
}

/// Records that packs, read from `at` on, are `good`, each with its size, and that others are `bad`, whatever
/// was found before. Durable on return.
pub(crate) fn record(
    repo: &Repo,
    log: &LogName,
    good: &[(PackId, u64)],
    bad: &[PackId],
    at: SystemTime,
) -> Result<(), RepoError> {
    let at_s = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    update(repo, log, &|checked| {
        checked.mark_bad(bad);
        for (pack, size_bytes) in good {
            let read = checked.packs.entry(*pack).or_insert(ReadPack { size_bytes: *size_bytes, at_s });
            if read.size_bytes != *size_bytes || read.at_s < at_s {
                *read = ReadPack { size_bytes: *size_bytes, at_s };
            }
        }
    })
}

/// Records that packs are gone. Durable on return.
pub(crate) fn record_gone(repo: &Repo, log: &LogName, gone: &[PackId]) -> Result<(), RepoError> {
    update(repo, log, &|checked| checked.mark_bad(gone))
}

/// Forgets that packs were bad when `known` was read, if they are `useless`. Durable on return.
pub(crate) fn forget_bad(
    repo: &Repo,
    log: &LogName,
    known: &Checked,
    is_useless: &dyn Fn(PackId) -> bool,
) -> Result<(), RepoError> {
    let is_useless = |pack: &PackId| known.is_bad(*pack) && is_useless(*pack);
    match known.packs.keys().any(is_useless) {
        true => forget(repo, log, known, &is_useless),
        false => Ok(()),
    }
}

/// Forgets packs that are not `there`. Of those found bad, the ones that are `missed` are kept: that they are gone
/// must not be forgotten. Nor is what a check records meanwhile. A key that cannot read packs cannot sign records
/// either: then a record stays as it is, unless it has nothing to keep. Returns the records that do not count, or no
/// longer, for deletion.
pub(crate) fn sweep(
    repo: &Repo,
    log: &LogName,
    there: &dyn Fn(PackId) -> bool,
    missed: &dyn Fn(&Checked) -> Result<BTreeSet<PackId>, RepoError>,
) -> Result<Vec<ObjectPath>, RepoError> {
    let listed: BTreeSet<u64> = numbers(repo, log)?.into_iter().collect();
    let mut useless = BTreeSet::new();
    let newest = newest_of(repo, log, &listed, &mut |number, error| {
        if error.is_damage() {
            useless.insert(number);
        }
    })?;
    if let Listed::Newest(Some((number, checked))) | Listed::Replaced(Some((number, checked))) = newest {
        let is_any_gone = checked.packs.keys().any(|pack| checked.is_bad(*pack) && !there(*pack));
        let missed = if is_any_gone { missed(&checked)? } else { BTreeSet::new() };
        let stays = |pack: &PackId| there(*pack) || missed.contains(pack);
        let left = checked.packs.keys().filter(|pack| stays(pack)).count();
        if left == 0 {
            useless.extend(listed.range(..=number));
        } else if left < checked.packs.len() && repo.can_read() {
            forget(repo, log, &checked, &|pack| !stays(pack))?;
        } else {
            useless.extend(listed.range(..number));
        }
    }
    Ok(useless.into_iter().map(|number| place(log, number).path()).collect())
}

/// Removes what was `known` of packs that are useless. What a check has recorded since stays: it may have looked
/// later.
fn forget(
    repo: &Repo,
    log: &LogName,
    known: &Checked,
    is_useless: &dyn Fn(&PackId) -> bool,
) -> Result<(), RepoError> {
    update(repo, log, &|newest| {
        newest.packs.retain(|pack, read| !is_useless(pack) || known.packs.get(pack) != Some(read));
    })
}

/// Writes the next record: the newest one, changed.
fn update(repo: &Repo, log: &LogName, change: &dyn Fn(&mut Checked)) -> Result<(), RepoError> {
    for _ in 0..ATTEMPTS {
        // Continue after the newest whole record: a number that somebody has made up counts for nothing. One listing
        // tells which is the newest and which number is free: what is written in between has that number.
        let taken: BTreeSet<u64> = numbers(repo, log)?.into_iter().collect();
        let mut unreadable = None;
        let mut each = |_, error: RepoError| {
            if !error.is_damage() {
                unreadable.get_or_insert(error);
            }
        };
        let Listed::Newest(found) = newest_of(repo, log, &taken, &mut each)? else { continue };
        // It may have what must not be forgotten.
        if let Some(error) = unreadable {
            return Err(error);
        }
        let (last, mut checked) = found.unwrap_or_default();
        change(&mut checked);
        let free = (last.saturating_add(1)..=NUMBER_MAX).find(|number| !taken.contains(number));
        let number = free.ok_or_else(|| {
            RepoError::malformed(log.folder(Folder::Checks), "no number is left for another record")
        })?;
        let place = place(log, number);
        let sealed = seal_object(repo.keys(), &place, &checked.encode())?;
        let object = signed_bytes(repo, &place, MAGIC, CONTEXT, &[&sealed, &[]]);
        match repo.store().create_if_absent(&place.path(), &object) {
            Ok(_) => {
                let older = numbers(repo, log)?.into_iter().filter(|other| *other < number);
                let older: Vec<ObjectPath> = older.map(|number| self::place(log, number).path()).collect();
                repo.discard(&older)?;
                return Ok(());
            }
            // Another check was first.
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(RepoError::malformed(log.folder(Folder::Checks), "other checks kept writing their records first"))
}

#[cfg(test)]
mod tests {
    use holdfast_pipe::Suite;
    use proptest::prelude::*;

    use super::*;
    use crate::repo::tests::{log, new_repo};

    fn pack(part: u32) -> PackId {
        PackId { run: RunNo(1), part }
    }

    fn bad(repo: &Repo) -> Vec<u32> {
        let checked = Checked::read(repo, &log(), &mut |_| {}).unwrap();
        checked.packs.keys().filter(|pack| checked.is_bad(**pack)).map(|pack| pack.part).collect()
    }

    /// A sweep forgets only what it has looked at: not what a check finds between its look and its record.
    #[test]
    fn a_sweep_forgets_nothing_that_a_check_has_found_meanwhile() {
        let (_, repo) = new_repo(Suite::X25519Aes256Gcm);
        let (there, gone, needed, swept) = (pack(0), pack(1), pack(2), pack(3));
        record(&repo, &log(), &[(there, 9), (gone, 9), (swept, 9)], &[needed], UNIX_EPOCH).unwrap();
        let missed = |_: &Checked| {
            record_gone(&repo, &log(), &[gone, pack(4)]).unwrap();
            Ok(BTreeSet::from([needed]))
        };
        sweep(&repo, &log(), &|pack| pack == there, &missed).unwrap();
        let checked = Checked::read(&repo, &log(), &mut |_| {}).unwrap();
        assert_eq!(checked.packs.keys().copied().collect::<Vec<_>>(), [there, gone, needed, pack(4)]);
        assert_eq!(bad(&repo), [1, 2, 4]);

        forget_bad(&repo, &log(), &checked, &|_| false).unwrap();
        record_gone(&repo, &log(), &[pack(5)]).unwrap();
        forget_bad(&repo, &log(), &checked, &|pack| pack != needed).unwrap();
        assert_eq!(bad(&repo), [2, 5], "nor does a check, of what it did not know when it began");
    }

    proptest! {
        #[test]
        fn records_come_back_and_no_cut_is_taken_for_one(
            packs in prop::collection::btree_map((1..1_000_u64, 0..=PART_MAX), any::<(u64, u64)>(), 0..9),
        ) {
            let packs = packs.into_iter().map(|((run, part), (size_bytes, at_s))| {
                (PackId { run: RunNo(run), part }, ReadPack { size_bytes, at_s })
            });
            let checked = Checked { packs: packs.collect() };
            let bytes = checked.encode();
            prop_assert_eq!(Checked::decode(&bytes), Ok(checked));
            for cut in 0..bytes.len() {
                prop_assert!(Checked::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Checked::decode(&[&[FORMAT], &bytes[..]].concat());
        }
    }
}
