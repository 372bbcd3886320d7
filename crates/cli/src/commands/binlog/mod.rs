//! `binlog`: the verbs archive, list, cat and close.

mod archive;
mod cat;
mod close;
mod list;

use std::sync::Arc;

use holdfast_core::{Result, binlog::Archive};
use holdfast_repo::{Act, Kind, Repo};
use jiff::Timestamp;

use super::{Context, repository, select, server};
use crate::{
    args::{
        binlog::{BinlogAction, BinlogArgs},
        inspect::NameArg,
    },
    exit::Exit,
};

pub(super) fn run(args: BinlogArgs, context: &Context<'_>) -> Result<Exit> {
    match args.action {
        BinlogAction::Archive(args) => archive::run(args, context),
        BinlogAction::List(args) => list::run(&args, context),
        BinlogAction::Cat(args) => cat::run(&args, context),
        BinlogAction::Close(args) => close::run(&args, context),
    }
}

fn open_archive(context: &Context<'_>, name: &NameArg, doing: &'static str) -> Result<Archive> {
    let repo: Arc<Repo> = Arc::new(repository::open_for(context, Act::Read, doing)?);
    let log = select::log(context, &repo, name.name.as_ref(), Some(Kind::Binlog))?;
    Archive::open(&repo, &log.source)
}

/// Converts microseconds since 1970 to a timestamp.
fn instant(us: u64) -> Timestamp {
    Timestamp::from_microsecond(i64::try_from(us).unwrap_or(i64::MAX)).unwrap_or(Timestamp::MAX)
}
