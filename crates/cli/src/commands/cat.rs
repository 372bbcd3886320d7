//! `cat`: the rows and statements of a logical backup, as a script on standard output.

use std::{io, sync::Arc};

use holdfast_core::{Error, ErrorKind, Result, logical::script};
use holdfast_repo::{Act, Kind, reader::Backup};

use super::{Context, repository, select};
use crate::{
    args::inspect::{CatArgs, CatFormat},
    exit::Exit,
};

pub(super) fn run(args: &CatArgs, context: &Context<'_>) -> Result<Exit> {
    if context.global.json {
        return Err(Error::new(
            ErrorKind::Usage,
            "cat writes the script itself to standard output, not JSON",
        ));
    }
    let repo = Arc::new(repository::open_for(context, Act::Read, "to read rows")?);
    let mut id = args.id.clone();
    id.kind.get_or_insert(Kind::Logical);
    let chosen = select::backup(context, &repo, &id, args.name.name.as_ref())?;
    let backup = Backup::open(&repo, &chosen.history, chosen.run)?;
    match args.format {
        CatFormat::Sql => {
            script::write(&backup, args.table.as_ref(), &mut io::stdout().lock(), context.cancel)?;
        }
    }
    Ok(Exit::Done)
}
