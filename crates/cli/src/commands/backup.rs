//! `backup`: turns the command line into a complete, listed backup.

use std::{
    fmt::{self, Write as _},
    io,
    path::PathBuf,
    sync::Arc,
};

use holdfast_core::{
    Context as _, Error, ErrorKind, Result, RunReport, await_housekeeping,
    backup::{self, BackupOptions},
    logical,
};
use holdfast_repo::{
    Act, Kind, LogName, Repo, RunNo, SourceName,
    log::run::{self, BeginError},
};
use serde::Serialize;
use serde_json::Value;

use super::{Context, backup_options, report::Report, repository};
use crate::{
    args::{
        backup::{BackupArgs, Method, SelectionArgs},
        resources::OF_DATA_FILES,
    },
    config::usual_cache_dir,
    exit::Exit,
    hooks::{Hooks, Turn},
    output::{Render, text},
};

/// A completed backup.
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
        render(out, &self.log, self.run, &self.report)
    }
}

/// The last line never says OK of a backup that has to be looked at.
fn render(out: &mut String, log: &LogName, run: RunNo, report: &Report) -> fmt::Result {
    report.summary(out)?;
    match report.damaged_pages() {
        0 => writeln!(out, "backup {log} {run} completed OK"),
        damaged => {
            let pages = text::count(damaged as u64, "damaged page");
            writeln!(out, "backup {log} {run} completed, with {pages} of the server in it")
        }
    }
}

/// One backup taken into several repositories; lists which of them have it.
#[derive(Serialize)]
struct TakenInto {
    /// Its id in the first repository that has it.
    id: String,
    report: Value,
    repositories: Vec<Place>,
}

/// The result for one repository.
#[derive(Serialize)]
struct Place {
    repository: String,
    exit_code: Exit,
    /// The id and the report, if the backup was stored there.
    #[serde(flatten)]
    report: Option<Report>,
    /// Why the backup failed there.
    error: Option<String>,
    hint: Option<String>,
    #[serde(skip)]
    name: Option<(LogName, RunNo)>,
}

impl Render for TakenInto {
    fn render(&self, out: &mut String) -> fmt::Result {
        for Place { repository, report, name, .. } in &self.repositories {
            if let (Some(report), Some((log, run))) = (report, name) {
                text::fact(out, "repository", repository)?;
                render(out, log, *run, report)?;
            }
        }
        for Place { repository, error, hint, .. } in &self.repositories {
            if let Some(error) = error {
                writeln!(out, "backup to {repository} FAILED: {}", text::one_line(error))?;
                hint.as_ref().map_or(Ok(()), |hint| out.write_str(&text::hint(hint)))?;
            }
        }
        Ok(())
    }
}

impl Place {
    fn new(repository: String, taken: Result<Taken>) -> Self {
        match taken {
            Ok(taken) => {
                let exit_code = taken.exit();
                let Taken { report, log, run } = taken;
                let (name, report) = (Some((log, run)), Some(report));
                Self { repository, exit_code, report, error: None, hint: None, name }
            }
            Err(error) => Self {
                repository,
                exit_code: error.kind().into(),
                report: None,
                error: Some(error.to_string()),
                hint: error.hint().map(str::to_owned),
                name: None,
            },
        }
    }
}

impl Taken {
    fn new(run: &RunReport, kind: Kind, report: &impl Serialize) -> Result<Self> {
        let log = LogName { source: run.source.parse().context("name the source")?, kind };
        let run = RunNo(run.backup);
        let whole = serde_json::to_value(report).context_kind(ErrorKind::Failed, "describe the backup")?;
        let report = Report::new(log.backup_id(run), whole)?;
        Ok(Self { report, log, run })
    }

    /// A backup with pages that are damaged on the server is one with a finding.
    fn exit(&self) -> Exit {
        if self.report.damaged_pages() == 0 { Exit::Done } else { Exit::Finding }
    }
}

/// Takes one backup into each of `repos`.
fn take(
    repos: &[Arc<Repo>],
    method: Method,
    selection: SelectionArgs,
    options: &BackupOptions,
    context: &Context<'_>,
) -> Vec<Result<Taken>> {
    let (output, cancel, kind) = (&**context.output, context.cancel, method.kind());
    match method {
        Method::Physical => {
            let taken = backup::run_to(repos, options, output, cancel).into_iter();
            taken.map(|it| it.and_then(|it| Taken::new(&it.run, kind, &it))).collect()
        }
        Method::Logical => {
            let taken = logical::run_to(repos, options, &selection.into(), output, cancel).into_iter();
            taken.map(|it| it.and_then(|it| Taken::new(&it.run, kind, &it))).collect()
        }
    }
}

