//! What is said of a command line that cannot be read.

use std::ffi::OsString;

use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// The error for a password among the arguments.
pub(super) fn password_is_seen(command: &mut Command) -> clap::Error {
    command.error(
        ErrorKind::ValueValidation,
        "a password on the command line can be read by every user of this host\n\n  \
         hint: use -p alone to be asked for it, --server-password-file, or an option file",
    )
}

/// Shows the usage of the verb that was typed. In that of clap's errors, what the environment sets is
/// required.
pub(super) fn with_usage(mut error: clap::Error, typed: &[OsString], command: &mut Command) -> clap::Error {
    let mut verb = command;
    let mut words = typed.iter().skip(1).filter_map(|word| word.to_str());
    // A verb with actions, and the action.
    for _ in 0..2 {
        let Some(name) = words.by_ref().find(|word| verb.find_subcommand(word).is_some()) else { break };
        let Some(found) = verb.find_subcommand_mut(name) else { return error };
        verb = found;
    }
    if error.get(ContextKind::Usage).is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(verb.render_usage()));
    }
    error
}

/// A clearer error where it shows what the user meant.
pub(super) fn meant(error: clap::Error, typed: &[OsString], command: &mut Command) -> clap::Error {
    // Where -h is --host, it wants a value: whoever gives it none wants help.
    if let [before @ .., last] = typed
        && last == "-h"
    {
        let asked = before.iter().cloned().chain(["--help".into()]);
        match command.try_get_matches_from_mut(asked) {
            Err(help) if !help.use_stderr() => return help,
            _ => return error,
        }
    }
    let word =
        match (error.kind(), error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidSubcommand)) {
            (ErrorKind::UnknownArgument, Some(ContextValue::String(word)), _) => word,
            (ErrorKind::InvalidSubcommand, _, Some(ContextValue::String(word))) => word,
            _ => return error,
        };
    let is_password =
        |pair: &[OsString]| (pair[0] == "-p" || pair[0] == "--password") && pair[1] == word.as_str();
    if typed.windows(2).any(is_password) {
        return password_is_seen(command);
    }
    match word.as_str() {
        "verify" | "validate" if error.kind() == ErrorKind::InvalidSubcommand => {
            let text = format!(
                "there is no verb {word}\n\n  hint: \"holdfast check\" looks whether backups are whole"
            );
            command.error(ErrorKind::InvalidSubcommand, text)
        }
        _ => error,
    }
}
