//! A logical backup, opened for restoring.

use std::sync::Arc;

use holdfast_repo::{LogName, Repo, RunNo, data::reader::Backup, log::history::History};

use super::super::{BackupId, continuing};
use crate::{
    error::{Error, ErrorKind, Result},
    head,
    logical::ReadFacts,
    position::Position,
    server::ServerFacts,
};

/// A logical backup and what is known of it.
pub(super) struct LogicalBackup {
    pub(super) id: BackupId,
    /// The source.
    pub(super) server: ServerFacts,
    pub(super) position: Position,
    /// Whether the account that took it was allowed to know its position.
    pub(super) knows_position: bool,
    pub(super) read: ReadFacts,
}

impl LogicalBackup {
    pub(super) fn open(repo: &Arc<Repo>, log: &LogName, which: RunNo) -> Result<Self> {
        let id = BackupId::of(repo, log, which);
        let history = History::salvage(repo, log, &mut |_, _| {})?;
        let backup = Backup::open(repo, &history, which)?;
        let manifest = backup.head();
        if manifest.more.contains_key(head::IMPORT) {
            let text = format!("{id} is an imported dump, which does not tell how its server was set up");
            return Err(
                Error::new(ErrorKind::Usage, text).hinted("load it into a running server (--to-server)")
            );
        }
        let position = head::position(manifest);
        Ok(Self {
            server: head::require_server(manifest, &id)?,
            knows_position: position.is_some(),
            position: position.unwrap_or_else(continuing::unknown),
            read: ReadFacts::of(manifest),
            id,
        })
    }
}
