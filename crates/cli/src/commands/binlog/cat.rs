//! `binlog cat`: a binlog file as it was.

use std::{
    fmt::{self, Write as _},
    fs::File,
    io::{self, BufWriter, IsTerminal as _, Write},
    path::Path,
};

use holdfast_core::{
    Context as _, Error, ErrorKind, Result,
    binlog::{Archive, FileContent},
};
use serde::Serialize;

use super::{Context, open_archive};
use crate::{
    args::{binlog::CatArgs, units::ByteSize},
    exit::Exit,
    output::Render,
};

#[derive(Serialize)]
struct Written {
    file: String,
    output: Option<String>,
    #[serde(flatten)]
    content: FileContent,
}

impl Render for Written {
    fn render(&self, out: &mut String) -> fmt::Result {
        // Standard output is the file.
        match &self.output {
            Some(output) => writeln!(
                out,
                "{}: {} from {} to {} written to {output}",
                self.file,
                ByteSize(self.content.bytes),
                self.content.begin,
                self.content.end
            ),
            None => Ok(()),
        }
    }
}

pub(super) fn run(args: &CatArgs, context: &Context<'_>) -> Result<Exit> {
    if args.output.is_none() && (context.global.json || io::stdout().is_terminal()) {
        let text = "a binlog file is no text: it goes to a file (--output) or into a pipe";
        return Err(Error::new(ErrorKind::Usage, text));
    }
    let archive = open_archive(context, &args.name, "to write out what is archived")?;
    let content = match &args.output {
        Some(path) => to_file(&archive, &args.file, path)?,
        None => copy(&archive, &args.file, &mut io::stdout().lock(), "standard output")?,
    };
    let output = args.output.as_ref().map(|path| path.display().to_string());
    context.output.result(Exit::Done, &Written { file: args.file.clone(), output, content });
    Ok(Exit::Done)
}

fn to_file(archive: &Archive, name: &str, path: &Path) -> Result<FileContent> {
    let doing = || format!("write {}", path.display());
    let file = File::create_new(path).context(doing())?;
    let mut out = BufWriter::new(file);
    let content = copy(archive, name, &mut out, &path.display().to_string());
    let done = content.and_then(|content| {
        out.flush().context(doing())?;
        out.get_ref().sync_all().context(doing())?;
        Ok(content)
    });
    if done.is_err() {
        let _gone = std::fs::remove_file(path);
    }
    done
}

fn copy(archive: &Archive, name: &str, out: &mut dyn Write, to: &str) -> Result<FileContent> {
    archive.file(name, &mut |bytes| out.write_all(bytes).context(format_args!("write to {to}")))
}
