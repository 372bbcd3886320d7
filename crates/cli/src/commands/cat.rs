//! `cat`: writes the rows and statements of a logical backup to standard output.

use std::{
    io::{self, StdoutLock, Write},
    sync::Arc,
};

use holdfast_core::{
    Error, ErrorKind, Result,
    logical::{
        delimited::{self, RowFormat},
        script,
    },
};
use holdfast_repo::{Act, Kind, data::reader::Backup};

use super::{Context, repository, select};
use crate::{
    args::inspect::{CatArgs, CatFormat},
    exit::Exit,
};

pub(super) fn run(args: &CatArgs, context: &Context<'_>) -> Result<Exit> {
    if context.global.json {
        return Err(Error::new(
            ErrorKind::Usage,
            "cat writes rows and statements themselves to standard output, not JSON",
        ));
    }
    let repo = Arc::new(repository::open_for(context, Act::Read, "to read rows")?);
    let mut id = args.id.clone();
    id.kind.get_or_insert(Kind::Logical);
    let chosen = select::backup(context, &repo, &id, args.name.name.as_ref())?;
    let backup = Backup::open(&repo, &chosen.history, chosen.run)?;
    let mut out = Reader::stdout();
    match write(args, &backup, &mut out, context) {
        Err(_) if out.has_gone() => Ok(Exit::Done),
        written => written.map(|()| Exit::Done),
    }
}

/// Standard output, whose reader may close it early.
pub(super) struct Reader<W> {
    out: W,
    has_gone: bool,
}

impl Reader<StdoutLock<'static>> {
    pub(super) fn stdout() -> Self {
        Self { out: io::stdout().lock(), has_gone: false }
    }
}

impl<W: Write> Reader<W> {
    /// Whether the reader has seen enough, as with "| head".
    pub(super) fn has_gone(&self) -> bool {
        self.has_gone
    }

    fn noted<T>(&mut self, written: io::Result<T>) -> io::Result<T> {
        self.has_gone |= written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        written
    }
}

impl<W: Write> Write for Reader<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.noted(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.noted(flushed)
    }
}

fn write(args: &CatArgs, backup: &Backup, out: &mut dyn Write, context: &Context<'_>) -> Result<()> {
    let rows = |format| {
        let table = args.table.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "no table is named")
                .hinted("write \"holdfast cat ID shop.orders\", or all tables with \"holdfast export\"")
        })?;
        Ok::<_, Error>((table, format))
    };
    let (table, format) = match args.format {
        CatFormat::Sql => {
            script::write(backup, args.table.as_ref(), out, context.cancel)?;
            return Ok(());
        }
        CatFormat::Csv => rows(RowFormat::Csv)?,
        CatFormat::Jsonl => rows(RowFormat::JsonLines)?,
    };
    delimited::write(backup, table, format, out, context.cancel).map(drop)
}
