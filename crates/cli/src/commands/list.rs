//! `list`: prints one line for each backup.

use std::fmt;

use holdfast_core::{
    ErrorKind, Event, Listener as _, Result,
    head::{self, read_heads},
    position::Position,
    server::ServerVersion,
};
use holdfast_repo::{
    Act, LogName, Repo, RunNo,
    format::manifest::Head,
    log::{history::History, outcome::Outcome},
    ops::suspects,
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, copy::CopyShown, hold::HoldShown, repository, select};
use crate::{
    args::{
        inspect::ListArgs,
        units::{ByteSize, Span},
    },
    exit::Exit,
    output::{
        Render,
        text::{self, numbers, words},
    },
};

/// One line.
#[derive(Serialize)]
pub(super) struct Listed {
    /// The id in the form that can be typed.
    id: String,
    source: String,
    kind: String,
    run: u64,
    finished_at: Timestamp,
    /// Name of the key that it was added with.
    key: String,
    /// Why `expire` does not drop it; null if it may.
    hold: Option<HoldShown>,
    /// The backup that it is a copy of; null if it was taken into this repository.
    copy_of: Option<CopyShown>,
    /// Why the manifest's facts cannot be shown; null if they can, or if the key is not allowed to read them.
    problem: Option<String>,
    /// Whether the backup needs a pack that a check has found damaged or gone; null if that is not known.
    is_suspect: Option<bool>,
    /// The manifest's facts; absent if the key cannot read them, or if there is a problem.
    #[serde(flatten)]
    details: Option<Details>,
}

/// Facts from the manifest.
#[derive(Serialize)]
struct Details {
    method: String,
    started_at: Timestamp,
    server: Option<ServerVersion>,
    /// Size of all files.
    size_bytes: u64,
    /// Plain bytes that the base did not have.
    new_bytes: u64,
    /// Bytes that the backup added to the repository.
    stored_bytes: u64,
    position: Option<Position>,
    tags: Vec<String>,
    flags: Vec<String>,
}

impl Listed {
    fn new(history: &History, run: RunNo, finished_at: Timestamp, details: Option<Details>) -> Self {
        let log = history.log();
        Self {
            id: log.backup_id(run),
            source: log.source.to_string(),
            kind: log.kind.to_string(),
            run: run.0,
            finished_at,
            key: history.outcome(run).map(|outcome| outcome.author.key_id.to_string()).unwrap_or_default(),
            hold: HoldShown::of(history, run),
            copy_of: CopyShown::of(history, run),
            problem: None,
            is_suspect: None,
            details,
        }
    }

    fn unreadable(history: &History, run: RunNo, finished_at: Timestamp, problem: String) -> Self {
        Self { problem: Some(problem), ..Self::new(history, run, finished_at, None) }
    }

    fn row(&self) -> [String; 11] {
        let [server, size, stored, took, position, mut tags] =
            self.details.as_ref().map(|details| details.row(self.finished_at)).unwrap_or_default();
        if self.problem.is_some() {
            tags = "!unreadable".to_owned();
        }
        if self.is_suspect == Some(true) {
            tags = format!("!suspect {tags}").trim_end().to_owned();
        }
        let hold = self.hold.as_ref().map(ToString::to_string).unwrap_or_default();
        // Shown because users look for the original's number where it differs.
        let copy = self.copy_of.as_ref().map(|copy| copy.short()).unwrap_or_default();
        let (time, age) = (text::instant(self.finished_at), text::age(self.finished_at));
        [self.id.clone(), time, age, server, size, stored, took, position, tags, hold, copy]
    }
}

impl From<Head> for Details {
    fn from(head: Head) -> Self {
        Self {
            server: head::server_version(&head),
            position: head::position(&head),
            method: head.method,
            started_at: head.started_at,
            size_bytes: head.totals.bytes,
            new_bytes: head.totals.bytes_new,
            stored_bytes: head.totals.bytes_stored,
            tags: head.tags,
            flags: head.flags,
        }
    }
}

impl Details {
    fn row(&self, finished_at: Timestamp) -> [String; 6] {
        [
            self.server.as_ref().map(ToString::to_string).unwrap_or_default(),
            ByteSize(self.size_bytes).to_string(),
            ByteSize(self.stored_bytes).to_string(),
            Span(text::duration(self.started_at, finished_at)).to_string(),
            self.position.as_ref().map(short_position).unwrap_or_default(),
            self.flags
                .iter()
                .map(|flag| format!("!{flag}"))
                .chain(self.tags.iter().cloned())
                .collect::<Vec<_>>()
                .join(" "),
        ]
    }
}

