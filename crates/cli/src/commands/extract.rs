//! Extracts tables from a physical backup, or from a moment behind any, for `restore --to-server` and `export`.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Error, ErrorKind, Result,
    extract::{self, ExtractOptions, ExtractPlan, ExtractReport, Extracted, Origin},
    logical::Selection,
    recovery::{Recovery, Until},
};
use holdfast_repo::{Kind, Repo, SourceName};
use serde::Serialize;

use super::{Context, recovery, report::position_facts, select};
use crate::{
    args::{backup_ref::BackupRef, recovery::RecoveryArgs, units::ByteSize},
    output::{Render, text},
};

/// At most this many tables are named before "and N more".
const TABLES_NAMED_MAX: usize = 10;

/// The backup or moment that tables are taken from.
pub(super) enum Chosen {
    /// A logical backup, read directly.
    Logical(select::Chosen),
    /// A physical backup.
    Physical(select::Chosen),
    /// A moment after a backup.
    Moment(Recovery),
}

impl Chosen {
    /// Resolves a backup reference. A number without a kind means the logical backup of that number if there
    /// is one, else the physical one.
    pub(super) fn of(
        context: &Context<'_>,
        repo: &Arc<Repo>,
        id: Option<&BackupRef>,
        name: Option<&SourceName>,
        until: Option<Until>,
    ) -> Result<Self> {
        if let Some(until) = until {
            return recovery::choose(context, repo, id, name, until).map(Self::Moment);
        }
        let id = id.ok_or_else(|| Error::new(ErrorKind::Usage, "no backup is named"))?;
        let of = |kind| {
            let id = BackupRef { kind: Some(kind), ..id.clone() };
            select::backup(context, repo, &id, name)
        };
        match id.kind {
            Some(Kind::Logical) => of(Kind::Logical).map(Self::Logical),
            Some(Kind::Physical) => of(Kind::Physical).map(Self::Physical),
            Some(Kind::Binlog) => {
                let text = format!("{id} is a run of the binlog archive, not a backup");
                Err(Error::new(ErrorKind::Usage, text).hinted("name a moment in it with --at or --gtid"))
            }
            None => match of(Kind::Logical) {
                Ok(chosen) => Ok(Self::Logical(chosen)),
                Err(error) => match of(Kind::Physical) {
                    Ok(chosen) => Ok(Self::Physical(chosen)),
                    Err(_) => Err(error),
                },
            },
        }
    }

    /// The origin for the library, which reports that a logical backup has nothing to extract.
    fn origin(&self) -> Origin<'_> {
        match self {
            Self::Logical(chosen) | Self::Physical(chosen) => Origin::Backup(chosen.log(), chosen.run),
            Self::Moment(recovery) => Origin::Moment(recovery),
        }
    }

    /// Plans the extraction.
    pub(super) fn plan(
        &self,
        repo: &Arc<Repo>,
        options: &ExtractOptions,
        context: &Context<'_>,
    ) -> Result<ExtractPlan> {
        extract::plan(repo, self.origin(), options, context.cancel)
    }

    /// Extracts the tables.
    pub(super) fn extract(
        &self,
        repo: &Arc<Repo>,
        options: &ExtractOptions,
        context: &Context<'_>,
    ) -> Result<Extracted> {
        extract::run(repo, self.origin(), options, &**context.output, context.cancel)
    }

    /// Refuses options for physical backups where the backup is logical: they would be ignored silently.
    pub(super) fn refuse_contradictions(&self, args: &RecoveryArgs) -> Result<()> {
        match (self, args.given()) {
            (Self::Logical(chosen), Some(option)) => {
                let (log, run) = (chosen.log(), chosen.run);
                let text = format!("{option} is for physical backups, and {log} {run} is a logical one");
                Err(Error::new(ErrorKind::Usage, text)
                    .hinted(format!("name a physical one with its kind, like {}/physical#42", log.source)))
            }
            _ => Ok(()),
        }
    }
}

/// Merges the options: typed arguments override the configuration, which overrides expert defaults.
pub(super) fn options(
    selection: Selection,
    args: RecoveryArgs,
    parallel: Option<usize>,
    context: &Context<'_>,
) -> ExtractOptions {
    let chosen = ExtractOptions::new(selection);
    let work_place = args.work_dir.clone().unwrap_or(chosen.work_place);
    let restore = recovery::options(chosen.restore, args, parallel, context);
    ExtractOptions { restore, work_place, ..chosen }
}

/// The plan that a dry run shows.
#[derive(Serialize)]
pub(super) struct Planned {
    pub(super) dry_run: bool,
    pub(super) extract: ExtractPlan,
}

impl Render for Planned {
    fn render(&self, out: &mut String) -> fmt::Result {
        let ExtractPlan { restore: plan, replay, tables, backup_bytes, whole } = &self.extract;
        text::fact(out, "backup", &plan.backup)?;
        text::fact(out, "of", &plan.server_version)?;
        let named = tables.iter().map(|table| format!("{}, {}", table.name, ByteSize(table.bytes)));
        text::first(out, "tables", TABLES_NAMED_MAX, named)?;
        let restored = match &plan.rows {
            Some(rows) => format!("{} of rows", ByteSize(rows.bytes)),
            None => format!(
                "{} in {}, of {}, and further files if recovery needs them",
                ByteSize(plan.bytes),
                text::count(plan.files, "file"),
                ByteSize(*backup_bytes)
            ),
        };
        text::fact(out, "restored", restored)?;
        if let Some(why) = whole {
            text::fact(out, "all of it", format!("because {why}"))?;
        }
        if plan.rows.is_none() {
            text::fact(out, "redo", format!("{} to recover", ByteSize(plan.redo_bytes)))?;
        }
        if let Some(reached) = replay {
            recovery::show_reached(out, "replay", reached, "")?;
        }
        for room in &plan.room {
            let (needed, free) = (ByteSize(room.needed_bytes), ByteSize(room.free_bytes));
            text::fact(out, "room", format!("{needed} needed of {free} free at {}", room.path.display()))?;
        }
        writeln!(out, "nothing was changed (dry run)")
    }
}

/// Writes the cost of the extraction into a summary.
pub(super) fn show(out: &mut String, report: &ExtractReport) -> fmt::Result {
    let (files, bytes) = (text::count(report.restored_files, "file"), ByteSize(report.restored_bytes));
    let mut said = format!("{bytes} in {files}, of {}", ByteSize(report.backup_bytes));
    if let Some(why) = &report.whole {
        write!(said, ", because {why}")?;
    }
    text::fact(out, "restored", said)?;
    if let Some(prepared) = &report.prepared {
        let redo = ByteSize(report.redo_bytes);
        text::fact(out, "recovered", format!("by {}, {redo} of redo", prepared.version))?;
    }
    if let Some(loaded) = &report.loaded {
        let rows = text::count(loaded.rows, "row");
        text::fact(out, "rebuilt", format!("by {}, {rows}", loaded.version))?;
    }
    if let Some(replayed) = &report.replayed {
        let how = format!(", {} in {}", ByteSize(replayed.bytes), text::millis(replayed.ms));
        recovery::show_reached(out, "replayed", &replayed.reached, &how)?;
    }
    text::fact(out, "extracted in", text::phases(&report.phases))?;
    position_facts(out, &report.position)
}
