//! What was typed. Nothing here says what it means: that is for `reach` and the commands.
//!
//! Options that the configuration file may set too are declared once, in a struct that both clap and serde fill
//! ([`source::SourceArgs`], [`resources::ResourceArgs`], [`expire::KeepArgs`]); what was typed wins.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::Exit;

pub(crate) mod backup;
pub(crate) mod backup_ref;
pub(crate) mod binlog;
pub(crate) mod check;
pub(crate) mod copy;
pub(crate) mod doctor;
pub(crate) mod expire;
pub(crate) mod export;
pub(crate) mod global;
mod help;
pub(crate) mod hold;
pub(crate) mod hooks;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod key;
pub(crate) mod load;
pub(crate) mod lock;
mod mistakes;
pub(crate) mod moment;
pub(crate) mod owner;
pub(crate) mod prune;
pub(crate) mod recovery;
#[cfg(test)]
mod reference;
pub(crate) mod repair;
pub(crate) mod resources;
pub(crate) mod restore;
pub(crate) mod rows;
pub(crate) mod source;
pub(crate) mod store;
pub(crate) mod units;

const ABOUT: &str = "Hot backup, restore and recovery for MySQL and MariaDB.";

const OVERVIEW: &str = "\
Hot backup, restore and recovery for MySQL and MariaDB.

Every backup is complete in itself, encrypted and compressed, and stores only the pages that no earlier backup has. Any backup restores in one pass, and any can be dropped.";

const EXAMPLES: &str = "\
Examples:
  holdfast --repo /backup/repo init
  holdfast --repo /backup/repo backup --name db1
  holdfast --repo s3://bucket/prefix --s3-endpoint https://minio.example backup --name db1
  holdfast --repo sftp://backup@host/srv/repo list
  holdfast --repo /backup/repo list
  holdfast --repo /backup/repo binlog archive --name db1
  holdfast --repo /backup/repo restore latest --target-dir /var/lib/mysql-new
  holdfast --repo /backup/repo expire --keep-daily 7 --keep-weekly 4
  holdfast --repo /backup/repo prune
  holdfast --repo s3://bucket/prefix --as-of 2026-11-20T14:00:00Z restore latest --target-dir /var/lib/mysql-new

Configuration file (docs/reference/configuration.md): repo, password-file, password-command, identity, key and name; [source] holds the options of backup under Source server, [resources] those under Resources (memory applies to every verb with --memory, compression also to import, copy and binlog archive, parallel and cache-dir also to import and copy); [retention] holds the rules of expire, [store] the options of remote repositories, and each [[repository]] another repository (docs/guide/copies.md).
Environment: HOLDFAST_REPO, HOLDFAST_CONFIG, HOLDFAST_PASSWORD, HOLDFAST_PASSWORD_FILE, HOLDFAST_PASSWORD_COMMAND, HOLDFAST_IDENTITY, HOLDFAST_KEY; for verbs that concern one source HOLDFAST_NAME; for copy HOLDFAST_TO, HOLDFAST_TO_PASSWORD_FILE, HOLDFAST_TO_IDENTITY and HOLDFAST_TO_KEY; for copy and backup --also-to HOLDFAST_TO_PASSWORD and HOLDFAST_TO_PASSWORD_COMMAND; for key add and key change HOLDFAST_NEW_PASSWORD and HOLDFAST_NEW_PASSWORD_FILE. For s3:// repositories also the variables of the AWS tools: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL and others; for az:// those of Azure: AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID and others (docs/guide/stores.md).
The command line wins over the environment, and the environment over the file.";

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "holdfast",
    version,
    about = ABOUT,
    long_about = OVERVIEW,
    after_long_help = EXAMPLES,
    disable_help_flag = true,
    disable_version_flag = true,
    max_term_width = 110
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: global::GlobalArgs,
    #[command(flatten)]
    pub(crate) store: store::StoreArgs,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// One variant for each verb.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Init(init::InitArgs),
    Backup(backup::BackupArgs),
    Binlog(binlog::BinlogArgs),
    List(inspect::ListArgs),
    Stats(inspect::StatsArgs),
    Show(inspect::ShowArgs),
    Ls(inspect::LsArgs),
    Cat(inspect::CatArgs),
    Export(export::ExportArgs),
    Import(import::ImportArgs),
    Diff(rows::DiffArgs),
    Log(rows::LogArgs),
    Report(inspect::ReportArgs),
    Restore(restore::RestoreArgs),
    Check(check::CheckArgs),
    Repair(repair::RepairArgs),
    Copy(copy::CopyArgs),
    Expire(expire::ExpireArgs),
    Hold(hold::HoldArgs),
    Release(hold::ReleaseArgs),
    Prune(prune::PruneArgs),
    Lock(lock::LockArgs),
    Key(key::KeyArgs),
    Doctor(doctor::DoctorArgs),
    Version(VersionArgs),
}