pub(super) fn run(args: BackupArgs, context: &Context<'_>) -> Result<Exit> {
    let (method, selection) = (args.method, args.selection.clone());
    let hooks = hooks(&args, context);
    let source = HookedSource::new(&args, &hooks, context);
    let others = others(&args, context);
    if !others.is_empty() {
        return run_to(args, &others, &hooks, &source, context);
    }
    let options = options(args, &hooks, context)?;
    let opened = repository::open_for(context, Act::Backup, "a backup").map(Arc::new);
    let turn = source.take_turn_of_hooks(opened.as_ref().ok(), context)?;
    let ready = options.and_then(|options| Ok((opened?, options)));
    let take = |(repo, options): (Arc<Repo>, BackupOptions)| {
        let taken = take(&[repo], method, selection, &options, context).into_iter().next();
        let taken = taken.unwrap_or_else(|| Err(Error::failed("there is no repository")))?;
        Ok((taken.exit(), taken))
    };
    let id = |taken: &Taken| vec![taken.log.backup_id(taken.run)];
    let (exit, taken) = hooks.around(context, ready, take, id)?;
    // Before the result is printed, which may take as long as its reader likes.
    drop(turn);
    context.output.result(exit, &taken);
    Ok(exit)
}

/// The options of the backup. The inner error is one that the hook after the backup is to report.
fn options(args: BackupArgs, hooks: &Hooks, context: &Context<'_>) -> Result<Result<BackupOptions>> {
    let options =
        refuse_contradictions(&args, context).and_then(|()| backup_options::of_backup(args, context));
    match options {
        Err(error) if !hooks.is_any() || error.kind() == ErrorKind::Interrupted => Err(error),
        options => Ok(options),
    }
}

/// The hooks to run before and after the backup, and the facts they are given about it.
fn hooks(args: &BackupArgs, context: &Context<'_>) -> Hooks {
    let mut about = vec![("HOLDFAST_HOOK_METHOD", args.method.kind().to_string())];
    let name = args.name.as_ref().or(context.config.name.as_ref());
    about.extend(name.map(|name| ("HOLDFAST_HOOK_NAME", name.to_string())));
    Hooks::new(args.hooks.clone().or(context.config.backup.clone()), about)
}

/// What the hooks of a backup prepare for it: nothing else may be backed up there meanwhile.
struct HookedSource {
    /// Unless there are no hooks, or the source has no name yet.
    name: Option<SourceName>,
    kind: Kind,
    cache_dir: Option<PathBuf>,
}

impl HookedSource {
    fn new(args: &BackupArgs, hooks: &Hooks, context: &Context<'_>) -> Self {
        let name = args.name.as_ref().or(context.config.name.as_ref());
        let cache_dir = args.resources.cache_dir.as_ref().or(context.config.resources.cache_dir.as_ref());
        Self {
            name: name.filter(|_| hooks.is_any()).cloned(),
            kind: args.method.kind(),
            cache_dir: cache_dir.cloned().or_else(usual_cache_dir),
        }
    }

    /// Refuses a second backup before its hooks run, because they would undo what the first backup's hooks have
    /// set up, whatever its method: if a backup with hooks is active on this host, or any backup in each of the
    /// repositories.
    /// Also waits for housekeeping runs, since hooks may stop things that others wait for.
    ///
    /// A repository shows a backup only once its first hook is done, and no longer when its second one begins. So
    /// the turn has to be kept for as long as hooks run.
    fn take_turn_of_hooks<'a>(
        &self,
        repos: impl IntoIterator<Item = &'a Arc<Repo>>,
        context: &Context<'_>,
    ) -> Result<Option<Turn>> {
        let Some(source) = &self.name else { return Ok(None) };
        let turn = match self.take_turn(source.as_str()) {
            Ok(Some(turn)) => Some(turn),
            Ok(None) => {
                let text = format!("another backup of {source} with hooks is active on this host");
                return Err(Error::new(ErrorKind::Active, text));
            }
            Err(error) => {
                context.output.warning(format!(
                    "another backup that begins at the same moment could run its hooks, too: cannot lock: {error}"
                ));
                None
            }
        };
        let mut first = None;
        for repo in repos {
            let log = |kind| LogName { source: source.clone(), kind };
            // If the repository does not answer, the backup itself reports it.
            if await_housekeeping(repo, &log(self.kind), context.output.as_ref(), context.cancel).is_err() {
                context.cancel.check()?;
            }
            let active = |kind| run::active(repo, &log(kind)).ok().flatten().filter(|it| !it.keeps_house());
            match active(Kind::Physical).or_else(|| active(Kind::Logical)) {
                Some(active) => first = first.or(Some(active)),
                // A copy into another repository is a run like any other, and keeps this one from no backup.
                None => return Ok(turn),
            }
        }
        if let Some(active) = first {
            return Err(BeginError::Active(Box::new(active)).into());
        }
        Ok(turn)
    }

    fn take_turn(&self, name: &str) -> io::Result<Option<Turn>> {
        const NOWHERE: &str = "neither HOME nor XDG_CACHE_HOME is set";
        let dir = self.cache_dir.as_ref().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, NOWHERE))?;
        Turn::take(&dir.join("hooks"), name)
    }
}

