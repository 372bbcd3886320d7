//! The copy while the server writes: tablespaces first, then everything else, then what has changed since.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use holdfast_formats::{Lsn, SpaceId, table_name::TableFile};

use super::{Capture, layout::When};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    points::point,
    server::{Session, SqlError, tables},
    source::{
        Role,
        copier::Copier,
        files::{Entry, Stat, path_text, walk},
        inventory::{
            Amend, Before, Copied, Found, Lacks, Rescan, Spaces, Verdict, each_path_once,
            keep_the_servers_names,
        },
        keys::leave_keys,
        listing::Listing,
        outside::{OutsideFiles, number_system_files},
        plain::PlainFile,
        questions::Questions,
        redo::mysql::{DeletedSpaces, EncryptionChanges, IndexNotes, Seen},
        rewritten::{Limit, Pass, Rewritten, catch_up},
        tablespace::TablespaceEntry,
    },
};

/// How long a change of a definition may keep the server from listing its indexes.
const DEFINITION_WAIT_MAX: Duration = Duration::from_secs(3_600);
/// The LSN of such a note is known only to the block, and a copy may have begun within that block.
const NOTE_MARGIN_BYTES: u64 = 1024;
/// The root of an index is allocated in the mini-transaction that creates it, so at most this far before.
const ALLOCATION_MARGIN_BYTES: u64 = 1 << 20;
/// How many files are named.
const NAMED: usize = 3;
/// Tables have tablespaces with lower ids; undo and temporary ones count from the other end.
const TABLE_SPACES_END: SpaceId = SpaceId(1 << 31);
/// Suffix of the files of tables.
const TABLE_SUFFIX: &str = ".ibd";
/// Where tablespaces from outside the data directory go in a backup.
const OUTSIDE: &str = "#outside";