impl Verb {
    /// Whether what it prints is all that comes of it.
    pub(crate) fn only_prints(&self) -> bool {
        self.only_reads() && !matches!(self, Self::Restore(_) | Self::Copy(_) | Self::Export(_))
    }

    /// Whether it changes nothing in the repository, so that it can be about one as it was.
    pub(crate) fn only_reads(&self) -> bool {
        match self {
            Self::List(_)
            | Self::Stats(_)
            | Self::Show(_)
            | Self::Ls(_)
            | Self::Cat(_)
            | Self::Export(_)
            | Self::Diff(_)
            | Self::Log(_)
            | Self::Report(_)
            | Self::Restore(_)
            | Self::Check(_)
            | Self::Copy(_)
            | Self::Key(key::KeyArgs { action: key::KeyAction::List(_) })
            | Self::Binlog(binlog::BinlogArgs {
                action: binlog::BinlogAction::List(_) | binlog::BinlogAction::Cat(_),
            }) => true,
            Self::Init(_)
            | Self::Backup(_)
            | Self::Import(_)
            | Self::Repair(_)
            | Self::Expire(_)
            | Self::Hold(_)
            | Self::Release(_)
            | Self::Prune(_)
            | Self::Lock(_)
            | Self::Key(_)
            | Self::Binlog(_)
            | Self::Doctor(_)
            | Self::Version(_) => false,
        }
    }

    /// Whether a signal ends it in good order, after what it is at; any other verb ends at once.
    pub(crate) fn ends_in_order(&self) -> bool {
        match self {
            Self::Backup(_)
            | Self::Binlog(_)
            | Self::Restore(_)
            | Self::Check(_)
            | Self::Repair(_)
            | Self::Copy(_)
            | Self::Expire(_)
            | Self::Export(_)
            | Self::Import(_)
            | Self::Hold(_)
            | Self::Release(_)
            | Self::Prune(_)
            | Self::Lock(_) => true,
            Self::Init(_)
            | Self::List(_)
            | Self::Stats(_)
            | Self::Show(_)
            | Self::Ls(_)
            | Self::Cat(_)
            | Self::Diff(_)
            | Self::Log(_)
            | Self::Report(_)
            | Self::Key(_)
            | Self::Doctor(_)
            | Self::Version(_) => false,
        }
    }

    /// Its name on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Init(_) => "init",
            Self::Backup(_) => "backup",
            Self::Binlog(_) => "binlog",
            Self::List(_) => "list",
            Self::Stats(_) => "stats",
            Self::Show(_) => "show",
            Self::Ls(_) => "ls",
            Self::Cat(_) => "cat",
            Self::Export(_) => "export",
            Self::Import(_) => "import",
            Self::Diff(_) => "diff",
            Self::Log(_) => "log",
            Self::Report(_) => "report",
            Self::Restore(_) => "restore",
            Self::Check(_) => "check",
            Self::Repair(_) => "repair",
            Self::Copy(_) => "copy",
            Self::Expire(_) => "expire",
            Self::Hold(_) => "hold",
            Self::Release(_) => "release",
            Self::Prune(_) => "prune",
            Self::Lock(_) => "lock",
            Self::Key(_) => "key",
            Self::Doctor(_) => "doctor",
            Self::Version(_) => "version",
        }
    }
}

