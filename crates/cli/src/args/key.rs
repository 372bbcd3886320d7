//! `key` and its actions.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use holdfast_repo::{Role, SourceName, keys::KeyId, ops::keys::LABEL_BYTES_MAX};

const EXAMPLES: &str = "\
Examples:
  holdfast key list
  holdfast key add --label \"night shift\"                        another operator, with a password of its own
  holdfast key add --role writer --source db1 --label db1         for the host of db1: adds backups, reads none
  holdfast key add --role keeper --new-password-file keeper.pw    expires, prunes, checks; reads none
  holdfast key generate me.identity                               a key pair instead of a password
  holdfast key add --public-key holdfast-public-…
  holdfast key change
  holdfast key remove 0011223344556677
  holdfast key rotate

docs/guide/keys.md says which key goes where, and what a stolen one can do.";

const ADD_EXAMPLES: &str = "\
Examples:
  holdfast key add --label \"night shift\"
  holdfast key add --role writer --source db1 --label db1 --new-password-file db1.pw
  holdfast key add --role keeper --label nas
  holdfast key add --public-key holdfast-public-… --label offline

The new password is prompted for twice, or read from --new-password-file, HOLDFAST_NEW_PASSWORD_FILE or HOLDFAST_NEW_PASSWORD. Opening a repository tries all keys one after the other; if there are many, --key says which one a password is for.";

const REMOVE_EXAMPLES: &str = "\
Examples:
  holdfast key remove 0011223344556677
  holdfast key remove --at-once 0011223344556677     if somebody else has the key

From now on the password or key pair opens nothing, and what the key signs does not count. What it signed before stays valid, and runs under way can still complete, whatever key they began with. With --at-once those of this key cannot; what an archiver with this key has stored since its last run ended is then lost, so stop it first. The last operator's key cannot be removed.
What removal does not undo: anybody who has opened the repository with an operator's key, or has a copy of its key object and the password, can read everything stored so far, and everything stored until \"holdfast key rotate\". A writer's or keeper's key could never read anything.";

const CHANGE_EXAMPLES: &str = "\
Examples:
  holdfast key change
  holdfast key change --new-password-file new.pw
  holdfast key change --public-key holdfast-public-…

Replaces the operator's key in use by one with another password, or with a key pair: a new key is added and the old one removed, so its ID changes. \"holdfast key remove --help\" says what this does not undo. For a writer or a keeper, an operator adds a new key and removes the old one.";

const ROTATE_EXAMPLES: &str = "\
Examples:
  holdfast key remove 0011223344556677 && holdfast key rotate

Every remaining key gets its share of the new keys; no password changes, and later backups continue as before. Runs under way end with the old keys.
What rotation does not undo: everything stored so far stays sealed with the old keys, and anybody who had them can read it. Unchanged pages are not stored again, so a backup after the rotation still needs old packs. The hash key stays, because with another one every page would look changed; it can confirm a guessed page, and opens nothing. To get rid of everything that the old keys open: rotate, take a backup --full of each source, and expire and prune the older backups.";

const GENERATE_EXAMPLES: &str = "\
Examples:
  holdfast key generate ~/.config/holdfast/identity
  holdfast --repo /backup/repo key add --public-key holdfast-public-…    as another operator
  holdfast --repo /backup/repo --identity ~/.config/holdfast/identity list

There is no other copy of the key pair: keep one of the file away from the repository. \"key add\" prints a line \"trust …\" to add to the file: anybody can seal keys for a public key, and this line says whose keys to trust.";

/// List, add, remove, change and rotate the keys of the repository.
///
/// An operator's key can do everything. A writer's key adds backups and reads none. A keeper's key expires,
/// prunes, holds, locks and checks, and reads none either.
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

    /// Public key instead of a password: as printed by "key generate", or a file that begins with it
    #[arg(long, value_name = "KEY|FILE")]
    pub(crate) public_key: Option<String>,
}

/// Add a key: an operator's, a writer's or a keeper's.
#[derive(Args, Debug)]
#[command(after_long_help = ADD_EXAMPLES)]
pub(crate) struct AddArgs {
    /// What the key allows: operator, writer or keeper
    #[arg(long, value_name = "ROLE", default_value = "operator", value_parser = role)]
    pub(crate) role: Role,

    /// Source that a writer may add backups to, or a keeper may expire and prune; can be repeated [default:
    /// all]
    #[arg(long = "source", value_name = "NAME")]
    pub(crate) sources: Vec<SourceName>,

    /// Label of the key; everybody who sees the repository can read it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = label)]
    pub(crate) label: String,

    #[command(flatten)]
    pub(crate) slot: NewSlotArgs,
}

/// Remove keys.
#[derive(Args, Debug)]
#[command(after_long_help = REMOVE_EXAMPLES)]
pub(crate) struct RemoveArgs {
    /// IDs of the keys, as "key list" shows them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<KeyId>,

    /// Also refuse runs of these keys that are under way: for a key that somebody else has
    #[arg(long)]
    pub(crate) at_once: bool,
}

/// Give the operator's key in use another password or a key pair.
#[derive(Args, Debug)]
#[command(after_long_help = CHANGE_EXAMPLES)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub(crate) slot: NewSlotArgs,
}

/// Create new encryption keys for what is stored from now on.
#[derive(Args, Debug)]
#[command(after_long_help = ROTATE_EXAMPLES)]
pub(crate) struct RotateArgs {}

/// Create an identity file: a key pair to use instead of a password.
#[derive(Args, Debug)]
#[command(after_long_help = GENERATE_EXAMPLES)]
pub(crate) struct GenerateArgs {
    /// File to create; it must not exist yet, and only the current user can read it
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
