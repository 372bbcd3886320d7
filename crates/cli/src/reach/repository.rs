//! Opens the repository that was named.

use std::{path::Path, sync::Arc};

use holdfast_core::{Error, ErrorKind, Result, server::Secret};
use holdfast_pipe::Suite;
use holdfast_repo::{
    Act, KeyError, Repo,
    keys::{KeyId, Unlock},
    store::{Store, writers},
};
use holdfast_stores::{BadLocation, Location, OpenStoreError, StoreOptions, create_store, open_store};

use super::key_errors::{NOT_THERE_HINT, of_keys, of_store};
use crate::{
    args::{copy::OtherArgs, store::StoreArgs},
    config::OtherRepository,
    context::Context,
    password,
};

/// The repository's location, as typed or configured.
pub(crate) fn location(context: &Context<'_>) -> Result<String> {
    let location = context.global.repo.clone().or_else(|| context.config.repo.clone()).ok_or_else(|| {
        Error::new(ErrorKind::Usage, "no repository was named")
            .hinted("use --repo, HOLDFAST_REPO, or \"repo\" in the configuration file")
    })?;
    // Before a password is asked for.
    Location::parse(&location).map_err(of_location)?;
    Ok(location)
}

/// Opens an existing store.
fn existing_store(location: &str, options: StoreOptions) -> Result<Arc<dyn Store>> {
    open_store(location, &options).map_err(|error| of_opening(error, "open the repository"))
}

/// Creates a store for a new repository, and its directory if needed.
pub(crate) fn new_store(location: &str, context: &Context<'_>) -> Result<Arc<dyn Store>> {
    let mut options = options(context);
    // Whether the store supports several writers shows only if several calls can run at once.
    options.limits.calls = None;
    create_store(location, &options).map_err(|error| of_opening(error, "make the repository"))
}

/// Store options of the main repository.
pub(crate) fn options(context: &Context<'_>) -> StoreOptions {
    let as_of = context.global.as_of.map(Into::into);
    StoreOptions { as_of, ..reached(context) }
}

/// Store options of repositories that the configuration does not mention.
fn reached(context: &Context<'_>) -> StoreOptions {
    context.store.clone().options(context.config.store.clone())
}

/// Converts the error for a location, with the path that a relative one may stand for.
fn of_location(error: BadLocation) -> Error {
    let it = Error::new(ErrorKind::Usage, error.to_string());
    match error {
        BadLocation::Relative { path } => match std::path::absolute(path) {
            Ok(path) => it.hinted(format!("is {} meant?", path.display())),
            Err(_) => it,
        },
        BadLocation::Malformed { .. } => it,
    }
}

fn of_opening(error: OpenStoreError, doing: &str) -> Error {
    match error {
        OpenStoreError::BadLocation(error) => of_location(error),
        OpenStoreError::BadOption(_) => Error::new(ErrorKind::Usage, error.to_string()),
        OpenStoreError::Store(error) => {
            let error = of_store(error).context(doing);
            match error.hint() {
                Some(_) => error,
                None => error.hinted(NOT_THERE_HINT),
            }
        }
    }
}

/// Explains that a repository supports only one writer.
pub(crate) const ONE_WRITER: &str = "this store cannot keep concurrent writers apart: make sure that two \
    runs (backup, expire, prune) of one source never overlap, not even from two hosts (docs/guide/stores.md)";

/// Opens the named repository with the given password or identity. Asks for a password only if one is needed.
pub(crate) fn open(context: &Context<'_>) -> Result<Repo> {
    let opened = unlock(context);
    context.watch_signals()?;
    opened
}

/// Like [`open`], for `act`; `doing` names the act in the error if the key does not permit it.
pub(crate) fn open_for(context: &Context<'_>, act: Act, doing: &'static str) -> Result<Repo> {
    let repo = open(context)?;
    warn_of_keys(context, &repo);
    repo.require(act, doing)?;
    if act != Act::Read && writers::is_for_one(&**repo.store()).map_err(of_store)? {
        context.output.warning(ONE_WRITER.to_owned());
    }
    Ok(repo)
}