/// The binlog position, or else the GTID, truncated to fit.
fn short_position(position: &Position) -> String {
    match (&position.binlog, &position.gtid) {
        (Some(binlog), _) => format!("{}:{}", binlog.file, binlog.offset),
        (None, Some(gtid)) if gtid.len() > 40 => format!("{}…", gtid.chars().take(39).collect::<String>()),
        (None, gtid) => gtid.clone().unwrap_or_default(),
    }
}

#[derive(Serialize)]
struct List {
    repository: String,
    backups: Vec<Listed>,
}

impl Render for List {
    fn render(&self, out: &mut String) -> fmt::Result {
        if self.backups.is_empty() {
            out.push_str("no backups\n");
            return Ok(());
        }
        let columns = [
            words("ID"),
            words("TIME (UTC)"),
            numbers("AGE"),
            words("SERVER"),
            numbers("SIZE"),
            numbers("STORED"),
            numbers("TOOK"),
            words("POSITION"),
            words("TAGS"),
            words("HELD"),
            words("COPY OF"),
        ];
        let rows: Vec<_> = self.backups.iter().map(Listed::row).collect();
        text::table(out, &columns, &rows)
    }
}

pub(super) fn run(args: &ListArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = repository::open(context)?;
    repository::warn_of_keys(context, &repo);
    match args.tag {
        Some(_) => repo.require(Act::Read, "finding backups by tag")?,
        None if !repo.can_read() => {
            let text = "details of backups are not shown: only an operator's key can read manifests";
            context.output.event(Event::Note { text: text.to_owned() });
        }
        None => {}
    }
    let mut backups = Vec::new();
    let is_wanted = |log: &LogName| args.kind.is_none_or(|kind| log.kind == kind);
    for log in select::logs_named(&repo, args.name.as_ref())?.into_iter().filter(is_wanted) {
        append(&repo, &log, args, context, &mut backups)?;
    }
    let mut exit = Exit::Done;
    for it in &backups {
        if let Some(problem) = &it.problem {
            exit = Exit::Finding;
            context.output.warning(format!("{}: {problem}", it.id));
        }
        if it.is_suspect == Some(true) {
            context.output.warning(format!(
                "{}: needs data that a check has found damaged or gone: \"holdfast check\" tells what is lost",
                it.id
            ));
        }
    }
    context.output.result(exit, &List { repository: repo.store().location(), backups });
    Ok(exit)
}

fn append(
    repo: &Repo,
    log: &LogName,
    args: &ListArgs,
    context: &Context<'_>,
    backups: &mut Vec<Listed>,
) -> Result<()> {
    let history = select::salvaged(context, repo, log, &mut |_, _| {})?;
    if !repo.can_read() {
        let listed = |outcome: &Outcome| Listed::new(&history, outcome.run, outcome.taken_at(), None);
        backups.extend(history.standing().map(listed));
        return Ok(());
    }
    let suspects = match suspects(repo, &history) {
        Ok(suspects) => Some(suspects),
        // It hides no backup.
        Err(error) => {
            context.output.warning(format!("{log}: cannot tell which backups need damaged data: {error}"));
            None
        }
    };
    let mut add = |listed: Listed, run| {
        let is_suspect = suspects.as_ref().map(|suspects| suspects.contains(&run));
        backups.push(Listed { is_suspect, ..listed });
    };
    let standing: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
    read_heads(repo, &history, &standing, |run, head| {
        match head {
            Ok(head) if args.tag.as_ref().is_none_or(|tag| head.tags.contains(tag)) => {
                add(Listed::new(&history, run, head.finished_at, Some(head.into())), run);
            }
            Ok(_) => {}
            // One unreadable backup does not hide the others.
            Err(error) if error.kind() == ErrorKind::Damaged => {
                let taken_at = history.outcome(run).map(Outcome::taken_at).unwrap_or_default();
                add(Listed::unreadable(&history, run, taken_at, error.to_string()), run);
            }
            Err(error) => return Err(error),
        }
        context.cancel.check()
    })
}