/// Show the version of the program and of its repository format.
#[derive(Args, Debug)]
pub(crate) struct VersionArgs {}

/// The whole command with its help options: `-?` and `--help` as in MySQL's clients, and `-h` too wherever it
/// does not name a host.
pub(crate) fn command() -> Command {
    let help = || {
        Arg::new("help")
            .short('?')
            .long("help")
            .help("Print this help")
            .help_heading("Global")
            .display_order(100)
            .action(ArgAction::HelpLong)
    };
    let version = Arg::new("version")
        .short('V')
        .long("version")
        .help("Print the version")
        .help_heading("Global")
        .display_order(101)
        .action(ArgAction::Version);
    let command = Cli::command().arg(help().short_alias('h')).arg(version).subcommand_help_heading("Verbs");
    let command = help::with_help(command, &help);
    command.disable_help_subcommand(false).after_long_help(format!("{EXAMPLES}\n\n{}", Exit::help()))
}

/// Reads the command line.
pub(crate) fn parse(typed: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = command();
    if source::password_was_typed(typed) {
        return Err(mistakes::password_is_seen(&mut command));
    }
    let matches: ArgMatches = match command.try_get_matches_from_mut(typed) {
        Err(error) if error.use_stderr() => {
            let error = mistakes::with_usage(error, typed, &mut command);
            return Err(mistakes::meant(error, typed, &mut command));
        }
        read => read?,
    };
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn clap_finds_no_contradiction() {
        command().debug_assert();
    }

    #[test]
    fn the_environment_that_counts_is_listed() {
        let command = command();
        let verbs: Vec<_> = command.get_subcommands().collect();
        let actions = verbs.iter().flat_map(|verb| verb.get_subcommands());
        for verb in actions.chain(verbs.iter().copied()).chain([&command]) {
            for variable in verb.get_arguments().filter_map(|arg| arg.get_env()?.to_str()) {
                assert!(EXAMPLES.contains(variable), "{variable}");
            }
        }
    }

    #[test]
    fn every_verb_has_examples_and_exit_codes() {
        let command = command();
        let verbs: Vec<_> = command.get_subcommands().collect();
        let actions = verbs.iter().flat_map(|verb| verb.get_subcommands());
        let all = actions.chain(verbs.iter().copied());
        for verb in all.filter(|verb| !matches!(verb.get_name(), "help" | "version")) {
            let help = verb.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  holdfast "), "{} has no examples", verb.get_name());
            assert!(help.contains("130  interrupted"), "{} lists no exit codes", verb.get_name());
        }
    }

    #[test]
    fn h_is_the_host_where_there_is_one_and_help_elsewhere() {
        let Verb::Backup(args) =
            parse(&typed(&["holdfast", "backup", "-h", "db1", "-P", "3307"])).unwrap().verb
        else {
            panic!("not a backup")
        };
        assert_eq!((args.source.host.as_deref(), args.source.port), (Some("db1"), Some(3307)));
        for words in [&["list"][..], &["backup"], &["backup", "--name", "db1"]] {
            let help = parse(&typed(&[&["holdfast"], words, &["-h"]].concat())).unwrap_err();
            assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{words:?}");
            assert!(help.to_string().contains(&format!("Usage: holdfast {}", words[0])), "{help}");
        }
    }

    #[test]
    fn whoever_looks_for_a_check_is_told_its_name() {
        let error = parse(&typed(&["holdfast", "verify"])).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("holdfast check"), "{error}");
    }

    #[test]
    fn a_typed_password_is_refused_with_a_way_out() {
        for words in [
            &["holdfast", "backup", "-psecret"][..],
            &["holdfast", "backup", "-p", "secret", "--name", "db1"],
            &["holdfast", "backup", "-u", "root", "--password=secret"],
        ] {
            let error = parse(&typed(words)).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains("--server-password-file") && !text.contains("secret"), "{text}");
        }
        assert!(parse(&typed(&["holdfast", "backup", "-p"])).is_ok());
    }
}