/// Warns about damaged records of keys, because they decide whose backups are trusted.
pub(crate) fn warn_of_keys(context: &Context<'_>, repo: &Repo) {
    for (object, damage) in repo.key_problems() {
        context.output.warning(format!("{object}: {damage}; see \"holdfast key list\""));
    }
}

/// Warns that nothing is encrypted, unless that `is_meant`: without a password there is nothing to tell by that
/// somebody has put another repository in the place of an encrypted one.
fn warn_of_no_encryption(context: &Context<'_>, repo: &Repo, is_meant: bool) {
    if repo.info().suite == Suite::None && !is_meant {
        let location = repo.store().location();
        context.output.warning(format!(
            "the repository {location} is not encrypted: whoever can read it can read all backups (if that is \
             meant, say \"no-encryption = true\" in the configuration file)"
        ));
    }
}

/// Like [`open`], but does not take over signals yet, so that further passwords can be asked for.
pub(crate) fn unlock(context: &Context<'_>) -> Result<Repo> {
    let repo = unlock_main(context)?;
    // A state of the past is older than what was seen, on purpose.
    let repo = if context.global.as_of.is_some() { repo } else { context.witnessed(repo) };
    warn_of_no_encryption(context, &repo, context.config.no_encryption);
    Ok(repo)
}

fn unlock_main(context: &Context<'_>) -> Result<Repo> {
    let store = existing_store(&location(context)?, options(context))?;
    let (global, config) = (&context.global, &context.config);
    let only = global.key.or(config.key);
    if let Some(path) = &global.identity {
        return with_identity(store, path, only);
    }
    let given = password::given(global.password_file.as_deref(), config)?;
    if let (None, Some(path)) = (&given, &config.identity) {
        return with_identity(store, path, only);
    }
    with_password(store, given, only, ("the repository", password::GIVE))
}

