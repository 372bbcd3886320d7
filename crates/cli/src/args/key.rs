use std::path::PathBuf;

use clap::{Args, Subcommand};
use holdfast_repo::{
    Role, SourceName,
    keys::{KeyId, manage::LABEL_BYTES_MAX},
};

const EXAMPLES: &str = "\
Examples:
  holdfast key list
  holdfast key add --label \"night shift\"                        another operator, behind a password of its own
  holdfast key add --role writer --source db1 --label db1         for the host of db1: adds backups, reads none
  holdfast key add --role keeper --new-password-file keeper.pw    expires, prunes, checks; reads none
  holdfast key generate me.identity                               a key pair instead of a password
  holdfast key add --public-key holdfast-public-…
  holdfast key change
  holdfast key remove 0011223344556677
  holdfast key rotate

docs/keys.md says which key goes where, and what a stolen one can do.";

const ADD_EXAMPLES: &str = "\
Examples:
  holdfast key add --label \"night shift\"
  holdfast key add --role writer --source db1 --label db1 --new-password-file db1.pw
  holdfast key add --role keeper --label nas
  holdfast key add --public-key holdfast-public-… --label offline

The new password is asked for twice, or read from --new-password-file, HOLDFAST_NEW_PASSWORD_FILE or HOLDFAST_NEW_PASSWORD. Opening tries all keys one after the other; where there are many, --key says which one a password is for.";

const REMOVE_EXAMPLES: &str = "\
Examples:
  holdfast key remove 0011223344556677
  holdfast key remove --at-once 0011223344556677     somebody else has it

From now on the password or key pair opens nothing, and what the key signs is not believed; what it signed before stays, and a run that had begun may end, whosever it is; with --at-once none of this key's does, and what an archiver with it has stored since its last run ended is lost: stop that first. The last operator's key cannot be removed.
What removing does not undo: whoever has opened the repository with an operator's key, or has a copy of its key object and the password, can read all that has been stored so far, and what will be stored until \"holdfast key rotate\". A writer's or keeper's key never read anything.";

const CHANGE_EXAMPLES: &str = "\
Examples:
  holdfast key change
  holdfast key change --new-password-file new.pw
  holdfast key change --public-key holdfast-public-…

The operator's key that the repository is opened with gets another password, or becomes one for a key pair: a new key is added and the old one removed, so that its name is another. \"holdfast key remove --help\" says what this does not undo. For a writer or a keeper an operator adds a new key and removes the old one.";

const ROTATE_EXAMPLES: &str = "\
Examples:
  holdfast key remove 0011223344556677 && holdfast key rotate

Every key that is left gets its share of the new keys; no password changes, and backups go on where they were. Runs under way end with the old keys.
What rotating does not undo: what has been stored so far stays sealed with the old keys, and whoever had them can read it. Unchanged pages are not stored again: a backup after the rotation still needs old packs. The hash key stays, since with another every page would look changed; it confirms a page that can be guessed, and opens nothing. To get rid of all that old keys open: rotate, take a backup --full, and expire and prune what is older.";

const GENERATE_EXAMPLES: &str = "\
Examples:
  holdfast key generate ~/.config/holdfast/identity
  holdfast --repo /backup/repo key add --public-key holdfast-public-…    as another operator
  holdfast --repo /backup/repo --identity ~/.config/holdfast/identity list

The file is all there is: keep a copy of it away from the repository. \"key add\" prints a line \"trust …\" to be added to it: anybody can seal something for a public key, and that line says whose keys it believes.";

/// List, add, remove, change and rotate the keys of the repository.
///
/// An operator's key can do all. A writer's adds backups and reads none; a keeper's expires, prunes and checks what is stored, and reads none either.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES, subcommand_value_name = "ACTION", subcommand_help_heading = "Actions")]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) action: KeyAction,
}

/// What is done with keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyAction {
    List(ListArgs),
    Add(AddArgs),
    Remove(RemoveArgs),
    Change(ChangeArgs),
    Rotate(RotateArgs),
    Generate(GenerateArgs),
}

/// Show the keys of the repository.
#[derive(Args, Debug)]
#[command(after_long_help = "Examples:\n  holdfast key list\n  holdfast key list --json")]
pub(crate) struct ListArgs {}

/// What a new key is behind.
#[derive(Args, Debug)]
pub(crate) struct NewSlotArgs {
    /// File whose first line is the new password
    #[arg(long, value_name = "FILE", env = "HOLDFAST_NEW_PASSWORD_FILE", hide_env_values = true)]
    pub(crate) new_password_file: Option<PathBuf>,

    /// Instead of a password: a public key that "key generate" printed, or a file that begins with one
    #[arg(long, value_name = "KEY|FILE")]
    pub(crate) public_key: Option<String>,
}

/// Add a key: an operator's, a writer's or a keeper's.
#[derive(Args, Debug)]
#[command(after_long_help = ADD_EXAMPLES)]
pub(crate) struct AddArgs {
    /// What its holder may do: operator, writer or keeper
    #[arg(long, value_name = "ROLE", default_value = "operator", value_parser = role)]
    pub(crate) role: Role,

    /// The only source that a writer may add backups to, or a keeper expire and prune; can be repeated [default: all]
    #[arg(long = "source", value_name = "NAME")]
    pub(crate) sources: Vec<SourceName>,

    /// What the key is called; everybody who sees the repository can read it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = label)]
    pub(crate) label: String,

    #[command(flatten)]
    pub(crate) slot: NewSlotArgs,
}

/// Remove keys.
#[derive(Args, Debug)]
#[command(after_long_help = REMOVE_EXAMPLES)]
pub(crate) struct RemoveArgs {
    /// Their names, as "key list" shows them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<KeyId>,

    /// Refuse their runs that are under way, too: for a key that somebody else has
    #[arg(long)]
    pub(crate) at_once: bool,
}

/// Give the operator's key at hand another password.
#[derive(Args, Debug)]
#[command(after_long_help = CHANGE_EXAMPLES)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub(crate) slot: NewSlotArgs,
}

/// Make new keys for what is stored from now on.
#[derive(Args, Debug)]
#[command(after_long_help = ROTATE_EXAMPLES)]
pub(crate) struct RotateArgs {}

/// Make an identity file: a key pair that opens a repository instead of a password.
#[derive(Args, Debug)]
#[command(after_long_help = GENERATE_EXAMPLES)]
pub(crate) struct GenerateArgs {
    /// The file, which must not exist yet; only this user will be able to read it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

fn role(text: &str) -> Result<Role, String> {
    Role::ALL
        .into_iter()
        .find(|role| role.as_str() == text)
        .ok_or_else(|| format!("\"{text}\" is no role: write operator, writer or keeper"))
}

fn label(text: &str) -> Result<String, String> {
    if text.len() > LABEL_BYTES_MAX || text.contains(char::is_control) {
        return Err(format!("a label has at most {LABEL_BYTES_MAX} bytes and no control characters"));
    }
    Ok(text.to_owned())
}
