//! Sources of passwords: files, the environment, a command, or a prompt. Never the command line.

use std::{
    env,
    io::{self, IsTerminal as _, Read as _},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use holdfast_core::{Context as _, Error, ErrorKind, Result, server::Secret};
use holdfast_repo::{Password, keys::Identity};
use holdfast_stores::SECRET_VARIABLES;
use signal_hook::consts::SIGINT;
use zeroize::Zeroizing;

use crate::config::{Config, OtherRepository};

/// The variable in which MySQL's clients look for a password.
pub(crate) const SERVER_PASSWORD: &str = "MYSQL_PWD";

/// Longer than any password; a larger file must be something else.
const FILE_BYTES_MAX: u64 = 4096;

/// Enough for an identity that is known to several hundred repositories.
const IDENTITY_BYTES_MAX: u64 = 64 << 10;

/// How many attempts the user has to type a new password.
const ATTEMPTS: usize = 3;

/// The places to look for a password, in this order; the first one present is used.
struct Places<'a> {
    /// As typed.
    file: Option<&'a Path>,
    variable: &'static str,
    command_variable: Option<&'static str>,
    config_file: Option<&'a Path>,
    config_command: Option<&'a str>,
    /// The name of `config_command` in errors.
    config_command_name: &'static str,
}

impl Places<'_> {
    fn password(&self) -> Result<Option<Secret>> {
        let in_file = |path: &Path| {
            let read = first_line(path).map(Some);
            read.map_err(|error| if path.exists() { error } else { error.hinted(MAKE_FILE) })
        };
        if let Some(path) = self.file {
            return in_file(path);
        }
        if let Some(password) = env::var_os(self.variable) {
            let not_text = |_| Error::new(ErrorKind::Usage, format!("{} is not UTF-8", self.variable));
            let password = password.into_string().map_err(not_text)?;
            return not_empty(Secret::new(password), self.variable).map(Some);
        }
        if let Some(name) = self.command_variable
            && let Ok(command) = env::var(name)
        {
            return output_of(&command, name).map(Some);
        }
        if let Some(path) = self.config_file {
            return in_file(path);
        }
        self.config_command.map(|command| output_of(command, self.config_command_name)).transpose()
    }
}

/// The repository's password, if one was given.
pub(crate) fn given(file: Option<&Path>, config: &Config) -> Result<Option<Secret>> {
    let places = Places {
        file,
        variable: "HOLDFAST_PASSWORD",
        command_variable: Some("HOLDFAST_PASSWORD_COMMAND"),
        config_file: config.password_file.as_deref(),
        config_command: config.password_command.as_deref(),
        config_command_name: "password-command of the configuration file",
    };
    places.password()
}

/// The password of another repository, if one was given.
pub(crate) fn given_to(file: Option<&Path>, other: Option<&OtherRepository>) -> Result<Option<Secret>> {
    let places = Places {
        file,
        variable: "HOLDFAST_TO_PASSWORD",
        command_variable: Some("HOLDFAST_TO_PASSWORD_COMMAND"),
        config_file: other.and_then(|other| other.password_file.as_deref()),
        config_command: other.and_then(|other| other.password_command.as_deref()),
        config_command_name: "password-command of a [[repository]]",
    };
    places.password()
}

/// How to give a password where there is no terminal.
pub(crate) const GIVE: &str =
    "use --password-file, HOLDFAST_PASSWORD_FILE, HOLDFAST_PASSWORD or HOLDFAST_PASSWORD_COMMAND";

/// How to give the password of another repository where there is no terminal.
pub(crate) const GIVE_TO: &str = "use --to-password-file (backup: --also-to-password-file), HOLDFAST_TO_PASSWORD, \
    HOLDFAST_TO_PASSWORD_COMMAND, or a [[repository]] in the configuration file";

/// Asks for the password of a repository that has one.
/// `which` names the repository; `give` names other ways to supply it.
pub(crate) fn ask_for_repository(which: &str, give: &str) -> Result<Secret> {
    terminal_or(ErrorKind::Key, give)?;
    ask(&format!("password of {which}: "))
}

/// The password of a new key, either given or asked for twice.
pub(crate) fn new_of_key(file: Option<&Path>) -> Result<Secret> {
    let places = Places {
        file,
        variable: "HOLDFAST_NEW_PASSWORD",
        command_variable: None,
        config_file: None,
        config_command: None,
        config_command_name: "",
    };
    if let Some(password) = places.password()? {
        return Ok(password);
    }
    if !io::stdin().is_terminal() {
        return Err(Error::new(
            ErrorKind::Usage,
            "no new password was given, and there is no terminal to ask for one",
        )
        .hinted(
            "use --new-password-file, HOLDFAST_NEW_PASSWORD_FILE, HOLDFAST_NEW_PASSWORD or --public-key",
        ));
    }
    ask_twice("new password of the key: ")
}