impl Capture<'_> {
    /// Step 2 of the order in [`super`].
    pub(super) fn copy_while_the_server_writes(&mut self) -> Result<()> {
        // In this order, the server's answer is about the listed files; one that has been replaced since has
        // another inode.
        let listing = self.list()?;
        let spaces = self.spaces()?;
        self.copier.context.progress.expect(listing.size_bytes());
        self.copier.tablespaces(listing.tablespaces, &spaces)?;
        point("backup.tablespaces.copied");
        self.copy_other_files(&listing.others)?;
        if let Some(said) = catch_up(&mut || self.pass())?.beyond(&self.limit_of_rewriting()) {
            self.listener.event(Event::Warning { text: said });
        }
        Ok(())
    }

    pub(super) fn limit_of_rewriting(&self) -> Limit {
        Limit::of(self.options, self.options.locks.held_max, "--lock-max")
    }

    /// Copies what has changed, once, and returns how much that was. What may only be copied while it is
    /// closed to writes is left for the end.
    pub(super) fn pass(&mut self) -> Result<Pass> {
        self.wait_for_quiet()?;
        let listing = self.list()?;
        let spaces = self.spaces()?;
        let rescan = self.rescan(listing.tablespaces, &spaces, Look::Early)?;
        let tablespaces_bytes: u64 = rescan.copy.iter().map(|found| found.entry.size_bytes).sum();
        self.copier.tablespaces(rescan.copy, &spaces)?;
        let tablespaces_bytes = tablespaces_bytes + self.amend(rescan.amend)?;
        let rewritten = self.copy_other_files(&listing.others)?;
        Ok(Pass { tablespaces_bytes, rewritten })
    }

    fn spaces(&mut self) -> Result<Spaces> {
        let cancel = self.copier.context.cancel;
        ask_past_definitions(self.questions, tables::tablespaces, self.listener, cancel)
    }

    /// Everything in the data directory, and the tablespaces that the server has elsewhere.
    pub(super) fn list(&mut self) -> Result<Listing> {
        let datadir = self.options.datadir.clone();
        let mut entries = walk(&datadir, &|path, is_dir| self.layout.skips(path, is_dir))?;
        leave_keys(&mut entries, self.facts, self.options);
        let mut tablespaces: Vec<_> = entries
            .values()
            .filter(|entry| !entry.is_dir)
            .filter_map(|entry| match self.layout.when(&entry.path) {
                When::Tablespace(role) => Some(TablespaceEntry::new(entry.clone(), role)),
                _ => None,
            })
            .collect();
        entries.retain(|path, entry| entry.is_dir || !matches!(self.layout.when(path), When::Tablespace(_)));
        let inside = datadir.canonicalize().unwrap_or(datadir);
        let own = OutsideFiles::find(self.facts, self.options, |name| {
            self.layout.when(name) == When::Tablespace(Role::Undo)
        })?;
        let own_paths: BTreeSet<_> =
            own.system.iter().chain(&own.undo).filter_map(|entry| entry.real.canonicalize().ok()).collect();
        let system = own.system.into_iter().map(|entry| (entry, Role::System));
        // By their whole paths: other directories may have files of the same names.
        let undo = own.undo.iter().filter_map(|entry| outside(&inside, entry.real.canonicalize().ok()?));
        let undo = undo.map(|entry| (entry, Role::Undo));
        tablespaces.extend(system.chain(undo).map(|(entry, role)| TablespaceEntry::new(entry, role)));
        let mut names = BTreeSet::new();
        for file in self.questions.ask(tables::mysql_files)? {
            let Ok(real) = self.options.map_path(&inside.join(file.path)).canonicalize() else { continue };
            names.insert(path_in_backup(&inside, &real));
            if let Some(entry) = outside(&inside, real).filter(|entry| !own_paths.contains(&entry.real)) {
                let role = if file.is_undo { Role::Undo } else { Role::Tablespace };
                tablespaces.push(TablespaceEntry::new(entry, role));
            }
        }
        keep_the_servers_names(&mut tablespaces, &mut entries, || Ok(names))?;
        number_system_files(self.facts, &mut tablespaces)?;
        each_path_once(&tablespaces)?;
        Ok(Listing { tablespaces, others: entries })
    }

    /// Copies files that are not tablespaces and have changed since they were copied.
    pub(super) fn copy_other_files(&mut self, entries: &BTreeMap<String, Entry>) -> Result<Rewritten> {
        let Copier { context, inventory, .. } = &mut self.copier;
        inventory.drop_vanished(context.sink, entries)?;
        inventory.add_directories(context.sink, entries.values())?;
        let changed = entries.values().filter(|entry| !entry.is_dir).filter_map(|entry| {
            let role = match self.layout.when(&entry.path) {
                When::Early(role) => role,
                When::Table => Role::EngineFile,
                _ => return None,
            };
            (!self.copier.inventory.has_unchanged(entry)).then(|| PlainFile::whole(entry.clone(), role))
        });
        let changed = changed.collect();
        let rewritten = self.copier.files(changed)?;
        self.copier.empty_log_tables(entries.values())?;
        Ok(rewritten)
    }

    pub(super) fn rescan(
        &mut self,
        now: Vec<TablespaceEntry>,
        spaces: &Spaces,
        look: Look,
    ) -> Result<Rescan> {
        let noted = Noted {
            quiet: self.quiet,
            had_quiet: self.copier.had_quiet || matches!(look, Look::Locked { .. }),
            encryption_changes: self.follower.encryption_changes(),
            index_loads: self.follower.index_loads(),
            new_index_pages: self.follower.new_index_pages(),
            deleted: self.follower.deleted(),
            highest_old_index: self.follower.highest_index_id(),
            locked: match look {
                Look::Early => None,
                Look::Locked { end } => Some(end),
            },
        };
        self.quiet = noted.locked.or(self.quiet);
        self.copier.had_quiet = noted.had_quiet;
        let follower = self.follower;
        let knows_allocations = |space| follower.knows_allocations(space);
        let judge = |found: &Found<'_>| judge(spaces, &noted, &knows_allocations, found);
        let Copier { context, inventory, parallel, .. } = &mut self.copier;
        let rescan = inventory.rescan(context.flavor, context.sink, now, *parallel, &judge)?;
        if noted.had_quiet {
            inventory.were_judged_after_quiet();
        }
        self.stats.add_rescan(&rescan, self.listener);
        Ok(rescan)
    }

    /// Adds the pages that copies lack, and returns how many bytes were read for them.
    pub(super) fn amend(&mut self, amend: Vec<Amend>) -> Result<u64> {
        if amend.is_empty() {
            return Ok(0);
        }
        let counters = self.copier.context.counters;
        let (bytes_before, pages_before) = (counters.bytes_read(), counters.pages_read());
        let named: Vec<_> = amend.iter().take(NAMED).map(|amend| amend.found.entry.path.clone()).collect();
        let more = if amend.len() > NAMED { ", …" } else { "" };
        let follower = self.follower;
        self.copier.amend(amend, |Amend { found, copied, lacks }| {
            let space = found.space(copied.key.space);
            let allocated = space.and_then(|space| follower.allocations_since(space, lacks.since));
            allocated.ok_or_else(|| {
                Error::failed(format!(
                    "{}: too many pages were allocated in it during the copy to keep track of them",
                    found.entry.path
                ))
                .hinted("take the backup when fewer tables and indexes are created in it")
            })
        })?;
        let pages = counters.pages_read() - pages_before;
        self.stats.pages_recopied += pages;
        let text = format!(
            "tables or indexes were created in {}{more} since it was copied: {pages} pages copied again",
            named.join(", ")
        );
        self.listener.event(Event::Note { text });
        Ok(counters.bytes_read() - bytes_before)
    }
}