/// Refuses options of the other method, which would otherwise be ignored silently.
fn refuse_contradictions(args: &BackupArgs, context: &Context<'_>) -> Result<()> {
    const WHOLE: &str = "a physical backup is of the whole server: add --method logical";
    const FILES: &str =
        "a physical backup reads the data files on this host: run it there, or add --method logical";
    const ROWS: &str = "a server cannot return rows from damaged pages: see --exclude-table";
    const NO_FILES: &str = "a logical backup reads no data files and no redo: omit the option";
    let has_tunnel = args.source.clone().or(context.config.source.clone()).ssh_tunnel.is_some();
    let of_files = args.resources.first_typed(OF_DATA_FILES);
    let (wrong, other, hint) = match args.method {
        Method::Physical if has_tunnel => (Some("--ssh-tunnel"), "logical", FILES),
        Method::Physical => (args.selection.given(), "logical", WHOLE),
        Method::Logical if args.allow_corrupt => (Some("--allow-corrupt"), "physical", ROWS),
        Method::Logical if of_files.is_some() => (of_files, "physical", NO_FILES),
        Method::Logical => return Ok(()),
    };
    let Some(option) = wrong else { return Ok(()) };
    Err(Error::new(ErrorKind::Usage, format!("{option} is for {other} backups")).hinted(hint))
}

/// The other repositories that get the backup, both typed and configured.
fn others(args: &BackupArgs, context: &Context<'_>) -> Vec<String> {
    let mut others = args.also_to.clone();
    let configured = context.config.repository.iter().filter(|it| it.backup);
    for known in configured {
        if !others.contains(&known.name) && !others.contains(&known.repo) {
            others.push(known.repo.clone());
        }
    }
    others
}

/// Backs up into several repositories. Repositories where it fails do not invalidate the others.
fn run_to(
    args: BackupArgs,
    others: &[String],
    hooks: &Hooks,
    source: &HookedSource,
    context: &Context<'_>,
) -> Result<Exit> {
    let password_file = args.also_to_password_file.clone();
    let (method, selection) = (args.method, args.selection.clone());
    let options = options(args, hooks, context)?;
    let opened = repository::open_all_for_backup(context, others, password_file.as_deref());
    let repos = opened.iter().flatten().filter_map(|(_, repo)| repo.as_ref().ok());
    let turn = source.take_turn_of_hooks(repos, context)?;
    let ready = options.and_then(|options| Ok((opened?, options)));
    let ids = |taken: &TakenInto| {
        let of = |place: &Place| place.name.as_ref().map(|(log, run)| log.backup_id(*run));
        taken.repositories.iter().filter_map(of).collect()
    };
    let take = |(opened, options)| take_into(opened, method, selection, &options, context);
    let (exit, taken) = hooks.around(context, ready, take, ids)?;
    drop(turn);
    context.output.result(exit, &taken);
    Ok(exit)
}

/// Takes a backup into those repositories that could be opened.
fn take_into(
    opened: Vec<repository::Opened>,
    method: Method,
    selection: SelectionArgs,
    options: &BackupOptions,
    context: &Context<'_>,
) -> Result<(Exit, TakenInto)> {
    let repos: Vec<_> = opened.iter().filter_map(|(_, repo)| repo.as_ref().ok().map(Arc::clone)).collect();
    let mut taken = match repos.is_empty() {
        true => Vec::new(),
        false => take(&repos, method, selection, options, context),
    }
    .into_iter();
    let mut results = Vec::new();
    for (location, repo) in opened {
        let nothing = || Err(Error::failed("the backup ended without a result"));
        results.push((location, repo.and_then(|_| taken.next().unwrap_or_else(nothing))));
    }
    if results.iter().all(|(_, taken)| taken.is_err()) {
        // The first repository is the main one, so its error is returned; the others' errors are reported
        // before it.
        let mut errors = results.into_iter().filter_map(|(location, taken)| Some((location, taken.err()?)));
        let first = errors.next().map_or_else(|| Error::failed("there is no repository"), |(_, error)| error);
        for (location, error) in errors {
            context.output.warning(format!("backup to {location} also failed: {error}"));
        }
        return Err(first);
    }
    let places = results.into_iter().map(|(location, taken)| Place::new(location, taken));
    let repositories: Vec<Place> = places.collect();
    let first = repositories.iter().find_map(|place| place.name.as_ref().zip(place.report.as_ref()));
    let (id, report) = match first {
        Some(((log, run), report)) => (log.backup_id(*run), report.whole().clone()),
        None => (String::new(), Value::Null),
    };
    let is_sound = repositories.iter().all(|place| place.exit_code == Exit::Done);
    let exit = if is_sound { Exit::Done } else { Exit::Finding };
    Ok((exit, TakenInto { id, report, repositories }))
}
