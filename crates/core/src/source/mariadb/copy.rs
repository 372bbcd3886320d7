//! The copy while the server writes: tablespaces first, then everything else, then what has changed since.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
};

use holdfast_formats::SpaceId;

use super::{
    Capture, aria,
    discarded::{Changes, can_be_imported},
    layout::When,
};
use crate::{
    error::{Error, Result},
    event::Event,
    points::point,
    server::tables,
    source::{
        Role,
        copier::Copier,
        copy::zeroed_first_page,
        files::{Entry, Stat, read_failed, walk},
        inventory::{Found, Rescan, Spaces, Verdict, each_path_once, keep_the_servers_names},
        keys::leave_keys,
        listing::Listing,
        outside::{OutsideFiles, number_system_files},
        plain::{Manner, PlainFile},
        redo::mariadb::FileNotes,
        rewritten::{Limit, Pass, Rewritten, catch_up},
        tablespace::TablespaceEntry,
        workers::Buffers,
    },
};

/// The server writes its Aria log in buffers of 1 MiB, of which it has up to eight, from several threads: a
/// later buffer can be in the file before an earlier one.
pub(super) const ARIA_LOG_BUFFERS_BYTES: u64 = 8 << 20;
/// Data this far before the end of an Aria log is never written again. Its last page is, when it fills.
const ARIA_LOG_MARGIN_BYTES: u64 = ARIA_LOG_BUFFERS_BYTES + (64 << 10);

/// When the data directory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// While tables are created, renamed and dropped: whatever is half done is looked at again.
    Early,
    /// While definitions cannot change: nothing may be half done.
    Settled,
}

