//! Hooks: commands of the user's before and behind a backup.
//!
//! They are the program's business; the library starts nothing of its own accord. A hook has no terminal and gets no
//! password; what it prints is passed on line by line. It has a process group of its own, so that a Ctrl-C is ours to
//! handle, and whatever it has started ends with it where it is ended.

use std::{
    io::{self, BufRead as _, BufReader, Read},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use holdfast_core::{Cancel, Context as _, Error, ErrorKind, Event, Listener as _, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    args::{hooks::HookArgs, units::Span},
    context::Context,
    exit::Exit,
    password::{OWN_SECRETS, SERVER_PASSWORD},
};

const TIMEOUT: Duration = Duration::from_secs(600);
/// How long a hook has to end once it was told to.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How long is listened to what a hook has left running, once it has ended itself.
const LISTENS_ON: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// Of a line that is longer, the rest is left out.
const LINE_BYTES_MAX: u64 = 4096;
/// Of the error that a hook is told.
const ERROR_CHARS_MAX: usize = 4096;
/// A hook that prints faster than is listened waits.
const LINES_WAITING_MAX: usize = 1024;

/// The hooks of one backup.
pub(crate) struct Hooks {
    args: HookArgs,
    /// What both are told.
    about: Vec<(&'static str, String)>,
}

/// Which of the two.
#[derive(Clone, Copy)]
enum Moment {
    Before,
    After,
}

impl Moment {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }

    /// The option's.
    fn option(self) -> &'static str {
        match self {
            Self::Before => "hook-before",
            Self::After => "hook-after",
        }
    }
}

/// What came of the hook before, for the one after.
#[derive(Clone, Copy)]
enum Before {
    NotRun,
    Failed,
    Done,
}

impl Before {
    fn name(self) -> &'static str {
        match self {
            Self::NotRun => "not-run",
            Self::Failed => "failed",
            Self::Done => "done",
        }
    }
}

impl Hooks {
    /// Those that were typed or configured, for a backup that `about` describes.
    pub(crate) fn new(args: HookArgs, about: Vec<(&'static str, String)>) -> Self {
        Self { args, about }
    }

    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        self.args.hook_before.is_some() || self.args.hook_after.is_some()
    }

    /// Takes a backup between the two hooks. The second one runs whatever came of the first and of the backup, so that it
    /// can undo, and also where the repository could not be `opened`, so that it can tell. `ids` tells what was taken.
    pub(crate) fn around<R, T>(
        &self,
        context: &Context<'_>,
        opened: Result<R>,
        take: impl FnOnce(R) -> Result<(Exit, T)>,
        ids: impl Fn(&T) -> Vec<String>,
    ) -> Result<(Exit, T)> {
        let command = self.args.hook_before.as_deref();
        let (before, taken) = match opened {
            Err(error) => (Before::NotRun, Err(error)),
            Ok(opened) => match self.run(Moment::Before, command, &[], context, context.cancel) {
                Err(error) => (Before::Failed, Err(error)),
                Ok(()) if command.is_none() => (Before::NotRun, take(opened)),
                Ok(()) => (Before::Done, take(opened)),
            },
        };
        let taken = taken.map_err(|error| context.interrupted_or(error));
        let (exit, error) = match &taken {
            Ok((exit, _)) => (*exit, None),
            Err(error) => (error.kind().into(), Some(error.to_string())),
        };
        let mut outcome = vec![
            ("HOLDFAST_HOOK_BEFORE", before.name().to_owned()),
            ("HOLDFAST_HOOK_EXIT_CODE", exit.code().to_string()),
            ("HOLDFAST_HOOK_OUTCOME", exit.name().to_owned()),
        ];
        if let Ok((_, taken)) = &taken {
            outcome.push(("HOLDFAST_HOOK_BACKUPS", ids(taken).join(" ")));
        }
        // No longer than a system takes, and without what it does not take at all.
        let begin = |error: String| -> String {
            error.chars().filter(|c| *c != '\0').take(ERROR_CHARS_MAX).collect()
        };
        outcome.extend(error.map(|error| ("HOLDFAST_HOOK_ERROR", begin(error))));
        // Not ended by a signal that has ended the backup: it may have something to undo.
        let after = self.args.hook_after.as_deref();
        let after = self.run(Moment::After, after, &outcome, context, &Cancel::default());
        match (taken, after) {
            (Ok((Exit::Done, taken)), Err(error)) => {
                context.output.warning(format!("{error}; the backup itself stands"));
                Ok((Exit::Finding, taken))
            }
            (taken, after) => {
                if let Err(error) = after {
                    context.output.warning(error.to_string());
                }
                taken
            }
        }
    }

