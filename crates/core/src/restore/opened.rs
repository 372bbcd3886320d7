//! A backup, opened for restoring: what its manifest says, in the types of this crate.

use std::sync::Arc;

use holdfast_pipe::HashKey;
use holdfast_repo::{
    LogName, Repo, RunNo,
    data::reader::Backup,
    format::{
        item::{Item, ItemPath},
        manifest::DAMAGED_PAGES,
    },
    log::history::History,
};

use super::backup_id::BackupId;
use crate::{
    captured_redo::{CapturedRedo, REDO_ITEM},
    error::{Error, Result},
    head,
    position::Position,
    server::ServerFacts,
};

/// A backup and what is known of it.
pub(super) struct Opened {
    pub(super) id: BackupId,
    pub(super) backup: Backup,
    /// Hashes pages, to compare them with what is in the target.
    pub(super) hash_key: HashKey,
    pub(super) server: ServerFacts,
    pub(super) redo: CapturedRedo,
    pub(super) redo_item: Item,
    pub(super) position: Position,
    /// Algorithms of compressed pages whose tablespaces do not tell them.
    pub(super) compressed_with: Vec<String>,
    /// What a user must be told about it.
    pub(super) flags: Vec<String>,
}

impl Opened {
    pub(super) fn open(repo: &Arc<Repo>, log: &LogName, which: RunNo) -> Result<Self> {
        let id = BackupId::of_physical(repo, log, which)?;
        // Damage in other runs must not keep anybody from restoring this one.
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
        let path =
            ItemPath::new(REDO_ITEM).map_err(|error| Error::failed("name the redo").caused_by(error))?;
        let redo_item =
            backup.find(&path)?.ok_or_else(|| Error::damaged(format!("{id} has no captured redo")))?;
        Ok(Self {
            server: head::require_server(backup.head(), &id)?,
            redo: head::require_redo(backup.head(), &id)?,
            position: head::require_position(backup.head(), &id)?,
            compressed_with: head::compressed_with(backup.head()),
            flags: backup.head().flags.clone(),
            id,
            hash_key: repo.hash_key()?.clone(),
            backup,
            redo_item,
        })
    }

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
