//! `import`: turns a dump by another tool into a logical backup.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Context as _, Error, ErrorKind, Result,
    backup::BackupOptions,
    logical::{
        LogicalReport,
        import::{self, ImportOptions, Input},
    },
    server::{ConnectOptions, programs::RunAs},
};
use holdfast_repo::{Act, Kind, LogName, RunNo};
use serde::Serialize;

use super::{Context, backup_options, report::Report, repository, search_path};
use crate::{
    args::{import::ImportArgs, owner::Owner, resources::OF_A_BUSY_SERVER},
    exit::Exit,
    output::{Render, text},
};

/// An imported backup.
#[derive(Serialize)]
struct Imported {
    #[serde(flatten)]
    report: Report,
    #[serde(skip)]
    facts: Vec<(&'static str, String)>,
    #[serde(skip)]
    log: LogName,
    #[serde(skip)]
    run: RunNo,
}

impl Render for Imported {
    fn render(&self, out: &mut String) -> fmt::Result {
        self.facts.iter().try_for_each(|(name, value)| text::fact(out, name, value))?;
        self.report.summary(out)?;
        writeln!(out, "import {} {} completed OK", self.log, self.run)
    }
}

pub(super) fn run(args: ImportArgs, context: &Context<'_>) -> Result<Exit> {
    let (options, backup) = options(args, context)?;
    let repo = Arc::new(repository::open_for(context, Act::Backup, "an import")?);
    let report = import::run(&repo, &options, &backup, &**context.output, context.cancel)?;
    context.output.result(Exit::Done, &imported(&report)?);
    Ok(Exit::Done)
}

fn imported(report: &LogicalReport) -> Result<Imported> {
    let log = LogName { source: report.run.source.parse().context("name the source")?, kind: Kind::Logical };
    let run = RunNo(report.run.backup);
    let whole = serde_json::to_value(report).context_kind(ErrorKind::Failed, "describe the backup")?;
    let facts = report.import.as_ref().map(import::Origin::facts).unwrap_or_default();
    Ok(Imported { report: Report::new(log.backup_id(run), whole)?, facts, log, run })
}

fn options(args: ImportArgs, context: &Context<'_>) -> Result<(ImportOptions, BackupOptions)> {
    if let Some(option) = args.resources.first_typed(OF_A_BUSY_SERVER) {
        let error = Error::new(ErrorKind::Usage, format!("{option} has no effect on an import"));
        return Err(error.hinted("the server that is read is a private one, which nobody else uses"));
    }
    let chosen = ImportOptions::new(Input::of(&args.dump)?);
    let import = ImportOptions {
        server_binary: args.server_binary,
        program_dirs: search_path(),
        flavor: args.flavor.map(Into::into),
        server_options: args.server_option,
        server_memory_bytes: args.server_memory.0,
        run_as: run_as(args.owner)?,
        work_dir: args.work_dir,
        database: args.database,
        charset: args.charset,
        time_zone: args.time_zone,
        without_end_mark: args.without_end_mark,
        without_accounts: args.without_accounts,
        statement_bytes_max: usize::try_from(args.max_statement.0).unwrap_or(usize::MAX),
        ..chosen
    };
    let resources = args.resources.or(context.config.resources.clone());
    let usual = BackupOptions::new(ConnectOptions::default());
    let backup = backup_options::stored(usual, args.name, args.tags, &resources, context)?;
    Ok((import, backup))
}

/// The user that the private server runs as. It gets root's rights only if that is asked for explicitly.
fn run_as(typed: Option<Owner>) -> Result<Option<RunAs>> {
    if !rustix::process::geteuid().is_root() {
        return match typed {
            Some(_) => {
                Err(Error::new(ErrorKind::Usage, "only root can run a server as another user (--owner)"))
            }
            None => Ok(None),
        };
    }
    let owner = typed.or_else(Owner::of_servers).ok_or_else(|| {
        Error::new(ErrorKind::Usage, "there is no user mysql for the private server to run as")
            .hinted("name an unprivileged user: --owner nobody; or import as such a user")
    })?;
    Ok(Some(RunAs { uid: owner.uid, gid: owner.gid }))
}