impl Capture<'_> {
    /// Steps 2 and 3 of the order in [`super`].
    pub(super) fn copy_while_the_server_writes(&mut self) -> Result<()> {
        let listing = self.list(Look::Early)?;
        self.copier.context.progress.expect(listing.size_bytes());
        self.warn_of_fixed_places(&listing);
        self.copy_tablespaces(listing.tablespaces)?;
        point("backup.tablespaces.copied");
        self.copy_other_files(&listing.others)?;
        if let Some(said) = catch_up(&mut || self.pass())?.beyond(&self.limit_of_rewriting()) {
            self.listener.event(Event::Warning { text: said });
        }
        Ok(())
    }

    /// Warns of tables with DATA DIRECTORY if the redo is encrypted: it names their places, and no restore can
    /// change that. Files behind a link it names by their places in the data directory.
    fn warn_of_fixed_places(&self, listing: &Listing) {
        let has_link = |found: &&TablespaceEntry| {
            let stem = found.entry.path.strip_suffix(".ibd");
            stem.is_some_and(|stem| listing.others.contains_key(&format!("{stem}.isl")))
        };
        let mut outside = listing.tablespaces.iter().filter(has_link);
        if let Some(first) = outside.next().filter(|_| self.baseline.is_some()) {
            let others = match outside.count() {
                0 => String::new(),
                count => format!(" and {count} more"),
            };
            self.listener.event(Event::Warning {
                text: format!(
                    "{}{others} outside the data directory: the encrypted redo log contains their paths, so \
                     a restore must put these tables in the same place (restore --map DIR=DIR), and no table \
                     can be taken out of this backup alone",
                    first.entry.path
                ),
            });
        }
    }

    pub(super) fn limit_of_rewriting(&self) -> Limit {
        Limit::of(self.options, self.options.locks.ddl_held_max, "--ddl-lock-max")
    }

    /// Copies what has changed, once, and returns how much that was. A discarded tablespace may be copied
    /// only while it is closed to writes, and is left for the end.
    pub(super) fn pass(&mut self) -> Result<Pass> {
        let listing = self.list(Look::Early)?;
        let Rescan { copy, copy_closed, .. } = self.rescan(listing.tablespaces, Look::Early)?;
        self.closes_tables |= !copy_closed.is_empty();
        let tablespaces_bytes = copy.iter().map(|found| found.entry.size_bytes).sum();
        self.copy_tablespaces(copy)?;
        let rewritten = self.copy_other_files(&listing.others)?;
        Ok(Pass { tablespaces_bytes, rewritten })
    }

    /// Everything in the data directory and wherever it points.
    pub(super) fn list(&mut self, look: Look) -> Result<Listing> {
        let mut entries = walk(&self.options.datadir, &|path, is_dir| self.layout.skips(path, is_dir))?;
        leave_keys(&mut entries, self.facts, self.options);
        let mut tablespaces = Vec::new();
        let mut links = Vec::new();
        for entry in entries.values().filter(|entry| !entry.is_dir) {
            match self.layout.when(&entry.path) {
                When::Tablespace(role) => tablespaces.push(TablespaceEntry::new(entry.clone(), role)),
                When::Link => links.extend(self.linked_tablespace(entry, look)?),
                _ => {}
            }
        }
        for found in links {
            if !entries.contains_key(&found.entry.path) {
                tablespaces.push(found);
            }
        }
        entries.retain(|path, entry| entry.is_dir || !matches!(self.layout.when(path), When::Tablespace(_)));
        let outside = self.outside()?;
        let system = outside.system.into_iter().map(|entry| (entry, Role::System));
        let undo = outside.undo.into_iter().map(|entry| (entry, Role::Undo));
        tablespaces.extend(system.chain(undo).map(|(entry, role)| TablespaceEntry::new(entry, role)));
        entries.extend(outside.aria.into_iter().map(|entry| (entry.path.clone(), entry)));
        keep_the_servers_names(&mut tablespaces, &mut entries, || self.servers_names())?;
        number_system_files(self.facts, &mut tablespaces)?;
        each_path_once(&tablespaces)?;
        Ok(Listing { tablespaces, others: entries })
    }

    /// Paths of tablespaces, as the server would write them, including those that were never opened.
    fn servers_names(&mut self) -> Result<BTreeSet<String>> {
        let tables = self.questions.ask(tables::mariadb_table_spaces)?;
        let system = self.facts.system_file_names()?;
        Ok(tables.into_keys().map(|name| format!("{name}.ibd")).chain(system).collect())
    }

    /// Copied files with a page 0 of zeros that belong to a table and were not created since the capture
    /// began. Page 0 of such a table can be in the server's memory only. Then the server has the table open,
    /// and closing the table writes the page. Definitions must be blocked; `open` are the tablespaces that
    /// the server has open.
    pub(super) fn unwritten_of_old_tables(&mut self, open: &Spaces) -> Result<BTreeSet<String>> {
        let unwritten: Vec<_> = self.copier.inventory.unwritten().cloned().collect();
        if unwritten.is_empty() {
            return Ok(BTreeSet::new());
        }
        let notes = self.follower.file_notes();
        let spaces = self.questions.ask(tables::mariadb_table_spaces)?;
        let mut old = BTreeSet::new();
        for found in unwritten {
            let path = &found.entry.path;
            // A file that belongs to no table was left by a crash.
            let Some(space) = path.strip_suffix(".ibd").and_then(|name| spaces.get(name)) else { continue };
            let is_new = match &self.baseline {
                None => notes.created.contains(space),
                Some(baseline) => !baseline.had(*space),
            };
            if is_new {
                continue;
            }
            if !open.contains_key(space) {
                return Err(zeroed_first_page(path));
            }
            // The tables behind a full-text index cannot be closed by their names.
            if can_be_imported(&found) {
                old.insert(path.clone());
            }
        }
        Ok(old)
    }

    /// The tablespace that an `.isl` file names: `db/t.isl` holds the path of the file that serves as
    /// `db/t.ibd`.
    fn linked_tablespace(&self, link: &Entry, look: Look) -> Result<Option<TablespaceEntry>> {
        let target = match std::fs::read_to_string(&link.real) {
            Ok(text) => PathBuf::from(text.trim_end_matches(['\n', '\r', ' ', '\0'])),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(read_failed(&link.real, error)),
        };
        // The server creates the file, then writes into it. A table that is being created is found by a later
        // look.
        if target.as_os_str().is_empty() && look == Look::Early {
            return Ok(None);
        }
        if !target.is_absolute() {
            return Err(Error::failed(format!("{}: does not contain an absolute path", link.path)));
        }
        let target = self.options.map_path(&target);
        let stat = match Stat::of(&target) {
            Ok(stat) => stat,
            Err(error) if error.kind() == io::ErrorKind::NotFound && look == Look::Early => return Ok(None),
            // The server does not list a table that was never opened, so nothing else would notice that it is
            // missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::failed(format!(
                    "{}: points to {}, which does not exist",
                    link.path,
                    target.display()
                ))
                .hinted("is it where this process cannot see it? see --path-map; remove the link if its table is gone"));
            }
            Err(error) => return Err(read_failed(&target, error)),
        };
        let path = format!("{}.ibd", link.path.strip_suffix(".isl").unwrap_or(&link.path));
        let entry = Entry {
            path,
            real: target,
            outside: true,
            size_bytes: stat.size_bytes(),
            is_dir: false,
            mode: link.mode,
            stat,
        };
        Ok(Some(TablespaceEntry::new(entry, Role::Tablespace)))
    }

    pub(super) fn outside(&self) -> Result<OutsideFiles> {
        OutsideFiles::find(self.facts, self.options, |name| {
            self.layout.when(name) == When::Tablespace(Role::Undo)
        })
    }

    /// Copies tablespaces along with what the server lists now: one that it does not list may be rewritten by
    /// an IMPORT.
    pub(super) fn copy_tablespaces(&mut self, found: Vec<TablespaceEntry>) -> Result<()> {
        if found.is_empty() {
            return Ok(());
        }
        let spaces = self.questions.ask(tables::tablespaces)?;
        self.copier.tablespaces(found, &spaces)
    }

    /// Copies files that are not tablespaces and have changed since they were copied, the Aria control file
    /// first.
    pub(super) fn copy_other_files(&mut self, entries: &BTreeMap<String, Entry>) -> Result<Rewritten> {
        self.copier.inventory.drop_vanished(self.copier.context.sink, entries)?;
        self.copier.inventory.add_directories(self.copier.context.sink, entries.values())?;
        let files = || entries.values().filter(|entry| !entry.is_dir);
        if let Some(control) = files().find(|entry| self.layout.when(&entry.path) == When::AriaControl)
            && self.aria_control.is_none()
        {
            self.aria_control = aria::read_control(control)?;
        }
        let changed = files().filter_map(|entry| {
            let role = match self.layout.when(&entry.path) {
                When::Early(role) | When::Late(role) => role,
                When::Link => Role::Other,
                _ => return None,
            };
            let manner = match role {
                Role::Aria => Manner::Aria { index: aria::index_of(entry, entries).to_owned() },
                _ => Manner::Whole,
            };
            let have = self.copier.inventory.has_unchanged(entry);
            (!have).then(|| PlainFile { entry: entry.clone(), role, manner })
        });
        let changed = changed.collect();
        let rewritten = self.copier.files(changed)?;
        self.copier.empty_log_tables(files())?;
        self.copy_aria_logs(files())?;
        Ok(rewritten)
    }

    /// Copies what the Aria logs have grown by, and returns the logs.
    pub(super) fn copy_aria_logs<'a>(
        &mut self,
        files: impl Iterator<Item = &'a Entry>,
    ) -> Result<Vec<&'a Entry>> {
        let mut buffers = Buffers::default();
        let mut logs: Vec<_> = files.filter(|entry| self.layout.when(&entry.path) == When::AriaLog).collect();
        logs.sort_by_key(|entry| &entry.path);
        for entry in &logs {
            self.copier.grown(entry, Role::AriaLog, ARIA_LOG_MARGIN_BYTES, &mut buffers)?;
        }
        Ok(logs)
    }

    pub(super) fn rescan(&mut self, now: Vec<TablespaceEntry>, look: Look) -> Result<Rescan> {
        let notes = self.follower.file_notes();
        let changes = match &self.baseline {
            Some(baseline) => {
                Some(baseline.since(notes.hidden.clone(), self.questions.ask(tables::mariadb_tables)?))
            }
            None => None,
        };
        let Copier { context, inventory, parallel, .. } = &mut self.copier;
        let system_is_void = inventory.lacks_encryption_of_system();
        let judge = |found: &Found<'_>| match found.space {
            Some(SpaceId(0)) if system_is_void => Verdict::CopyAgain,
            _ => judge(&notes, changes.as_ref(), look, found),
        };
        let rescan = inventory.rescan(context.flavor, context.sink, now, *parallel, &judge)?;
        self.stats.add_rescan(&rescan, self.listener);
        Ok(rescan)
    }
}

