//! Rebuilds the index of a run from its packs.

use crate::{
    data::reader::catalog::read_directory,
    error::RepoError,
    format::{
        index::{IndexedPack, encode},
        names::{Folder, PackId, RunNo},
        place::{ObjectKind, Place},
    },
    log::run::Run,
    sealed::RunSecrets,
    store::ahead::in_order,
};

/// Packs in an index part: as many as a writer lists in one, since looking up a
/// single pack means reading the whole part.
const PACKS_PER_PART: usize = 32;

/// Writes the index of run `of`: all its packs that exist and whose directories can be read. Returns the
/// parts, by run and number, that this replaces.
///
/// The new parts have numbers that were never given out, so nothing is overwritten, and if the repair dies,
/// its parts say nothing wrong.
pub(super) fn write(run: &Run, of: RunNo) -> Result<Vec<(RunNo, u32)>, RepoError> {
    let (repo, log) = (run.repo(), run.log());
    let there = repo.list_folder(log, Folder::Index)?;
    let parts: Vec<u32> = there.into_keys().filter(|(run, _)| *run == of).map(|(_, part)| part).collect();
    let recorded = run.history().outcome(of).map_or(0, |outcome| outcome.index_parts);
    let void = run.history().void_index(repo)?;
    let given_out = void.iter().filter(|(run, _)| *run == of).map(|(_, part)| part + 1).max();
    let next = parts.last().map_or(0, |last| last + 1).max(recorded).max(given_out.unwrap_or(0));
    let mut listed = Vec::new();
    let packs = repo.list_folder(log, Folder::Packs)?.into_iter().filter(|((run, _), _)| *run == of);
    let packs: Vec<(u32, u64)> = packs.map(|((_, part), info)| (part, info.size_bytes)).collect();
    // The existing parts are signed by nobody: only the packs themselves tell their content.
    let ask = |(part, size_bytes): &(u32, u64)| {
        match read_directory(repo, log, PackId { run: of, part: *part }, Some(*size_bytes)) {
            Ok(own) => Ok(Some(own.directory.rows)),
            // A pack with an unreadable directory is a finding of its own.
            Err(error) if error.is_of_the_object() => Ok(None),
            Err(error) => Err(error),
        }
    };
    in_order(repo.store().reads_at_once(), &packs, ask, |(part, size_bytes), rows| {
        listed.extend(rows.map(|rows| IndexedPack { part: *part, size_bytes: *size_bytes, rows }));
        Ok(())
    })?;
    let secrets = RunSecrets::draw(repo.keys(), log, of)?;
    for (part, packs) in (next..).zip(listed.chunks(PACKS_PER_PART)) {
        let object = secrets.seal_index(part, &encode(packs))?;
        repo.put(&Place { log, kind: ObjectKind::Index, run: of, part }, &object)?;
    }
    Ok(parts.into_iter().map(|part| (of, part)).collect())
}
