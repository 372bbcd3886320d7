//! An extraction before anything is restored: what is wanted, where it comes from, and whether a part suffices.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use holdfast_formats::{
    Flavor,
    binlog::{Body, Checksum, Event as BinlogEvent, FormatDescription},
};
use holdfast_repo::{Kind, LogName, Repo, RunNo, data::reader::Backup, log::history::History};

use super::{
    filter::{Filter, Unnamed},
    names::Names,
    target::Target,
};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::Cancel,
    head,
    logical::Selection,
    recovery::Recovery,
    restore::{BackupId, Piece, RestoreOptions, TablePart},
    server::{ServerFacts, TableName},
};

/// Default place of the working directory: it is on disk, and survives a restart.
pub const WORK_PLACE: &str = "/var/tmp";

/// The options of an extraction.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// The tables to extract.
    pub selection: Selection,
    /// The directory in which the working directory is created.
    pub work_place: PathBuf,
    /// How files are restored and recovered. The target in it is ignored.
    pub restore: RestoreOptions,
    /// The server to load the tables into, if any: the rows of an interrupted load are kept for this server
    /// alone.
    pub target: Option<Target>,
}

impl ExtractOptions {
    /// The options that an expert would choose.
    #[must_use]
    pub fn new(selection: Selection) -> Self {
        let work_place = PathBuf::from(WORK_PLACE);
        Self { selection, restore: RestoreOptions::new(&work_place), work_place, target: None }
    }
}

/// What to extract from.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// A backup, as it is.
    Backup(&'a LogName, RunNo),
    /// A moment after a backup.
    Moment(&'a Recovery),
}

impl Origin<'_> {
    pub(super) fn base(&self) -> (&LogName, RunNo) {
        match self {
            Origin::Backup(log, run) => (log, *run),
            Origin::Moment(recovery) => recovery.base(),
        }
    }

    pub(super) fn recovery(&self) -> Option<&Recovery> {
        match self {
            Origin::Backup(..) => None,
            Origin::Moment(recovery) => Some(recovery),
        }
    }
}

/// An extraction whose backup and selection have been examined.
pub(super) struct Extraction<'a> {
    pub(super) repo: &'a Arc<Repo>,
    pub(super) origin: Origin<'a>,
    pub(super) options: &'a ExtractOptions,
    pub(super) names: Names,
    pub(super) facts: ServerFacts,
    pub(super) id: BackupId,
    pub(super) identity: String,
}

/// One attempt.
pub(super) struct Attempt {
    pub(super) part: TablePart,
    /// Why the whole backup is restored instead of a part.
    pub(super) whole: Option<String>,
}

impl Attempt {
    /// Adds to a failure why the whole backup is restored, which the user did not ask for.
    pub(super) fn explain(&self, error: Error) -> Error {
        let Some(why) = &self.whole else { return error };
        error.also_hinted(format_args!("the whole backup is restored, because {why}"))
    }
}

impl<'a> Extraction<'a> {
    pub(super) fn look(
        repo: &'a Arc<Repo>,
        origin: Origin<'a>,
        options: &'a ExtractOptions,
        cancel: &Cancel,
    ) -> Result<Self> {
        let (log, run) = origin.base();
        let selection = &options.selection;
        if selection.is_of_all() {
            return Err(Error::new(ErrorKind::Usage, "no table is named").hinted(
                "name tables with --table or databases with --database; a whole backup is restored into a \
                 directory",
            ));
        }
        // A logical backup has nothing to extract, unless something is to be replayed after it.
        let id = match (log.kind, origin.recovery()) {
            (Kind::Logical, Some(_)) => BackupId::of(repo, log, run),
            _ => BackupId::of_physical(repo, log, run)?,
        };
        let history = History::salvage(repo, log, &mut |_, _| {})?;
        let backup = Backup::open(repo, &history, run)?;
        let facts = head::require_server(backup.head(), &id)?;
        let names = Names::read(&backup, facts.flavor(), selection, cancel)?;
        // After the backup there may be more tables, and on MySQL some have no file of their own.
        if facts.flavor() == Flavor::MariaDb
            && origin.recovery().is_none()
            && let Some(error) = names.unknown().or_else(|| names.unknown_excluded())
        {
            return Err(error);
        }
        // A moment is the same from whichever backup, and tomorrow a newer one may be the nearest. But a
        // transaction's number can occur twice: then the user names the backup.
        let of = match origin.recovery().map(|recovery| (recovery.until(), recovery.named())) {
            None => id.to_string(),
            Some((until, None)) => format!("{} {until}", id.source),
            Some((until, Some(named))) => format!("{} {until} from {named}", id.source),
        };
        // Rows that the load into one target continues with are neither used nor removed for another target,
        // or for files.
        let target = options.target.as_ref().map_or("files", |target| &target.server);
        let identity = format!("{} {of} {} {target}", id.repository, selection.identity());
        Ok(Self { repo, origin, options, names, facts, id, identity })
    }

