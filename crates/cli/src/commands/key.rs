//! `key`: manages the repository's keys.

use std::{
    fmt::{self, Write as _},
    fs::OpenOptions,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use holdfast_core::{Context as _, Error, ErrorKind, Result};
use holdfast_repo::{
    Act, Password, Repo,
    keys::{Identity, KdfParams, KeyId, NewSlot, PublicKey, Trusted},
    ops::keys::{self, KeyInfo, NewKey, Rotated, SlotInfo, UnderWay, rotate},
};
use serde::Serialize;

use super::{Context, key_errors, repository};
use crate::{
    args::key::{AddArgs, ChangeArgs, GenerateArgs, KeyAction, KeyArgs, NewSlotArgs, RemoveArgs},
    exit::Exit,
    output::{
        Render,
        text::{self, words},
    },
    password,
};

/// What former holders of a key can still do; printed when a key is removed.
const NOT_UNDONE: &str = "\
Anyone who has a copy of an operator's key can read everything stored so far, and everything stored until \
\"holdfast key rotate\". Rotate the keys to protect later backups; what the key could read stays readable.
Backups that it added remain, and later ones build on them: if the key was stolen, expire the backups that are \
not yours and take the next one with --full.";

/// A key.
#[derive(Serialize)]
struct Key {
    id: String,
    role: &'static str,
    /// `password`, `public-key` or `none`.
    slot: &'static str,
    public_key: Option<String>,
    label: String,
    created_at: String,
    /// Sources for which it may sign outcomes; empty means all.
    sources: Vec<String>,
    /// Whether the repository was opened with it.
    own: bool,
}

impl From<KeyInfo> for Key {
    fn from(key: KeyInfo) -> Self {
        let (slot, public_key) = match key.slot {
            SlotInfo::Password(_) => ("password", None),
            SlotInfo::Public(public) => ("public-key", Some(public.to_string())),
            SlotInfo::Nothing => ("none", None),
        };
        Self {
            id: key.key_id.to_string(),
            role: key.role.as_str(),
            slot,
            public_key,
            label: key.label,
            created_at: key.created_at,
            sources: key.sources,
            own: key.is_own,
        }
    }
}

impl Key {
    fn row(&self) -> [String; 7] {
        [
            self.id.clone(),
            self.role.to_owned(),
            self.slot.to_owned(),
            self.created_at.split(['T', '.']).take(2).collect::<Vec<_>>().join(" ").replace('Z', ""),
            self.sources.join(" "),
            if self.own { "this one".to_owned() } else { String::new() },
            self.label.clone(),
        ]
    }
}

#[derive(Serialize)]
struct Problem {
    object: String,
    problem: String,
}

#[derive(Serialize)]
struct Listed {
    keys: Vec<Key>,
    /// The number of key rotations.
    rotations: u8,
    /// Objects that are ignored.
    problems: Vec<Problem>,
    /// Keys that open nothing stored since a rotation.
    without_share: Vec<Problem>,
}

impl Render for Listed {
    fn render(&self, out: &mut String) -> fmt::Result {
        let columns = [
            words("ID"),
            words("ROLE"),
            words("BEHIND"),
            words("CREATED (UTC)"),
            words("SOURCES"),
            words("OPENED BY"),
            words("LABEL"),
        ];
        text::table(out, &columns, &self.keys.iter().map(Key::row).collect::<Vec<_>>())?;
        if self.rotations > 0 {
            writeln!(out, "rotated {}", text::count(self.rotations.into(), "time"))?;
        }
        for Problem { object, problem } in &self.problems {
            writeln!(out, "ignored: {}", text::one_line(&format!("{object}: {problem}")))?;
        }
        for Problem { object, problem } in &self.without_share {
            writeln!(out, "{}", text::one_line(&format!("{object}: {problem}")))?;
        }
        Ok(())
    }
}

/// A newly added key.
#[derive(Serialize)]
struct Made {
    #[serde(flatten)]
    key: Key,
    /// The line to add to the identity file; null for a password.
    trust: Option<String>,
    /// The key that it replaces; null if it is an additional one.
    replaced: Option<String>,
    /// Active runs that may still finish with the replaced key.
    may_end: Vec<String>,
}

impl Render for Made {
    fn render(&self, out: &mut String) -> fmt::Result {
        let Self { key, trust, replaced, may_end } = self;
        writeln!(out, "added the {}'s key {}", key.role, key.id)?;
        if let Some(trust) = trust {
            writeln!(out, "add this line to the identity file, so that it opens the repository:\n{trust}")?;
        }
        if let Some(replaced) = replaced {
            writeln!(out, "removed the key {replaced}\n{NOT_UNDONE}")?;
        }
        render_may_end(out, may_end)
    }
}

fn render_may_end(out: &mut String, runs: &[String]) -> fmt::Result {
    runs.iter().try_for_each(|run| {
        writeln!(
            out,
            "{run} is still running and may finish with the removed key; \"holdfast key remove --at-once\" \
             prevents that"
        )
    })
}

#[derive(Default, Serialize)]
struct Removed {
    removed: Vec<String>,
    /// Active runs that may still finish with one of the removed keys.
    may_end: Vec<String>,
}

impl Render for Removed {
    fn render(&self, out: &mut String) -> fmt::Result {
        for id in &self.removed {
            writeln!(out, "removed the key {id}: anything it signs from now on is rejected")?;
        }
        render_may_end(out, &self.may_end)?;
        writeln!(out, "{NOT_UNDONE}")
    }
}

#[derive(Serialize)]
struct RotatedKeys {
    rotation: u8,
    keys: usize,
    /// Keys that were added at the same time, and open nothing stored from now on.
    without_share: Vec<String>,
}

impl Render for RotatedKeys {
    fn render(&self, out: &mut String) -> fmt::Result {
        let keys = text::count(self.keys as u64, "key");
        writeln!(
            out,
            "rotation {}: what is stored from now on is sealed with new keys, for {keys}",
            self.rotation
        )?;
        writeln!(
            out,
            "Existing data stay readable with the old keys; backup --full, expire and prune replace them."
        )
    }
}

#[derive(Serialize)]
struct Generated {
    file: String,
    public_key: String,
}

impl Render for Generated {
    fn render(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "made the identity {}", self.file)?;
        text::fact(out, "public key", &self.public_key)?;
        writeln!(
            out,
            "An operator adds it with \"holdfast key add --public-key …\". Keep a copy of the file."
        )
    }
}

