//! `cat`: the rows and statements of a logical backup on standard output.

use std::{io, sync::Arc};

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
    let mut out = io::stdout().lock();
    let rows = |format| {
        let table = args.table.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "rows of which table?")
                .hinted("write \"holdfast cat ID shop.orders\", or all tables with \"holdfast export\"")
        })?;
        Ok::<_, Error>((table, format))
    };
    let (table, format) = match args.format {
        CatFormat::Sql => {
            script::write(&backup, args.table.as_ref(), &mut out, context.cancel)?;
            return Ok(Exit::Done);
        }
        CatFormat::Csv => rows(RowFormat::Csv)?,
        CatFormat::Jsonl => rows(RowFormat::JsonLines)?,
    };
    delimited::write(&backup, table, format, &mut out, context.cancel)?;
    Ok(Exit::Done)
}