/// Opens the main repository and another, each for its own `act`.
pub(crate) fn open_both(
    context: &Context<'_>,
    (from, doing): (Act, &'static str),
    other: &OtherArgs,
    (to, doing_there): (Act, &'static str),
) -> Result<(Repo, Repo)> {
    let both = unlock(context).and_then(|one| Ok((one, unlock_other(context, other)?)));
    context.watch_signals()?;
    let (one, two) = both?;
    warn_of_keys(context, &one);
    one.require(from, doing)?;
    require_other(context, &two, to, doing_there)?;
    Ok((one, two))
}

/// A repository's location and the result of opening it.
pub(crate) type Opened = (String, Result<Arc<Repo>>);

/// Opens the main repository and `others`, as typed or configured, for backups.
/// If one cannot be opened, the others are opened all the same; only usage errors, which no
/// retry can fix, are returned.
pub(crate) fn open_all_for_backup(
    context: &Context<'_>,
    others: &[String],
    password_file: Option<&Path>,
) -> Result<Vec<Opened>> {
    const DOING: &str = "a backup";
    let mut opened = vec![(location(context)?, unlock(context))];
    for to in others {
        let password_file = password_file.map(Path::to_owned);
        let other =
            OtherArgs { to: to.clone(), to_password_file: password_file, to_identity: None, to_key: None };
        let known = known(context, to);
        let place = known.map_or(to, |known| &known.repo).clone();
        opened.push((place, unlock_other(context, &other)));
    }
    context.watch_signals()?;
    let mut ids = Vec::new();
    let mut all = Vec::new();
    for (location, repo) in opened {
        let repo = repo.and_then(|repo| require_other(context, &repo, Act::Backup, DOING).map(|()| repo));
        if let Ok(repo) = &repo {
            let id = repo.info().repository_id;
            if ids.contains(&id) {
                let text = format!("{location} is one of the other repositories, or a replica of it: {id}");
                return Err(Error::new(ErrorKind::Usage, text));
            }
            ids.push(id);
        }
        match repo {
            Err(error) if error.kind() == ErrorKind::Usage => return Err(error),
            repo => all.push((location, repo.map(Arc::new))),
        }
    }
    Ok(all)
}

fn require_other(context: &Context<'_>, other: &Repo, act: Act, doing: &'static str) -> Result<()> {
    let location = other.store().location();
    let at_other = |error: Error| error.context(format_args!("the repository {location}"));
    other.require(act, doing).map_err(|error| at_other(error.into()))?;
    if writers::is_for_one(&**other.store()).map_err(|error| at_other(of_store(error)))? {
        context.output.warning(format!("{location}: {ONE_WRITER}"));
    }
    Ok(())
}

/// Finds a configured repository by its name or its location.
fn known<'c>(context: &'c Context<'_>, typed: &str) -> Option<&'c OtherRepository> {
    context.config.repository.iter().find(|it| it.name == typed || it.repo == typed)
}

/// Improves the error for an invalid location that may have been meant as a name.
/// Text without `/`, `:` or `@` contains no password, so the error can show it.
fn not_by_name(context: &Context<'_>, typed: &str, error: Error) -> Error {
    if typed.contains(['/', ':', '@']) || error.kind() != ErrorKind::Usage {
        return error;
    }
    let names: Vec<&str> = context.config.repository.iter().map(|it| it.name.as_str()).collect();
    let hint = match names.is_empty() {
        true => "write its location (/directory, s3://bucket/prefix, az://container/prefix, \
                 sftp://user@host/directory), or give it a name in a [[repository]] of the configuration file"
            .to_owned(),
        false => format!("the configuration file has {}; or write a location", names.join(", ")),
    };
    Error::new(ErrorKind::Usage, format!("no [[repository]] of the configuration file is called {typed}"))
        .hinted(hint)
}

/// Opens another repository: a configured one by its name or location, or any other by its location.
fn unlock_other(context: &Context<'_>, typed: &OtherArgs) -> Result<Repo> {
    let known = known(context, &typed.to);
    let location = known.map_or(&typed.to, |known| &known.repo);
    // Typed bucket and host options apply to both repositories, unless the configuration has the other one.
    let reached = match known {
        Some(known) => StoreArgs::default().options(known.store.clone()),
        // The other repository is opened in its current state, even if the first is read
        // `--as-of` an earlier time.
        None => reached(context),
    };
    let at = |error: Error| error.context(format_args!("the repository {location}"));
    let store = existing_store(location, reached)
        .map_err(|error| if known.is_none() { not_by_name(context, &typed.to, error) } else { error })?;
    let only = typed.to_key.or_else(|| known?.key);
    if let Some(path) = &typed.to_identity {
        return with_identity(store, path, only).map_err(at).map(|repo| context.witnessed(repo));
    }
    let given = password::given_to(typed.to_password_file.as_deref(), known)?;
    if let (None, Some(path)) = (&given, known.and_then(|known| known.identity.as_ref())) {
        return with_identity(store, path, only).map_err(at).map(|repo| context.witnessed(repo));
    }
    let repo = with_password(store, given, only, (location, password::GIVE_TO)).map_err(at)?;
    warn_of_no_encryption(context, &repo, known.is_some_and(|known| known.no_encryption));
    Ok(context.witnessed(repo))
}

fn with_password(
    store: Arc<dyn Store>,
    given: Option<Secret>,
    only: Option<KeyId>,
    (which, give): (&str, &str),
) -> Result<Repo> {
    let location = store.location();
    let given = given.map(password::for_repository).transpose()?;
    let unlock = given.as_ref().map_or(Unlock::Nothing, Unlock::Password);
    match Repo::unlock(Arc::clone(&store), unlock, only) {
        Err(KeyError::PasswordNeeded { .. }) => {
            let password = password::for_repository(password::ask_for_repository(which, give)?)?;
            Repo::unlock(store, Unlock::Password(&password), only)
        }
        opened => opened,
    }
    .map_err(|error| of_keys(error, &location))
}

fn with_identity(store: Arc<dyn Store>, path: &Path, only: Option<KeyId>) -> Result<Repo> {
    let identity = password::identity(path)?;
    let location = store.location();
    Repo::unlock(store, Unlock::Identity(&identity), only).map_err(|error| of_keys(error, &location))
}