pub(super) fn run(args: &KeyArgs, context: &Context<'_>) -> Result<Exit> {
    match &args.action {
        KeyAction::List(_) => list(context),
        KeyAction::Add(args) => add(args, context),
        KeyAction::Remove(args) => remove(args, context),
        KeyAction::Change(args) => change(args, context),
        KeyAction::Rotate(_) => rotated(context),
        KeyAction::Generate(args) => generate(args, context),
    }
}

fn list(context: &Context<'_>) -> Result<Exit> {
    let repo = repository::open(context)?;
    let list = keys::list(&repo).map_err(key_errors::of_keys_in(&repo))?;
    let problems = |named: Vec<(String, String)>| {
        named.into_iter().map(|(object, problem)| Problem { object, problem }).collect::<Vec<_>>()
    };
    let listed = Listed {
        keys: list.keys.into_iter().map(Key::from).collect(),
        rotations: repo.keys().rotations(),
        problems: problems(list.problems),
        without_share: problems(list.without_share),
    };
    let is_sound = listed.problems.is_empty() && listed.without_share.is_empty();
    let exit = if is_sound { Exit::Done } else { Exit::Finding };
    context.output.result(exit, &listed);
    Ok(exit)
}

/// What protects a new key.
enum Behind {
    Password(Password),
    Public(PublicKey),
}

impl Behind {
    fn slot(&self) -> NewSlot<'_> {
        match self {
            Self::Password(password) => NewSlot::Password { password, kdf: KdfParams::DEFAULT },
            Self::Public(public) => NewSlot::Public(*public),
        }
    }
}

fn behind(args: &NewSlotArgs) -> Result<Behind> {
    match &args.public_key {
        Some(typed) => public_key(typed).map(Behind::Public),
        None => {
            let password = password::new_of_key(args.new_password_file.as_deref())?;
            password::for_repository(password).map(Behind::Password)
        }
    }
}

/// The public key as typed, or the first word of a file.
fn public_key(typed: &str) -> Result<PublicKey> {
    if let Ok(key) = typed.parse() {
        return Ok(key);
    }
    let text = match std::fs::read_to_string(Path::new(typed)) {
        Ok(text) => text,
        // A malformed key was typed, not a file name.
        Err(_) if typed.starts_with("holdfast-public-") => typed.to_owned(),
        Err(error) => {
            return Err(error).context_kind(ErrorKind::Usage, format_args!("read the public key {typed}"));
        }
    };
    if let Ok(identity) = Identity::parse(&text) {
        let text =
            format!("{typed} is an identity (a secret key), not a public key: never give it to anyone");
        let hint = format!(
            "give its public key, as \"key generate\" printed it: --public-key {}",
            identity.public()
        );
        return Err(Error::new(ErrorKind::Usage, text).hinted(hint));
    }
    let key = text.split_ascii_whitespace().next().unwrap_or_default().parse();
    key.context_kind(ErrorKind::Usage, format_args!("read the public key {typed}"))
}

fn open_as_operator(context: &Context<'_>, doing: &'static str) -> Result<Repo> {
    let repo = repository::unlock(context)?;
    repo.require(Act::ManageKeys, doing)?;
    Ok(repo)
}