/// Asks twice for the password of a new repository.
pub(crate) fn ask_for_new() -> Result<Secret> {
    terminal_or(ErrorKind::Usage, GIVE)?;
    ask_twice("new password of the repository: ")
}

fn ask_twice(question: &str) -> Result<Secret> {
    for attempt in 0..ATTEMPTS {
        let again = if attempt == 0 { "" } else { "they differ; once more: " };
        let first = ask(&format!("{again}{question}"))?;
        if first.reveal().is_empty() {
            return Err(empty());
        }
        if first == ask("the same again: ")? {
            return Ok(first);
        }
    }
    Err(Error::new(ErrorKind::Usage, "the two passwords differ"))
}

/// Converts a password to the library's type.
pub(crate) fn for_repository(secret: Secret) -> Result<Password> {
    Password::new(secret.reveal().to_owned()).ok_or_else(empty)
}

fn empty() -> Error {
    Error::new(ErrorKind::Usage, "an empty password protects nothing")
}

fn terminal_or(kind: ErrorKind, give: &str) -> Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    let text = "no password for the repository was given, and there is no terminal to ask for one";
    Err(Error::new(kind, text).hinted(give))
}

/// The key pair in an identity file.
pub(crate) fn identity(path: &Path) -> Result<Identity> {
    let doing = || format!("read the identity file {}", path.display());
    let file = std::fs::File::open(path).context_kind(ErrorKind::Usage, doing())?;
    let mut text = Zeroizing::new(String::new());
    file.take(IDENTITY_BYTES_MAX).read_to_string(&mut text).context_kind(ErrorKind::Usage, doing())?;
    Identity::parse(&text).context_kind(ErrorKind::Usage, doing())
}

/// The server's password, if it is to be asked for or was given in a file.
pub(crate) fn of_server(asked: bool, file: Option<&Path>) -> Result<Option<Secret>> {
    if let Some(path) = file {
        return first_line(path).map(Some);
    }
    if !asked {
        return Ok(None);
    }
    if !io::stdin().is_terminal() {
        return Err(Error::new(ErrorKind::Usage, "cannot ask for the server's password without a terminal")
            .hinted("use --server-password-file or an option file instead of -p"));
    }
    ask("password of the server: ").map(Some)
}

/// Prompts for a password. Ctrl-C at the prompt raises SIGINT before the terminal echoes again, so the signal
/// must not end the program there.
fn ask(prompt: &str) -> Result<Secret> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let signal =
        signal_hook::flag::register(SIGINT, Arc::clone(&interrupted)).context("watch for signals")?;
    let answer = rpassword::prompt_password(prompt).map(Secret::new);
    signal_hook::low_level::unregister(signal);
    if interrupted.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Interrupted, "interrupted; nothing was done"));
    }
    answer.context_kind(ErrorKind::Usage, "ask for a password")
}

/// Hint on how to create a password file.
const MAKE_FILE: &str = "create a new password's file first, and keep a copy elsewhere, since backups cannot be \
    read without it: (umask 077; openssl rand -base64 32 > FILE)";

fn first_line(path: &Path) -> Result<Secret> {
    let doing = || format!("read the password file {}", path.display());
    let file = std::fs::File::open(path).context_kind(ErrorKind::Usage, doing())?;
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).context_kind(ErrorKind::Usage, doing())?;
    not_empty(line_of(&text), &format!("the password file {}", path.display()))
}

/// The password that a command prints. The command is not shown in errors: it may hold a secret.
fn output_of(command: &str, place: &str) -> Result<Secret> {
    let doing = || format!("run the password command ({place})");
    let mut shell = Command::new("/bin/sh");
    for name in SECRET_VARIABLES {
        shell.env_remove(name);
    }
    let output = shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context_kind(ErrorKind::Usage, doing())?;
    let bytes = Zeroizing::new(output.stdout);
    if !output.status.success() {
        return Err(Error::new(ErrorKind::Usage, format!("{}: {}", doing(), output.status)));
    }
    let text = std::str::from_utf8(&bytes).context_kind(ErrorKind::Usage, doing())?;
    not_empty(line_of(text), "the output of the password command")
}

fn line_of(text: &str) -> Secret {
    Secret::new(text.lines().next().unwrap_or_default().to_owned())
}

fn not_empty(password: Secret, place: &str) -> Result<Secret> {
    if password.reveal().is_empty() {
        Err(Error::new(ErrorKind::Usage, format!("{place} contains no password")))
    } else {
        Ok(password)
    }
}