    fn run(
        &self,
        moment: Moment,
        command: Option<&str>,
        outcome: &[(&'static str, String)],
        context: &Context<'_>,
        cancel: &Cancel,
    ) -> Result<()> {
        let Some(command) = command else { return Ok(()) };
        let name = moment.option();
        context.output.event(Event::Phase { name });
        let mut shell = Command::new("/bin/sh");
        for secret in OWN_SECRETS.into_iter().chain([SERVER_PASSWORD]) {
            shell.env_remove(secret);
        }
        shell.args(["-c", command]).env("HOLDFAST_HOOK", moment.name());
        shell.envs(self.about.iter().chain(outcome).map(|(name, value)| (name, value)));
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // The command itself is not shown: it may hold a secret.
        let mut child = shell.spawn().context(format_args!("start {name}"))?;
        let lines = listen(&mut child).context(format_args!("listen to {name}"))?;
        let limit = self.args.hook_timeout.map_or(TIMEOUT, |span| span.0);
        let mut last = None;
        let mut say = |line: String| {
            context.output.event(Event::Note { text: format!("{name}: {line}") });
            last = Some(line);
        };
        let ended = wait(&mut child, &lines, limit, cancel, &mut say)?;
        let how = match ended {
            Ended::By(status) if status.success() => return Ok(()),
            Ended::By(status) => format!("failed ({status})"),
            Ended::TooLate => format!("had not ended after {}", Span(limit)),
            Ended::Interrupted => {
                return Err(Error::new(ErrorKind::Interrupted, format!("interrupted during {name}")));
            }
        };
        let said = last.map_or_else(String::new, |line| format!("; its last line: {line}"));
        Err(Error::failed(format!("{name} {how}{said}")))
    }
}

/// How a hook ended.
enum Ended {
    By(ExitStatus),
    TooLate,
    Interrupted,
}

/// Lets a hook run to its end, or ends it.
fn wait(
    child: &mut Child,
    lines: &Receiver<String>,
    limit: Duration,
    cancel: &Cancel,
    say: &mut impl FnMut(String),
) -> Result<Ended> {
    let begun = Instant::now();
    let ended = loop {
        match lines.recv_timeout(POLL) {
            Ok(line) => say(line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL),
        }
        if let Some(status) = child.try_wait().context("wait for a hook")? {
            break Ended::By(status);
        }
        let ended = match () {
            () if cancel.is_cancelled() => Ended::Interrupted,
            () if begun.elapsed() >= limit => Ended::TooLate,
            () => continue,
        };
        end(child)?;
        break ended;
    };
    let listened = Instant::now();
    while let Some(left) = LISTENS_ON.checked_sub(listened.elapsed()) {
        let Ok(line) = lines.recv_timeout(left) else { break };
        say(line);
    }
    Ok(ended)
}

/// Asks a hook, and all that it has started, to end, and sees to it.
fn end(child: &mut Child) -> Result<()> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let signal = |signal| group.map_or(Ok(()), |group| kill_process_group(group, signal));
    // Whoever is gone needs no signal.
    let _gone = signal(Signal::TERM);
    let asked = Instant::now();
    while asked.elapsed() < ENDS_WITHIN {
        if child.try_wait().context("wait for a hook")?.is_some() {
            break;
        }
        thread::sleep(POLL);
    }
    let _gone = signal(Signal::KILL);
    child.wait().context("wait for a hook")?;
    Ok(())
}

/// What the hook prints, line by line. The threads end with its pipes, which what it leaves running can hold open.
fn listen(child: &mut Child) -> io::Result<Receiver<String>> {
    let (tell, lines) = sync_channel(LINES_WAITING_MAX);
    if let Some(stdout) = child.stdout.take() {
        pass_on(stdout, tell.clone())?;
    }
    if let Some(stderr) = child.stderr.take() {
        pass_on(stderr, tell)?;
    }
    Ok(lines)
}

fn pass_on(from: impl Read + Send + 'static, tell: SyncSender<String>) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let each = move || {
        let mut line = Vec::new();
        let mut is_rest = false;
        loop {
            line.clear();
            match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let is_whole = line.last() == Some(&b'\n');
            if !is_rest {
                // Whoever is not listened to any more may go on printing.
                let _nobody_listens = tell.send(shown(&line));
            }
            is_rest = !is_whole;
        }
    };
    thread::Builder::new().name("hook".to_owned()).spawn(each).map(drop)
}

/// A line as it is passed on: nothing in it moves a terminal's cursor.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.trim_end().chars().map(|c| if c.is_control() && c != '\t' { '\u{FFFD}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_harmless() {
        assert_eq!(shown(b"all \x1b[2Jwell\tdone\r\n"), "all \u{FFFD}[2Jwell\tdone");
        assert_eq!(shown(b"\xff\n"), "\u{FFFD}");
    }
}