fn add(args: &AddArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = open_as_operator(context, "adding a key")?;
    let behind = behind(&args.slot)?;
    context.watch_signals()?;
    let new = NewKey { role: args.role, sources: args.sources.clone(), label: args.label.clone() };
    let key = keys::add(&repo, &new, behind.slot()).map_err(key_errors::of_keys_in(&repo))?;
    let trusted = keys::trusted(&repo);
    let made = Made { key: key.into(), trust: trust(&behind, &trusted), replaced: None, may_end: Vec::new() };
    context.output.result(Exit::Done, &made);
    Ok(Exit::Done)
}

/// The line for the identity file.
fn trust(behind: &Behind, trusted: &Trusted) -> Option<String> {
    match behind {
        Behind::Public(_) => Some(trusted.to_string()),
        Behind::Password(_) => None,
    }
}

fn change(args: &ChangeArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = open_as_operator(context, "changing a key")?;
    let behind = behind(&args.slot)?;
    context.watch_signals()?;
    let (key, trusted, removed) =
        keys::change(&repo, behind.slot()).map_err(key_errors::of_keys_in(&repo))?;
    let replaced = Some(repo.keys().key_id().to_string());
    let may_end = removed.may_end.iter().map(|(log, run)| log.backup_id(*run)).collect();
    let made = Made { key: key.into(), trust: trust(&behind, &trusted), replaced, may_end };
    let exit = warn_of_late(&removed, context);
    context.output.result(exit, &made);
    Ok(exit)
}

/// Warns about keys and outcomes that were stored between the last look at them and the removal of the key that
/// signed them.
fn warn_of_late(removed: &keys::Removed, context: &Context<'_>) -> Exit {
    for id in &removed.dropped {
        context.output.warning(format!(
            "the key {id} was added with the key while that was being removed, and does not count either: \
             \"holdfast key remove {id}\", then add it again"
        ));
    }
    for object in &removed.too_late {
        context.output.warning(format!(
            "{object} was signed by the key, or one added with it, while it was being removed: the outcome is \
             rejected, and its log is blocked until \"holdfast repair\""
        ));
    }
    let is_none = removed.dropped.is_empty() && removed.too_late.is_empty();
    if is_none { Exit::Done } else { Exit::Finding }
}

fn remove(args: &RemoveArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = repository::open_for(context, Act::ManageKeys, "removing a key")?;
    let under_way = if args.at_once { UnderWay::Refused } else { UnderWay::MayEnd };
    let mut all = Removed::default();
    let done = all.remove(&repo, &args.ids, under_way, context);
    let is_any = !all.removed.is_empty();
    context.output.ended(done, &all, is_any)
}

impl Removed {
    fn remove(
        &mut self,
        repo: &Repo,
        ids: &[KeyId],
        under_way: UnderWay,
        context: &Context<'_>,
    ) -> Result<Exit> {
        let mut exit = Exit::Done;
        // Nothing can be removed once the key in use is.
        let own = repo.keys().key_id();
        let (own, others): (Vec<&KeyId>, Vec<&KeyId>) = ids.iter().partition(|id| **id == own);
        for id in others.into_iter().chain(own) {
            let removed = keys::remove(repo, *id, under_way).map_err(key_errors::of_keys_in(repo))?;
            if warn_of_late(&removed, context) == Exit::Finding {
                exit = Exit::Finding;
            }
            self.removed.push(id.to_string());
            for (log, run) in &removed.may_end {
                let run = log.backup_id(*run);
                if !self.may_end.contains(&run) {
                    self.may_end.push(run);
                }
            }
        }
        Ok(exit)
    }
}

fn rotated(context: &Context<'_>) -> Result<Exit> {
    let repo = repository::open_for(context, Act::ManageKeys, "rotating keys")?;
    let Rotated { number, keys, without_share } = rotate(&repo).map_err(key_errors::of_keys_in(&repo))?;
    for id in &without_share {
        context.output.warning(format!(
            "the key {id} has no share in the rotation, and opens nothing stored from now on: \
             \"holdfast key remove {id}\", then add it again"
        ));
    }
    let exit = if without_share.is_empty() { Exit::Done } else { Exit::Finding };
    let without_share = without_share.iter().map(ToString::to_string).collect();
    context.output.result(exit, &RotatedKeys { rotation: number, keys, without_share });
    Ok(exit)
}

fn generate(args: &GenerateArgs, context: &Context<'_>) -> Result<Exit> {
    const ONLY_MINE: u32 = 0o600;
    let doing = || format!("make the identity file {}", args.file.display());
    let identity = Identity::generate();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(ONLY_MINE)
        .open(&args.file)
        .context_kind(ErrorKind::Usage, doing())?;
    file.write_all(identity.to_text().as_bytes()).context(doing())?;
    file.sync_all().context(doing())?;
    let made = Generated { file: args.file.display().to_string(), public_key: identity.public().to_string() };
    context.output.result(Exit::Done, &made);
    Ok(Exit::Done)
}
