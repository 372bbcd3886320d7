//! Hooks: user commands that run before and after a backup.
//!
//! Only the program runs hooks; the library never starts commands on its own.
//! A hook has no terminal and gets no password; its output is passed on line by line.
//! It has its own process group, so that Ctrl-C reaches only this program, and so that killing the hook also
//! kills whatever it has started.

use std::{
    io::{self, BufRead as _, BufReader, Read},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use holdfast_core::{Cancel, Context as _, Error, ErrorKind, Event, Listener as _, Result};
use holdfast_stores::SECRET_VARIABLES;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    args::{hooks::HookArgs, units::Span},
    context::Context,
    exit::Exit,
    output::text,
};

mod turn;

pub(crate) use turn::Turn;

const TIMEOUT: Duration = Duration::from_secs(600);
/// How long a hook may take to end after SIGTERM.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How long to keep reading output from processes that a finished hook has left running.
const LISTENS_ON: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// Longer lines are truncated.
const LINE_BYTES_MAX: u64 = 4096;
/// Maximum length of the error text passed to a hook.
const ERROR_CHARS_MAX: usize = 4096;
/// Lines buffered; a hook that prints faster than they are read has to wait.
const LINES_WAITING_MAX: usize = 1024;

/// The hooks of one backup.
pub(crate) struct Hooks {
    args: HookArgs,
    /// Environment variables that both hooks get.
    about: Vec<(&'static str, String)>,
}

/// Which of the two hooks.
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

    /// The name of the option.
    fn option(self) -> &'static str {
        match self {
            Self::Before => "hook-before",
            Self::After => "hook-after",
        }
    }
}

/// The result of the first hook, as the second one gets it.
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
    /// The hooks that were typed or configured, for a backup that `about` describes.
    pub(crate) fn new(args: HookArgs, about: Vec<(&'static str, String)>) -> Self {
        Self { args, about }
    }

    /// Whether there is at least one hook.
    pub(crate) fn is_any(&self) -> bool {
        self.args.hook_before.is_some() || self.args.hook_after.is_some()
    }

    /// Takes a backup between the two hooks.
    /// The second one always runs, whatever the result of the first and of the backup, so that it can clean
    /// up.
    /// It also runs if what the backup needs could not be `opened`, so that it can report that.
    /// `ids` returns the ids of the backups taken.
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
        // Limited to what the system accepts in an environment variable: no NUL, and not too long.
        let begin = |error: String| -> String {
            error.chars().filter(|c| *c != '\0').take(ERROR_CHARS_MAX).collect()
        };
        outcome.extend(error.map(|error| ("HOLDFAST_HOOK_ERROR", begin(error))));
        // The signal that ended the backup does not end this hook: it may have to clean up.
        let after = self.args.hook_after.as_deref();
        let after = self.run(Moment::After, after, &outcome, context, &Cancel::default());
        match (taken, after) {
            (Ok((Exit::Done | Exit::Finding, taken)), Err(error)) => {
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
        for secret in SECRET_VARIABLES {
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

/// Waits for a hook to finish, or ends it on a timeout or an interrupt.
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

/// Sends SIGTERM to the hook's process group, and kills it if it has not ended in time.
fn end(child: &mut Child) -> Result<()> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let signal = |signal| group.map_or(Ok(()), |group| kill_process_group(group, signal));
    // If the processes are gone, they need no signal.
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

/// Passes on what the hook prints, line by line.
/// The reading threads end when its pipes close; processes it left running can keep those open.
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
                // Even when nobody receives the lines any more, the process may go on printing.
                let line = String::from_utf8_lossy(&line);
                let _nobody_listens = tell.send(text::one_line(line.trim_end()).into_owned());
            }
            is_rest = !is_whole;
        }
    };
    thread::Builder::new().name("hook".to_owned()).spawn(each).map(drop)
}
