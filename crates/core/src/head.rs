//! The heads of manifests, interpreted as descriptions of servers.
//!
//! A backup writes what it knows as JSON objects into its head, and the repository stores them uninterpreted
//! (`docs/reference/repository.md` section 9). Fields that are only listed or compared are `None` if another
//! version of Holdfast wrote them differently; fields that a restore depends on must be understood, or it
//! fails (`require_…`).

use std::fmt;

use holdfast_repo::{Repo, RepoError, RunNo, format::manifest::Head, log::history::History};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    captured_redo::CapturedRedo,
    error::{Context, Error, ErrorKind, Result},
    position::Position,
    server::{ServerFacts, ServerVersion, facts::Identity},
};

/// Field that describes an imported dump.
pub(crate) const IMPORT: &str = "import";

/// Field that describes the selection, if not the whole server was requested.
pub(crate) const SELECTION: &str = "selection";

/// Field that names the algorithms that only the pages of compressed tables tell.
pub(crate) const COMPRESSED_WITH: &str = "compressed_with";

/// The head of a backup's manifest.
pub fn read_head(repo: &Repo, history: &History, run: RunNo) -> Result<Head> {
    understood(history, run, &history.head(repo, run)?)
}

/// The heads of several backups, in their order; faster than one by one if the store is far away. `each`
/// decides what to do about a head that is damaged or not understood ([`ErrorKind::Damaged`]).
pub fn read_heads(
    repo: &Repo,
    history: &History,
    runs: &[RunNo],
    mut each: impl FnMut(RunNo, Result<Head>) -> Result<()>,
) -> Result<()> {
    let head = |run, bytes: std::result::Result<Vec<u8>, RepoError>| understood(history, run, &bytes?);
    history.heads(repo, runs, |run, bytes| each(run, head(run, bytes)))
}

fn understood(history: &History, run: RunNo, bytes: &[u8]) -> Result<Head> {
    let log = history.log();
    Head::decode(bytes)
        .context_kind(ErrorKind::Damaged, format_args!("understand the manifest of {log} {run}"))
}

/// The server's version.
#[must_use]
pub fn server_version(head: &Head) -> Option<ServerVersion> {
    field(head.server.get("version")?)
}

/// MariaDB: algorithms that pages are compressed with, apart from those that the flags of tablespaces tell.
pub(crate) fn compressed_with(head: &Head) -> Vec<String> {
    head.more.get(COMPRESSED_WITH).and_then(field).unwrap_or_default()
}

/// The backup's position in the replication log.
#[must_use]
pub fn position(head: &Head) -> Option<Position> {
    field(&Value::Object(head.position.clone()?))
}

/// The server that a backup is of. An import proves nothing about its server, so it passes on the identity
/// from the history before it.
#[must_use]
pub fn identity(head: &Head) -> Option<Identity> {
    let handed_on = || head.more.get(IMPORT)?.get("identity_before");
    field(head.server.get("identity").or_else(handed_on)?)
}

/// The selection, for display, if the backup holds only a part of its server; empty if it holds everything.
#[must_use]
pub fn selection(head: &Head) -> Vec<(&'static str, Vec<String>)> {
    let names = [
        ("only databases", "schemas"),
        ("only tables", "tables"),
        ("without databases", "schemas_excluded"),
        ("without tables", "tables_excluded"),
    ];
    let said = |name: &str| head.more.get(SELECTION).and_then(|selection| selection.get(name));
    let mut all: Vec<(&str, Vec<String>)> = names
        .into_iter()
        .map(|(shown, name)| (shown, said(name).and_then(field).unwrap_or_default()))
        .collect();
    let filters: Vec<(String, String)> = said("filters").and_then(field).unwrap_or_default();
    all.push((
        "only rows",
        filters.iter().map(|(tables, condition)| format!("{tables}: {condition}")).collect(),
    ));
    all.retain(|(_, words)| !words.is_empty());
    all
}

/// All recorded facts about the server. `backup` names the backup in the error.
pub(crate) fn require_server(head: &Head, backup: &impl fmt::Display) -> Result<ServerFacts> {
    required(Some(&head.server), "server", backup)
}

/// The redo captured with the pages.
pub(crate) fn require_redo(head: &Head, backup: &impl fmt::Display) -> Result<CapturedRedo> {
    required(head.redo.as_ref(), "redo", backup)
}

/// The backup's position in the replication log.
pub(crate) fn require_position(head: &Head, backup: &impl fmt::Display) -> Result<Position> {
    required(head.position.as_ref(), "position", backup)
}

/// Reads a field of a head that another version may have written; `None` if it does not fit.
pub(crate) fn field<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

fn required<T: DeserializeOwned>(
    values: Option<&Map<String, Value>>,
    name: &str,
    backup: &impl fmt::Display,
) -> Result<T> {
    let value = values.cloned().map_or(Value::Null, Value::Object);
    serde_json::from_value(value)
        .context_kind(ErrorKind::Damaged, format_args!("the manifest of {backup} does not say its {name}"))
}

/// Converts `value` into an object for a head.
pub(crate) fn object(value: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(value).context("describe the backup")? {
        Value::Object(object) => Ok(object),
        other => Err(Error::failed(format!("describe the backup: {other} is no JSON object"))),
    }
}
