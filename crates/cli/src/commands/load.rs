//! `restore --to-server`: loads a logical backup, or tables of a physical one, into a running server.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Error, ErrorKind, Result,
    extract::ExtractReport,
    logical::{
        import::Origin,
        load::{self, Adaptation, Conversions, LoadOptions, LoadPlan, LoadReport, Renames, Way},
    },
};
use holdfast_repo::Act;
use serde::Serialize;

use super::{
    Context,
    extract::{self, Chosen},
    repository, server,
};
use crate::{
    args::{restore::RestoreArgs, source::SourceArgs, units::ByteSize},
    exit::Exit,
    output::{Render, text},
};

/// At most this many adaptations are shown before "and N more"; `--json` has all.
const NAMED_MAX: usize = 40;

/// The plan that a dry run shows.
#[derive(Serialize)]
struct Planned {
    dry_run: bool,
    plan: LoadPlan,
}

impl Render for Planned {
    fn render(&self, out: &mut String) -> fmt::Result {
        show_plan(out, &self.plan)?;
        text::fact(out, "rows by", self.plan.rows_by)?;
        self.plan.faster.iter().try_for_each(|how| text::fact(out, "faster", how))?;
        writeln!(out, "nothing was changed (dry run)")
    }
}

/// A loaded backup.
#[derive(Serialize)]
struct Loaded {
    dry_run: bool,
    /// How the tables were extracted from a physical backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    extracted: Option<ExtractReport>,
    report: LoadReport,
}

impl Render for Loaded {
    fn render(&self, out: &mut String) -> fmt::Result {
        let report = &self.report;
        if let Some(extracted) = &self.extracted {
            extract::show(out, extracted)?;
        }
        show_plan(out, &report.plan)?;
        let how = match (report.by_parameters, report.by_load_data) {
            (true, _) => Way::Parameters,
            (false, true) => Way::LoadData,
            (false, false) => Way::Text,
        };
        let (rows, bytes) = (text::count(report.rows_loaded, "row"), ByteSize(report.row_bytes_loaded));
        text::fact(out, "loaded", format!("{rows}, {bytes}, by {how}"))?;
        text::fact(out, "time", text::phases(&report.phases))?;
        if report.tables_verified > 0 {
            let tables = text::count(report.tables_verified, "table");
            text::fact(out, "verified", format!("{tables}, by number and checksum of all rows"))?;
        } else {
            text::fact(out, "verified", "nothing")?;
        }
        writeln!(out, "restore {} to {} completed OK", report.plan.backup, report.plan.target_version)
    }
}

fn show_plan(out: &mut String, plan: &LoadPlan) -> fmt::Result {
    text::fact(out, "backup", &plan.backup)?;
    text::fact(out, "of", &plan.source_version)?;
    for (name, value) in plan.import.iter().flat_map(Origin::facts) {
        text::fact(out, name, value)?;
    }
    let goes_on = if plan.is_continued { " (continues an unfinished load)" } else { "" };
    text::fact(out, "into", format!("{}{goes_on}", plan.target_version))?;
    let tables = text::count(plan.tables, "table");
    let rows = text::count(plan.rows, "row");
    text::fact(out, "tables", format!("{tables}, {rows}, {}", ByteSize(plan.row_bytes)))?;
    text::fact(
        out,
        "other objects",
        format!("{}, and {}", plan.objects, text::count(plan.accounts, "account")),
    )?;
    text::first(out, "DROP", NAMED_MAX, plan.overwritten.iter())?;
    text::first(out, "adapted", NAMED_MAX, plan.adapted.iter().map(Adaptation::to_string))?;
    text::first(out, "left out", NAMED_MAX, plan.left_out.iter().map(Adaptation::to_string))
}

/// Refuses options for the other way of restoring, which would otherwise be ignored silently.
pub(super) fn refuse_contradictions(args: &RestoreArgs) -> Result<()> {
    let RestoreArgs { id, moment, target_dir, load: args, recovery, .. } = args;
    let wrong = |option: &str, hint: &str| {
        Err(Error::new(ErrorKind::Usage, format!("{option} has no effect here")).hinted(hint.to_owned()))
    };
    if id.is_none() && moment.until().is_none() {
        return Err(Error::new(ErrorKind::Usage, "neither a backup nor a moment was named")
            .hinted("name a backup (latest, 42, db1#42), or a moment (--at, --gtid, --before-gtid)"));
    }
    if target_dir.is_none() && !args.to_server {
        return Err(Error::new(ErrorKind::Usage, "no target was named")
            .hinted("--target-dir DIR, or --to-server to load it into a running server"));
    }
    if args.to_server {
        return match &args.selection.filters[..] {
            [] => Ok(()),
            _ => wrong("--where", "rows are chosen when a backup is taken"),
        };
    }
    if let Some(option) = args.selection.given() {
        let hint = "a directory is restored whole: add --to-server to load tables into a running server";
        return wrong(option, hint);
    }
    if recovery.work_dir.is_some() {
        return wrong("--work-dir", "a directory is restored in place: add --to-server to load tables");
    }
    if args.server != SourceArgs::default() {
        return wrong("the server's address", "add --to-server to load a logical backup into it");
    }
    Ok(())
}

pub(super) fn run(args: RestoreArgs, context: &Context<'_>) -> Result<Exit> {
    let RestoreArgs { id, moment, name, dry_run, parallel, load: args, recovery, .. } = args;
    let chosen = LoadOptions::new(server::connect_options(&args.server, context)?);
    let options = LoadOptions {
        selection: args.selection.into(),
        renames: Renames(args.renames),
        conversions: Conversions { engines: args.engines, charsets: args.charsets },
        overwrite: args.overwrite,
        leave_out: args.leave_out,
        disable_events: args.disable_events,
        without_binlog: args.without_binlog,
        disable_redo: args.disable_redo,
        enable_local_infile: args.enable_local_infile,
        verify: !args.no_verify,
        parallel: parallel.unwrap_or(chosen.parallel),
        ..chosen
    };
    let repo = Arc::new(repository::open_for(context, Act::Read, "a restore")?);
    let chosen = Chosen::of(context, &repo, id.as_ref(), name.name.as_ref(), moment.until())?;
    chosen.refuse_contradictions(&recovery)?;
    let output = &**context.output;
    let (extracted, report) = match &chosen {
        Chosen::Logical(chosen) if dry_run => {
            let plan = load::plan(&repo, chosen.log(), chosen.run, &options, context.cancel)?;
            context.output.result(Exit::Done, &Planned { dry_run, plan });
            return Ok(Exit::Done);
        }
        Chosen::Logical(chosen) => {
            (None, load::run(&repo, chosen.log(), chosen.run, &options, output, context.cancel)?)
        }
        Chosen::Physical(_) | Chosen::Moment(_) => {
            let mut extraction = extract::options(options.selection.clone(), recovery, None, context);
            extraction.target = Some(holdfast_core::extract::look_at_target(&options)?);
            if dry_run {
                let extract = chosen.plan(&repo, &extraction, context)?;
                context.output.result(Exit::Done, &extract::Planned { dry_run, extract });
                return Ok(Exit::Done);
            }
            let extracted = chosen.extract(&repo, &extraction, context)?;
            let report = extracted.report.clone();
            (Some(report), extracted.load(&options, output, context.cancel)?)
        }
    };
    context.output.result(Exit::Done, &Loaded { dry_run, extracted, report });
    Ok(Exit::Done)
}
