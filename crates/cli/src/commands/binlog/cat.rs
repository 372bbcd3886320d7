//! `binlog cat`: writes a binlog file as it was, or the transactions that follow a logical backup.

use std::{
    fmt::{self, Write as _},
    fs::File,
    io::{self, BufWriter, IsTerminal as _, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::Arc,
};

use holdfast_core::{
    Context as _, Error, ErrorKind, Event, Listener as _, Result,
    binlog::{Archive, FileContent},
    recovery::{self, Recovery, Until},
    restore::Reached,
};
use holdfast_repo::{Act, Kind};
use serde::Serialize;

use super::{Context, open_archive, repository, select};
use crate::{
    args::{backup_ref::BackupRef, binlog::CatArgs, units::ByteSize},
    exit::Exit,
    output::{ClosableStdout, Render, text},
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
        // Standard output carries the file itself, so print nothing.
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

/// The transactions that follow a backup.
#[derive(Serialize)]
struct Followed {
    after: String,
    output: Option<String>,
    #[serde(flatten)]
    reached: Reached,
}

impl Render for Followed {
    fn render(&self, out: &mut String) -> fmt::Result {
        let Some(output) = &self.output else { return Ok(()) };
        let transactions = text::count(self.reached.transactions, "transaction");
        let at = self.reached.committed_at.map(|at| format!(", the last of {at}")).unwrap_or_default();
        writeln!(out, "{transactions} after {}{at} written to {output}", self.after)
    }
}

pub(super) fn run(args: &CatArgs, context: &Context<'_>) -> Result<Exit> {
    if args.output.is_none() && (context.global.json || io::stdout().is_terminal()) {
        let text = "a binlog file is binary: write it to a file (--output) or a pipe";
        return Err(Error::new(ErrorKind::Usage, text));
    }
    let output = args.output.as_ref().map(|path| path.display().to_string());
    if let (Some(id), Some(until)) = (&args.after, args.moment.until()) {
        let recovery = what_follows(args, id, until, context)?;
        let (log, base) = recovery.base();
        let after = log.backup_id(base);
        let reached = written(args.output.as_deref(), |write| {
            recovery.write_binlog(args.skip_gtids, context.cancel, write)
        })?;
        let Some(reached) = reached else { return Ok(Exit::Done) };
        for filters in &reached.leaves_out {
            let text = format!("the server's filters kept transactions out of its binlog: {filters}");
            context.output.warning(text);
        }
        let text = "keep the target's event scheduler off until this is executed (SET GLOBAL \
                    event_scheduler = OFF): the changes that events made on the source are in it";
        context.output.event(Event::Note { text: text.to_owned() });
        context.output.result(Exit::Done, &Followed { after, output, reached });
        return Ok(Exit::Done);
    }
    let Some(file) = args.file.clone().filter(|_| args.moment.until().is_none()) else {
        let text = "a file is written as a whole: --at, --gtid and --before-gtid need --after";
        return Err(Error::new(ErrorKind::Usage, text));
    };
    let archive = open_archive(context, &args.name, "to write out what is archived")?;
    let content = written(args.output.as_deref(), |write| Archive::file(&archive, &file, write))?;
    let Some(content) = content else { return Ok(Exit::Done) };
    context.output.result(Exit::Done, &Written { file, output, content });
    Ok(Exit::Done)
}

fn what_follows(args: &CatArgs, id: &BackupRef, until: Until, context: &Context<'_>) -> Result<Recovery> {
    if let Some(kind) = id.kind.filter(|kind| *kind != Kind::Logical) {
        let text = format!("{id} is of kind {kind}: a restore replays the binlog after it by itself");
        return Err(
            Error::new(ErrorKind::Usage, text).hinted("holdfast restore --at, --gtid or --before-gtid")
        );
    }
    let repo = Arc::new(repository::open_for(context, Act::Read, "to write out what is archived")?);
    let id = BackupRef { kind: Some(Kind::Logical), ..id.clone() };
    let chosen = select::backup(context, &repo, &id, args.name.name.as_ref())?;
    recovery::choose(&repo, &chosen.log().source, Some((Kind::Logical, Some(chosen.run))), until)
}

/// Consumes bytes.
type Take<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Lets `give` write to a new file, or to standard output; `None` if its reader has seen enough.
fn written<T>(path: Option<&Path>, give: impl FnOnce(&mut Take<'_>) -> Result<T>) -> Result<Option<T>> {
    let Some(path) = path else {
        let doing = "write to standard output";
        let mut out = BufWriter::new(ClosableStdout::lock());
        let given = give(&mut |bytes| out.write_all(bytes).context(doing));
        let done = given.and_then(|given| out.flush().context(doing).map(|()| given));
        return match done {
            Err(_) if out.get_ref().has_gone() => Ok(None),
            done => done.map(Some),
        };
    };
    let doing = || format!("write {}", path.display());
    let file = File::options().write(true).create_new(true).mode(0o600).open(path).context(doing())?;
    let mut out = BufWriter::new(file);
    let given = give(&mut |bytes| out.write_all(bytes).context(doing()));
    let done = given.and_then(|given| {
        out.flush().context(doing())?;
        out.get_ref().sync_all().context(doing())?;
        Ok(given)
    });
    if done.is_err() {
        let _gone = std::fs::remove_file(path);
    }
    done.map(Some)
}