/// Judges whether the copy of a tablespace file is good.
///
/// A copy is good if, before it began, the server knew the tablespace as it is now, and since then no index
/// was loaded into it and its encryption did not change. Ids and flags alone would miss an index that was
/// added and dropped again, a unique index that failed late, and encryption that was switched on and off
/// again: each of them makes a backup that cannot be recovered (verified on 9.7.4).
///
/// Load records alone would miss indexes that are built while their table is locked: by `LOCK=SHARED`, on an
/// expression or a virtual column that is added with them, or together with a full-text or spatial index.
/// Their pages are not in the redo, nor does a record tell of them: recovery ends as it should, with an empty
/// index (verified on 9.7.4). The tables of a full-text index exist when its build begins, are filled the
/// same way, and have no new index then. If such an index was dropped again, it shows by the pages that were
/// created for it; if rows were written meanwhile, recovery would not end.
///
/// Nothing tells when the build of an index that is gone had ended, and a copy that began in the middle of it
/// lacks its leaves (verified on 9.7.4). So a page that was created for it voids copies of any age, unless no
/// definition was being changed at some time in between: a copy from that time or later has what was built
/// before it, and an earlier copy was judged then. Only a copy made while nothing changes is sure to be of
/// use, so nothing is copied earlier for this.
///
/// A build that began before the redo that is followed leaves nothing in it at all, if its table is locked. Such a
/// build has ended when, for a moment, no definition is being changed. Then it has written all of its pages, so a
/// copy that began before that moment is good if its file has not changed since; and all later builds are told of
/// (verified on 9.7.4: a copy of a file that had changed could not be recovered). What looks like the load of an
/// index that nothing else tells of is then a chance match.
///
/// Nor does anything distinguish the creation of a table, which is all in the redo, from the build of an
/// index. A tablespace that tables share can hold much that neither touches. So of its copy only the pages
/// are copied again that were allocated since the first page was created for such an index, which the redo
/// does tell: whatever was built is in them, and on disk when no definition is being changed.
///
/// DISCARD notes a deletion in the redo, and an IMPORT after it keeps the id. Recovery ignores all redo of
/// the space, so no copy that was made while the space could be written to is good, not even a first one
/// (verified on 9.7.4).
fn judge(
    spaces: &Spaces,
    noted: &Noted,
    knows_allocations: &dyn Fn(SpaceId) -> bool,
    found: &Found<'_>,
) -> Verdict {
    let is_of_a_table =
        found.entry.role == Role::Tablespace && TableFile::from_path(&found.entry.entry.path).is_some();
    if is_of_a_table && was_deleted(spaces, noted, found) {
        return Verdict::CopyClosed;
    }
    let Some(Copied { file, before, lacks }) = found.copy else { return Verdict::CopyAgain };
    let Some(space) = found.entry.space(found.space) else { return Verdict::CopyAgain };
    // The system tablespace and undo tablespaces are not always listed; their changes are ordinary redo.
    let listed = spaces.get(&space);
    let then = before.space.as_ref();
    let changed = listed.is_some_and(|now| {
        then.is_none_or(|then| then.flag != now.flag || then.state != now.state || then.is_being_built)
    });
    let is_since = |at: Lsn, lsn: Lsn| at.0 + NOTE_MARGIN_BYTES >= lsn.0;
    let is_encrypted_otherwise =
        noted.encryption_changes.newest(space).is_some_and(|at| is_since(at, before.lsn));
    let is_listed = |index: u64| listed.is_some_and(|now| now.indexes.contains(&index));
    let was_listed = |index: u64| then.is_some_and(|then| then.indexes.contains(&index));
    // Looks like a load, and is more than a chance match.
    let is_load = |(index, seen): (u64, Seen)| {
        let is_told =
            || was_listed(index) || is_listed(index) || noted.new_index_pages.may_have(space, index);
        is_since(seen.newest, before.lsn) && (!noted.had_quiet || is_told())
    };
    let is_loaded = noted.index_loads.of(space).any(is_load)
        || noted.index_loads.elsewhere().is_some_and(|at| is_since(at, before.lsn));
    let may_be_half_built = found.entry.role != Role::Undo
        && noted.had_quiet
        && !before.after_quiet
        && !file.signature.unchanged(&found.entry.entry.stat.signature);
    if changed || is_encrypted_otherwise || is_loaded || may_be_half_built {
        return Verdict::CopyAgain;
    }
    let since_quiet = |at: Lsn| noted.quiet.is_none_or(|quiet| is_since(at, quiet));
    let voids = |(index, made): &(u64, Seen)| {
        let may_be_unfinished = || noted.locked.is_some() && since_quiet(made.newest) && !is_listed(*index);
        !was_listed(*index) && (is_since(made.newest, before.lsn) || is_listed(*index) || may_be_unfinished())
    };
    let made = noted.new_index_pages.of(space).filter(voids).map(|(_, made)| made.first).min();
    let new = || listed.zip(then).into_iter().flat_map(|(now, then)| now.new_indexes_since(then));
    // What was allocated for indexes that are older than the redo does not show in it.
    let is_untold = new().any(|index| index <= noted.highest_old_index)
        || noted
            .new_index_pages
            .elsewhere()
            .is_some_and(|at| is_since(at, before.lsn) || (noted.locked.is_some() && since_quiet(at)));
    let may_be_amended = file.unended.is_some() && knows_allocations(space);
    let lacks_something = made.is_some() || lacks.is_some() || new().next().is_some();
    if is_untold || (!may_be_amended && lacks_something) {
        return Verdict::CopyAgain;
    }
    let since = made.or_else(|| new().next().map(|_| Lsn::default()));
    match (since, noted.locked) {
        (Some(since), Some(end)) => {
            let since = Lsn(since.0.saturating_sub(ALLOCATION_MARGIN_BYTES));
            let since = lacks.map_or(since, |lacks| lacks.since.min(since));
            let then = Before { lsn: end, space: listed.cloned(), after_quiet: true };
            Verdict::Amend(Lacks { since, then })
        }
        // What was built by an earlier look is there; what was built since is left for the next look.
        _ => lacks.cloned().map_or(Verdict::Keep, Verdict::Amend),
    }
}

