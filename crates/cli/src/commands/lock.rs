//! `lock`: extends locks that are about to end.

use std::fmt::{self, Write as _};

use holdfast_core::{Error, ErrorKind, Result};
use holdfast_repo::{
    Act,
    ops::object_lock::{ExtendOptions, extend},
    store::locks::Extended,
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, repository};
use crate::{
    args::{
        lock::LockArgs,
        units::{ByteSize, Span},
    },
    exit::Exit,
    output::{Render, text},
};

/// What was done for one log, or for the objects that all logs share.
#[derive(Serialize)]
struct Part {
    log: Option<String>,
    /// Versions of needed objects.
    versions: u64,
    extended: u64,
    extended_bytes: u64,
    /// How many of these were not locked at all, or no longer.
    unlocked: u64,
    /// Versions that the service refused to show or to lock, and the reason for the first.
    refused: u64,
    refusal: Option<String>,
    /// Names with too many versions to examine them all.
    crowded: u64,
    /// Why everything there was treated as needed.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Locked {
    dry_run: bool,
    mode: &'static str,
    period_s: u64,
    margin_s: u64,
    until: Option<Timestamp>,
    parts: Vec<Part>,
    /// Requests made.
    reads: u64,
    writes: u64,
}

impl Render for Locked {
    fn render(&self, out: &mut String) -> fmt::Result {
        for part in &self.parts {
            let what = part.log.as_deref().unwrap_or("keys and the like");
            let (extended, bytes) = (text::count(part.extended, "object"), ByteSize(part.extended_bytes));
            write!(out, "{what}: {extended} of {}, {bytes}", part.versions)?;
            match part.unlocked {
                0 => writeln!(out)?,
                n => writeln!(out, "; {} with no lock, or an expired one", text::count(n, "object"))?,
            }
            if part.refused > 0 {
                let why = part.refusal.as_deref().unwrap_or_default();
                writeln!(
                    out,
                    "  {} not extended: {}",
                    text::count(part.refused, "version"),
                    text::one_line(why)
                )?;
            }
            if part.crowded > 0 {
                let names = text::count(part.crowded, "name");
                writeln!(
                    out,
                    "  {names} with so many versions that only the newest and the oldest were examined"
                )?;
            }
            if let Some(problem) = &part.problem {
                writeln!(out, "  everything there was treated as needed: {}", text::one_line(problem))?;
            }
        }
        let period = Span(std::time::Duration::from_secs(self.period_s));
        let margin = Span(std::time::Duration::from_secs(self.margin_s));
        let until = self.until.map_or_else(String::new, |until| format!(" until {until:.0}"));
        if self.dry_run {
            let writes: u64 = self.parts.iter().map(|part| part.extended).sum();
            writeln!(
                out,
                "nothing was changed: locks ({}, {period}) that end within {margin} would be extended\
                 {until}; {} to examine, {} to lock",
                self.mode,
                text::count(self.reads, "request"),
                text::count(writes, "request")
            )
        } else {
            writeln!(
                out,
                "locks ({}, {period}) that would have ended within {margin} extended{until}; \
                 {} to examine, {} to lock",
                self.mode,
                text::count(self.reads, "request"),
                text::count(self.writes, "request")
            )
        }
    }
}

pub(super) fn run(args: &LockArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = repository::open_for(context, Act::Prune, "extending locks")?;
    let Some(lock) = repo.info().object_lock else {
        let what =
            format!("{} was made without --object-lock: nothing in it is locked", repo.store().location());
        return Err(Error::failed(what).hinted(
            "make another with init --object-lock, and copy the backups into it (docs/guide/stores.md)",
        ));
    };
    let margin = args.margin.map_or(lock.period() / 4 * 3, |margin| margin.0);
    if margin > lock.period() {
        let what = format!("--margin is longer than the repository's locks, {}", Span(lock.period()));
        return Err(Error::new(ErrorKind::Usage, what));
    }
    let dry_run = args.dry_run || !args.extend;
    let options = ExtendOptions { margin, dry_run, interrupt: context.cancel.interrupt() };
    let mut done = Locked {
        dry_run,
        mode: lock.mode.as_str(),
        period_s: lock.period().as_secs(),
        margin_s: margin.as_secs(),
        until: None,
        parts: Vec::new(),
        reads: 0,
        writes: 0,
    };
    let until = extend(&repo, &options, &mut |part| {
        let Extended { versions, extended, extended_bytes, unlocked, reads, writes, .. } = part.extended;
        let Extended { refused, first_refusal: refusal, crowded, .. } = part.extended;
        let log = part.log.map(|log| log.to_string());
        let problem = part.unknown.map(|error| error.to_string());
        done.parts.push(Part {
            log,
            versions,
            extended,
            extended_bytes,
            unlocked,
            refused,
            refusal,
            crowded,
            problem,
        });
        done.reads += reads;
        done.writes += writes;
    })?;
    done.until = Timestamp::try_from(until).ok();
    let is_well =
        |part: &Part| part.problem.is_none() && part.unlocked == 0 && part.refused == 0 && part.crowded == 0;
    let exit = if done.parts.iter().all(is_well) { Exit::Done } else { Exit::Finding };
    context.output.result(exit, &done);
    Ok(exit)
}