/// Judges whether the copy of a tablespace file is good.
///
/// DISCARD notes a deletion in the redo, and an IMPORT after it keeps the id. Recovery ignores all redo of
/// the space from there on, so no copy that was made while the space could be written to is good, not even a
/// first one. A space that the server did not list can be rewritten by an IMPORT without redo. Verified on
/// MariaDB 10.11.19 in 17 scenarios. Tables that were merely never opened are exempt because their files are
/// at rest, and those created meanwhile because the redo creates them. If the redo is encrypted, `changes`
/// has what can be known.
///
/// The tables of a full-text index cannot be imported, so all redo of one counts.
///
/// While there is time, a space of the second kind is copied again as it is; on a server that was started
/// lately, these are all tables that have been opened since. If it is listed now, that copy is good; if not,
/// it is judged again.
fn judge(notes: &FileNotes, changes: Option<&Changes<'_>>, look: Look, found: &Found<'_>) -> Verdict {
    let Some(space) = found.space else { return Verdict::Keep };
    let (discarded, created) = match changes {
        None => (notes.deleted.contains(&space), notes.created.contains(&space)),
        Some(_) if !can_be_imported(found.entry) => return Verdict::Keep,
        // Whether the redo creates it cannot be seen, and an IMPORT can make a table without that.
        Some(changes) => (changes.may_be_discarded(space, found.entry), false),
    };
    if discarded {
        return Verdict::CopyClosed;
    }
    let rewritten = found.copy.is_some_and(|copy| {
        let is_at_rest = copy.file.signature.unchanged(&found.entry.entry.stat.signature);
        copy.before.space.is_none() && !created && !is_at_rest && can_be_imported(found.entry)
    });
    match (rewritten, look) {
        (false, _) => Verdict::Keep,
        (true, Look::Early) => Verdict::CopyAgain,
        (true, Look::Settled) => Verdict::CopyClosed,
    }
}
