//! `export`: a logical backup as plain files.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
    thread::available_parallelism,
};

use holdfast_core::{
    Result,
    logical::export::{self, ExportOptions, Exported},
};
use holdfast_repo::{Act, Kind, reader::Backup};
use serde::Serialize;

use super::{Context, list, repository, select};
use crate::{
    args::{export::ExportArgs, units::ByteSize},
    exit::Exit,
    output::{Render, text},
};

/// Threads where nothing is said.
const THREADS_MAX: usize = 4;

#[derive(Serialize)]
struct Done {
    id: String,
    target: String,
    #[serde(flatten)]
    exported: Exported,
}

impl Render for Done {
    fn render(&self, out: &mut String) -> fmt::Result {
        let Exported { tables, rows, files, bytes } = self.exported;
        writeln!(
            out,
            "{}: {} of {} in {}, {}, at {}",
            self.id,
            text::count(rows, "row"),
            text::count(tables, "table"),
            text::count(files, "file"),
            ByteSize(bytes),
            self.target
        )
    }
}

pub(super) fn run(args: &ExportArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Read, "to read rows")?);
    let mut id = args.id.clone();
    id.kind.get_or_insert(Kind::Logical);
    let chosen = select::backup(context, &repo, &id, args.name.name.as_ref())?;
    let backup = Backup::open(&repo, &chosen.history, chosen.run)?;
    let processors = available_parallelism().map_or(1, usize::from);
    let options = ExportOptions {
        target: args.target_dir.clone(),
        format: args.format.into(),
        packing: args.compress.into(),
        parallel: args.parallel.unwrap_or(processors.min(THREADS_MAX)),
        file_bytes: args.file_size.0.max(1),
        tables: args.table.clone(),
    };
    let exported = export::export(&backup, &options, &**context.output, context.cancel)?;
    let id = list::id(chosen.log(), chosen.run);
    let target = args.target_dir.display().to_string();
    context.output.result(Exit::Done, &Done { id, target, exported });
    Ok(Exit::Done)
}