/// Whether the redo notes a deletion of a table's file, whose tablespace is nevertheless here.
fn was_deleted(spaces: &Spaces, noted: &Noted, found: &Found<'_>) -> bool {
    let Some(space) = found.space else { return false };
    let highest = spaces.range(..TABLE_SPACES_END).next_back().map_or(space, |(space, _)| *space);
    let when_copied = found.copy.and_then(|copy| copy.before.space.as_ref());
    let rows = spaces.get(&space).into_iter().chain(when_copied);
    let listed = rows.map(|row| format!("{}{TABLE_SUFFIX}", row.name));
    noted.deleted.has(space, highest, listed.chain([found.entry.entry.path.clone()]))
}

/// Asks about InnoDB's indexes. While a full-text index is being built, the server answers such a question
/// only after its end (verified on 9.7.4), so this waits.
pub(super) fn ask_past_definitions<T>(
    questions: &mut Questions,
    question: impl Fn(&mut Session) -> Result<T, SqlError>,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<T> {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        let asked = questions.ask(|session| match question(session) {
            Err(error) if error.is_lock_timeout() && begun.elapsed() < DEFINITION_WAIT_MAX => Ok(None),
            answer => answer.map(Some),
        });
        if let Some(answer) = asked? {
            return Ok(answer);
        }
        cancel.check()?;
        if !std::mem::replace(&mut is_told, true) {
            let text = "a DDL statement, most likely a full-text index build, keeps the server from listing \
                        its indexes: waiting for it to end";
            listener.event(Event::Warning { text: text.to_owned() });
        }
    }
}

/// What the redo captured so far only notes.
struct Noted {
    /// Where the redo ended at the last look, before this one, while no definition was being changed.
    quiet: Option<Lsn>,
    /// Whether there has been such a moment by now.
    had_quiet: bool,
    encryption_changes: EncryptionChanges,
    index_loads: IndexNotes,
    new_index_pages: IndexNotes,
    deleted: DeletedSpaces,
    /// No index that existed when the redo begins has a higher id.
    highest_old_index: u64,
    /// Set while no definition is being changed: where the redo ends.
    locked: Option<Lsn>,
}

/// When the tablespaces are compared with their copies.
#[derive(Clone, Copy)]
pub(super) enum Look {
    /// Definitions may be changing.
    Early,
    /// Definitions are not changing, nor were they when the redo ended at `end`.
    Locked { end: Lsn },
}

/// The path in a backup of the tablespace in the file `real`.
fn path_in_backup(inside: &Path, real: &Path) -> String {
    match real.strip_prefix(inside) {
        Ok(below) => path_text(below),
        Err(_) => format!("{OUTSIDE}{}", path_text(real)),
    }
}

/// A tablespace file that is not below the data directory. `real` must not contain links.
fn outside(inside: &Path, real: PathBuf) -> Option<Entry> {
    if real.starts_with(inside) {
        return None;
    }
    let stat = Stat::of(&real).ok()?;
    Some(Entry {
        path: path_in_backup(inside, &real),
        real,
        outside: true,
        size_bytes: stat.size_bytes(),
        is_dir: false,
        mode: 0o640,
        stat,
    })
}
