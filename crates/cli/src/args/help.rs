//! What the help of a verb shows.

use clap::{Arg, Command};

use super::{resources, source};
use crate::exit::Exit;

/// Makes the server of `restore` the one that is loaded into. What is read of a table means nothing to it:
/// typed, that gets a hint.
fn of_a_target(verb: Command) -> Command {
    without_files(verb).mut_args(|arg| match arg.get_help_heading() {
        Some(source::HEADING) => arg.help_heading("Target server (--to-server)"),
        _ if arg.get_id() == "filters" => arg.hide(true),
        _ => arg,
    })
}

/// Hides options that lead to a server's files; the verb needs its connections only.
fn without_files(verb: Command) -> Command {
    verb.mut_args(|arg| match arg.get_id().as_str() {
        "datadir" | "path_map" => arg.hide(true),
        _ => arg,
    })
}

/// Hides options that only matter on a busy server; typed, they get a hint.
fn of_a_private_server(verb: Command) -> Command {
    verb.mut_args(|arg| match arg.get_long() {
        Some(name) if resources::OF_A_BUSY_SERVER.contains(&format!("--{name}").as_str()) => arg.hide(true),
        _ => arg,
    })
}

/// Gives each verb, and each action of a verb, its help option and the table of exit codes.
pub(super) fn with_help(command: Command, help: &dyn Fn() -> Arg) -> Command {
    let verbs: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    verbs.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |verb| {
            let names_host = verb.get_arguments().any(|arg| arg.get_short() == Some('h'));
            let arg = if names_host { help() } else { help().short_alias('h') };
            let after = match verb.get_after_long_help() {
                Some(examples) => format!("{examples}\n\n{}", Exit::help()),
                None => Exit::help(),
            };
            let verb = match verb.get_name() {
                "restore" => of_a_target(verb),
                "archive" => without_files(verb),
                "import" => of_a_private_server(verb),
                _ => verb,
            };
            let verb = verb.disable_help_flag(true).disable_help_subcommand(true);
            with_help(verb.arg(arg).after_long_help(after), help)
        })
    })
}
