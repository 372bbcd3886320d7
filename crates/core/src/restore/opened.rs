//! A backup, opened for restoring: what its manifest says, in the words of this crate.

use std::sync::Arc;

use holdfast_pipe::HashKey;
use holdfast_repo::{
    LogName, Repo, RunNo,
    history::History,
    item::{Item, ItemPath},
    reader::Backup,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{layout::damaged, report::BackupId};
use crate::{
    error::{Error, Result},
    physical::{CapturedRedo, DAMAGED_PAGES, Position, REDO_ITEM},
    server::ServerFacts,
};

/// A backup and what is known of it.
pub(super) struct Opened {
    pub(super) id: BackupId,
    pub(super) backup: Backup,
    /// Of pages, to compare what is in the target.
    pub(super) hash_key: HashKey,
    pub(super) server: ServerFacts,
    pub(super) redo: CapturedRedo,
    pub(super) redo_item: Item,
    pub(super) position: Position,
    /// What a user must be told of it.
    pub(super) flags: Vec<String>,
}

impl Opened {
    pub(super) fn open(repo: &Arc<Repo>, log: &LogName, which: RunNo) -> Result<Self> {
        let id = BackupId::of_physical(repo, log, which)?;
        // What is wrong with other runs shall not keep anybody from this one.
        let mut damage = None;
        let history = History::salvage(repo, log, &mut |run, error| {
            if run == which {
                damage = Some(error);
            }
        })?;
        if let Some(error) = damage {
            return Err(error.into());
        }
        let backup = Backup::open(repo, &history, which)?;
        let unreadable = |error| damaged(format!("read the manifest of {id}")).caused_by(error);
        let mut head: Map<String, Value> =
            serde_json::from_slice(&history.head(repo, which)?).map_err(unreadable)?;
        let flags =
            head.remove("flags").map_or(Ok(Vec::new()), serde_json::from_value).map_err(unreadable)?;
        let path =
            ItemPath::new(REDO_ITEM).map_err(|error| Error::failed("name the redo").caused_by(error))?;
        let redo_item = backup.find(&path)?.ok_or_else(|| damaged(format!("{id} has no captured redo")))?;
        Ok(Self {
            server: field(&mut head, "server", &id)?,
            redo: field(&mut head, "redo", &id)?,
            position: field(&mut head, "position", &id)?,
            flags,
            id,
            hash_key: repo.hash_key()?.clone(),
            backup,
            redo_item,
        })
    }
}

impl Opened {
    /// Whether pages of it were damaged on the source.
    pub(super) fn has_damaged_pages(&self) -> bool {
        self.flags.iter().any(|flag| flag == DAMAGED_PAGES)
    }

    /// Whether the redo's records cannot be read without the server's keys.
    pub(super) fn redo_encrypted(&self) -> bool {
        match &self.redo {
            CapturedRedo::MariaDb { encrypted, .. } | CapturedRedo::MySql { encrypted, .. } => *encrypted,
        }
    }
}

fn field<T: DeserializeOwned>(head: &mut Map<String, Value>, name: &str, id: &BackupId) -> Result<T> {
    let value = head.remove(name).unwrap_or(Value::Null);
    serde_json::from_value(value)
        .map_err(|error| damaged(format!("the manifest of {id} does not say its {name}")).caused_by(error))
}
