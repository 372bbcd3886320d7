//! `export`: writes a logical backup, or tables of a physical one, as plain files.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
    thread::available_parallelism,
};

use holdfast_core::{
    Error, ErrorKind, Result,
    extract::ExtractReport,
    logical::{
        Selection,
        export::{self, ExportOptions, Exported},
    },
};
use holdfast_repo::{Act, data::reader::Backup};
use serde::Serialize;

use super::{
    Context,
    extract::{self, Chosen},
    repository,
};
use crate::{
    args::{export::ExportArgs, units::ByteSize},
    exit::Exit,
    output::{Render, text},
};

/// Default number of threads.
const THREADS_MAX: usize = 4;

#[derive(Serialize)]
struct Done {
    id: String,
    target: String,
    /// How the tables were extracted from a physical backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    extracted: Option<ExtractReport>,
    #[serde(flatten)]
    exported: Exported,
}

impl Render for Done {
    fn render(&self, out: &mut String) -> fmt::Result {
        let Exported { tables, rows, files, bytes } = self.exported;
        if let Some(extracted) = &self.extracted {
            extract::show(out, extracted)?;
        }
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

pub(super) fn run(args: ExportArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Read, "to read rows")?);
    let chosen = Chosen::of(context, &repo, args.id.as_ref(), args.name.name.as_ref(), args.moment.until())?;
    chosen.refuse_contradictions(&args.recovery)?;
    let processors = available_parallelism().map_or(1, usize::from);
    let options = ExportOptions {
        target: args.target_dir.clone(),
        format: args.format.into(),
        packing: args.compress.into(),
        parallel: args.parallel.unwrap_or(processors.min(THREADS_MAX)),
        file_bytes: args.file_size.0.max(1),
        tables: args.table.clone(),
    };
    let target = args.target_dir.display().to_string();
    let done = match &chosen {
        Chosen::Logical(_) if args.dry_run => {
            let text =
                "--dry-run shows what would be restored of a physical backup, and this backup is logical";
            return Err(Error::new(ErrorKind::Usage, text));
        }
        Chosen::Logical(chosen) => {
            let backup = Backup::open(&repo, &chosen.history, chosen.run)?;
            let exported = export::export(&backup, &options, &**context.output, context.cancel)?;
            Done { id: chosen.log().backup_id(chosen.run), target, extracted: None, exported }
        }
        Chosen::Physical(_) | Chosen::Moment(_) => {
            let selection = Selection { tables: args.table.into_iter().collect(), ..Selection::default() };
            let extraction = extract::options(selection, args.recovery, args.parallel, context);
            if args.dry_run {
                let extract = chosen.plan(&repo, &extraction, context)?;
                context.output.result(Exit::Done, &extract::Planned { dry_run: true, extract });
                return Ok(Exit::Done);
            }
            options.refuse_target()?;
            let extracted = chosen.extract(&repo, &extraction, context)?;
            let report = extracted.report.clone();
            let exported = extracted.export(&options, &**context.output, context.cancel)?;
            Done { id: report.backup.to_string(), target, extracted: Some(report), exported }
        }
    };
    context.output.result(Exit::Done, &done);
    Ok(Exit::Done)
}
