//! `cat`: writes the rows and statements of a logical backup to standard output.

use std::{io::Write, sync::Arc};

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
    output::ClosableStdout,
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
    let mut out = ClosableStdout::lock();
    match write(args, &backup, &mut out, context) {
        Err(_) if out.has_gone() => Ok(Exit::Done),
        written => written.map(|()| Exit::Done),
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