    pub(super) fn first_attempt(&self, cancel: &Cancel) -> Result<Attempt> {
        if self.origin.base().0.kind == Kind::Logical {
            let whole = Some("it is recovered from a logical backup".to_owned());
            let part = TablePart::new(self.facts.flavor(), self.options.selection.clone());
            return Ok(Attempt { part, whole });
        }
        // On MySQL some tables have no file of their own: only the server knows them.
        let is_known = self.facts.flavor() == Flavor::MariaDb;
        let missing = self.names.without_files().filter(|_| is_known);
        let whole = self.look_ahead(missing, self.wanted_tables(), cancel)?;
        let part = TablePart::new(self.facts.flavor(), self.options.selection.clone());
        Ok(Attempt { part, whole })
    }

    /// Tables whose rows must be right, as far as they are known: those that have files, and those that the
    /// user named.
    pub(super) fn wanted_tables(&self) -> Vec<TableName> {
        let named = self.options.selection.tables.iter().filter_map(|it| it.name());
        let named = named.map(|(schema, table)| TableName { schema, table });
        self.names.tables().cloned().chain(named).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Reads the transactions to replay. Returns why they cannot be applied to `tables` only, if they cannot.
    /// Fails if no statement in them names a table of `missing`, which the backup lacks: replaying everything
    /// would not create it either.
    pub(super) fn look_ahead(
        &self,
        missing: impl Iterator<Item = TableName>,
        tables: Vec<TableName>,
        cancel: &Cancel,
    ) -> Result<Option<String>> {
        let Some(recovery) = self.origin.recovery() else { return Ok(None) };
        let mut unnamed = Unnamed::new(missing);
        let mut filter = Filter::new(tables, self.options.selection.has_wildcards());
        each_event(recovery, cancel, &mut |event| {
            unnamed.event(event);
            filter.event(event);
        })?;
        match unnamed.tables().first() {
            Some(name) => Err(self.names.never_made(name)),
            None => Ok(filter.refused().map(str::to_owned)),
        }
    }

    pub(super) fn restore_options(&self, attempt: &mut Attempt, target: &Path) -> RestoreOptions {
        let part = attempt.whole.is_none().then(|| attempt.part.clone());
        RestoreOptions {
            target_dir: target.to_owned(),
            delta: false,
            prepare: true,
            maps: Vec::new(),
            part,
            // A view that cannot be made keeps nobody from a table.
            leave_out: true,
            ..self.options.restore.clone()
        }
    }
}

/// Reads every event to replay.
fn each_event(recovery: &Recovery, cancel: &Cancel, look: &mut dyn FnMut(&BinlogEvent<'_>)) -> Result<()> {
    let mut checksum = Checksum::None;
    recovery.count_each(cancel, &mut |piece| {
        match piece {
            Piece::File { format, .. } => checksum = checksum_of(format)?,
            Piece::Event { bytes, .. } => {
                let event = BinlogEvent::parse(bytes, checksum);
                look(&event.context("read an event that is to be replayed")?);
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn checksum_of(format: &[u8]) -> Result<Checksum> {
    // This event has a checksum, whether the file's other events do or not.
    let event = BinlogEvent::parse(format, Checksum::Crc32).context("read the format of a binlog")?;
    match event.body().context("read the format of a binlog")? {
        Body::FormatDescription(FormatDescription { checksum, .. }) => Ok(checksum),
        _ => Err(Error::failed("a binlog does not begin with its format")),
    }
}
