//! `backup`: from what was typed to a backup that stands.

use std::{
    env,
    fmt::{self, Write as _},
    path::PathBuf,
    sync::Arc,
};

use holdfast_core::{
    Context as _, Error, ErrorKind, Result,
    backup::{self, BackupOptions},
    logical,
};
use holdfast_repo::{Act, Kind, LogName, RunNo};
use serde::Serialize;

use super::{Context, list, report::Report, repository, source};
use crate::{
    args::{
        backup::{BackupArgs, Method, Tag},
        doctor::DoctorArgs,
    },
    exit::Exit,
    output::Render,
};

/// A backup that stands.
#[derive(Serialize)]
struct Taken {
    #[serde(flatten)]
    report: Report,
    #[serde(skip)]
    log: LogName,
    #[serde(skip)]
    run: RunNo,
}

impl Render for Taken {
    fn render(&self, out: &mut String) -> fmt::Result {
        self.report.summary(out)?;
        writeln!(out, "backup {} {} completed OK", self.log, self.run)
    }
}

pub(super) fn run(args: BackupArgs, context: &Context<'_>) -> Result<Exit> {
    let (method, selection) = (args.method, args.selection.clone());
    refuse_contradictions(&args)?;
    let options = options(args, context)?;
    let repo = Arc::new(repository::open_for(context, Act::Backup, "a backup")?);
    let (output, cancel) = (&**context.output, context.cancel);
    let described = "describe the backup";
    let (source, kind, run, whole) = match method {
        Method::Physical => {
            let report = backup::run(&repo, &options, output, cancel)?;
            let whole = serde_json::to_value(&report).context_kind(ErrorKind::Failed, described)?;
            (report.source, Kind::Physical, RunNo(report.backup), whole)
        }
        Method::Logical => {
            let report = logical::run(&repo, &options, &selection.into(), output, cancel)?;
            let whole = serde_json::to_value(&report).context_kind(ErrorKind::Failed, described)?;
            (report.source, Kind::Logical, RunNo(report.backup), whole)
        }
    };
    let log = LogName { source: source.parse().context("name the source")?, kind };
    let report = Report::new(list::id(&log, run), whole)?;
    context.output.result(Exit::Done, &Taken { report, log, run });
    Ok(Exit::Done)
}

/// What was typed for the other method would be passed over in silence.
fn refuse_contradictions(args: &BackupArgs) -> Result<()> {
    let wrong = match args.method {
        Method::Physical => args.selection.given(),
        Method::Logical => args.allow_corrupt.then_some("--allow-corrupt"),
    };
    let Some(option) = wrong else { return Ok(()) };
    let (other, hint) = match args.method {
        Method::Physical => ("logical", "a physical backup is of the whole server: add --method logical"),
        Method::Logical => ("physical", "a server gives no rows of damaged pages: see --exclude-table"),
    };
    Err(Error::new(ErrorKind::Usage, format!("{option} is for {other} backups")).hinted(hint))
}

/// Where programs of this user keep what they can do without.
pub(super) fn usual_cache_dir() -> Option<PathBuf> {
    let of = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")))?;
    Some(cache.join("holdfast"))
}

/// As a backup with nothing else typed would have them.
pub(super) fn doctor_options(args: DoctorArgs, context: &Context<'_>) -> Result<BackupOptions> {
    let DoctorArgs { name, source, .. } = args;
    options(BackupArgs { name, source, ..BackupArgs::default() }, context)
}

/// What was typed, over the configuration, over what an expert would choose.
fn options(args: BackupArgs, context: &Context<'_>) -> Result<BackupOptions> {
    if args.tags.len() > Tag::COUNT_MAX {
        let (most, given) = (Tag::COUNT_MAX, args.tags.len());
        return Err(Error::new(
            ErrorKind::Usage,
            format!("a backup has at most {most} tags, {given} were given"),
        ));
    }
    let typed = args.source.or(context.config.source.clone());
    let resources = args.resources.or(context.config.resources.clone());
    let chosen = BackupOptions::new(source::connect_options(&typed, context.output)?);
    let lock_max = resources.lock_max.map(|span| span.0);
    Ok(BackupOptions {
        name: args.name.or_else(|| context.config.name.clone()),
        datadir: typed.datadir,
        path_map: typed.path_map.into_iter().map(|pair| (pair.from, pair.to)).collect(),
        parallel: resources.parallel.unwrap_or(chosen.parallel),
        compression: resources.compress.unwrap_or(chosen.compression),
        compress_threads: resources.compress_threads.unwrap_or(chosen.compress_threads),
        encrypt_threads: resources.encrypt_threads.unwrap_or(chosen.encrypt_threads),
        memory_bytes: match resources.memory {
            Some(size) => usize::try_from(size.0).unwrap_or(usize::MAX),
            None => chosen.memory_bytes,
        },
        read_bytes_per_s_max: resources.read_bytes_per_s_max().unwrap_or(chosen.read_bytes_per_s_max),
        spool_dir: resources.spool_dir.or(chosen.spool_dir),
        cache_dir: resources.cache_dir.or_else(usual_cache_dir),
        redo_spool_max_bytes: resources.spool_max.map_or(chosen.redo_spool_max_bytes, |it| it.0),
        max_rewrite_fraction: resources.max_rewrite.map_or(chosen.max_rewrite_fraction, |it| it.fraction()),
        lock_max: lock_max.unwrap_or(chosen.lock_max),
        ddl_lock_max: resources.ddl_lock_max.map_or(chosen.ddl_lock_max, |span| span.0),
        lock_wait: lock_max.unwrap_or(chosen.lock_wait),
        full: args.full,
        new_identity: args.new_identity,
        allow_corrupt: args.allow_corrupt,
        tags: args.tags.into_iter().map(|tag| tag.0).collect(),
        ..chosen
    })
}
