//! `binlog close`: ends the archive of a server that is gone.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{Result, binlog::close};
use holdfast_repo::{Act, Kind, data::writer::WriterOptions};
use serde::Serialize;

use super::{Context, repository, select};
use crate::{
    args::{binlog::CloseArgs, units::ByteSize},
    exit::Exit,
    output::{Render, text},
};

#[derive(Serialize)]
struct Closed {
    source: String,
    /// The run that has what was left; absent if nothing was.
    run: Option<u64>,
    bytes: u64,
    until: Option<String>,
    /// What is wrong with segments that cannot be read.
    unreadable: Vec<String>,
}

impl Render for Closed {
    fn render(&self, out: &mut String) -> fmt::Result {
        for problem in &self.unreadable {
            text::fact(out, "UNREADABLE", problem)?;
        }
        let source = &self.source;
        match &self.until {
            Some(until) => writeln!(out, "{source} is archived until {until}")?,
            None => writeln!(out, "nothing is archived of {source}")?,
        }
        match self.run {
            Some(run) => writeln!(out, "{} moved from segments into run {run}", ByteSize(self.bytes)),
            None if self.unreadable.is_empty() => writeln!(out, "nothing was left in segments"),
            None => writeln!(out, "what is left stays in segments: run \"holdfast repair\", then this again"),
        }
    }
}

pub(super) fn run(args: &CloseArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Backup, "closing an archive")?);
    let log = select::log(context, &repo, args.name.name.as_ref(), Some(Kind::Binlog))?;
    let closed = close(&repo, &log, &context.run_options(), &WriterOptions::default())?;
    let exit = if closed.unreadable.is_empty() { Exit::Done } else { Exit::Finding };
    let shown = Closed {
        source: log.source.to_string(),
        run: closed.into.map(|run| run.0),
        bytes: closed.bytes,
        until: closed.until.map(|place| place.to_string()),
        unreadable: closed.unreadable,
    };
    context.output.result(exit, &shown);
    Ok(exit)
}
