//! What the head of a backup says in words of the server. The repository keeps it without looking.

use holdfast_core::{
    logical::{ReadFacts, ViewFacts, import::Origin},
    physical::Position,
    server::ServerVersion,
};
use holdfast_repo::manifest::Head;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The server's version; `None` where another version of Holdfast wrote it in another way.
pub(super) fn server_version(head: &Head) -> Option<ServerVersion> {
    ServerVersion::deserialize(head.server.get("version")?).ok()
}

/// Where the backup stands in the replication log.
pub(super) fn position(head: &Head) -> Option<Position> {
    Position::deserialize(&Value::Object(head.position.clone()?)).ok()
}

/// The view that a logical backup is of; `None` of other backups.
pub(super) fn view(head: &Head) -> Option<ViewFacts> {
    ViewFacts::deserialize(head.more.get("view")?).ok()
}

/// Where an imported backup comes from; `None` of others.
pub(super) fn origin(head: &Head) -> Option<Origin> {
    Origin::deserialize(head.more.get("import")?).ok()
}

/// What was read of a logical backup.
pub(super) fn read(head: &Head) -> ReadFacts {
    head.more.get("read").and_then(|read| ReadFacts::deserialize(read).ok()).unwrap_or_default()
}

/// `name=value` lines of what fits a line: hex dumps of headers are for machines.
pub(super) fn short_values(values: &Map<String, Value>) -> String {
    const SHORT: usize = 60;
    let lines: Vec<String> = values
        .iter()
        .filter(|(_, value)| !value.is_null() && !value.is_object() && !value.is_array())
        .map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .filter(|(_, value)| !value.is_empty() && value.len() <= SHORT)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    lines.join("\n")
}
