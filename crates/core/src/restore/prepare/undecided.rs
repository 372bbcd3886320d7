//! MariaDB: transactions that were prepared for a commit with a binlog, which the backup does not have.
//!
//! A replica's parallel appliers leave such ones: they prepare, and then wait for earlier transactions to
//! commit. A backup does not wait for them, because they have let go of the lock that it takes against
//! commits. All transactions that its position includes are committed. So these have to be rolled back, and a
//! server that is told nothing refuses to start. What an external coordinator has prepared (`XA PREPARE`)
//! stays undecided in any case.
//!
//! Without a binlog, and with InnoDB as its only engine that can prepare, MariaDB 10.11 does so if it is told
//! to by an option. Since 11.2 there is always a second such engine, which makes the server keep a log of its
//! decisions instead. With that option it would then roll back and end without having shut down in good
//! order, but it takes decisions from such a log: one without any has it roll everything back, and continue
//! (verified on 10.11.19 and 11.8.9).

use std::{ffi::OsString, os::unix::fs::FileExt, path::PathBuf};

use holdfast_formats::Flavor;
use holdfast_repo::format::item::ItemPath;

use crate::restore::{
    opened::Opened,
    own_server::PrivateFiles,
    target::{Tree, io_failed, names::own_path},
};
use crate::{error::Result, server::programs::option_of};

/// What to do about them on a server that was not recovered here.
pub(crate) const BY_HAND: &str = "the source was a replica, whose appliers may have prepared transactions after the \
    backup's position: if the restored server refuses to start because it has found some, start it once with \
    --tc-heuristic-recover=ROLLBACK, which makes it roll them back and end, and then as usual";
/// Where the log of decisions is. The server removes it when it ends in good order.
const DECISIONS: &str = "#holdfast-decisions.log";
/// What such a log begins with.
const MAGIC: [u8; 4] = [254, 0x23, 0x05, 0x74];
/// At least three pages of memory, of whatever size.
const DECISIONS_BYTES: u64 = 3 << 16;
/// From this version on the server has two engines that can prepare.
const TWO_ENGINES_SINCE: (u16, u16) = (11, 2);

/// Whether a backup may have such transactions. Elsewhere they would mean that the backup is not what it
/// says, and the recovering server may refuse them.
pub(crate) fn may_be_undecided(opened: &Opened) -> bool {
    opened.server.flavor() == Flavor::MariaDb && !opened.position.replica_of.is_empty()
}

/// How a server is told to roll them back.
pub(crate) enum Undecided {
    ByOption,
    /// By a log without decisions.
    ByLog {
        item: ItemPath,
        path: PathBuf,
    },
}

impl Undecided {
    /// Prepares for what the recovering server understands.
    pub(crate) fn of(files: &PrivateFiles<'_>) -> Result<Self> {
        let version = &files.binary.version;
        if (version.major, version.minor) < TWO_ENGINES_SINCE {
            return Ok(Self::ByOption);
        }
        let (tree, item) = (files.tree, own_path(DECISIONS)?);
        let make = || {
            tree.remove(&item)?;
            let file = tree.create_file(&item, 0o600)?;
            file.write_all_at(&MAGIC, 0)?;
            file.set_len(DECISIONS_BYTES)?;
            files.owner.map_or(Ok(()), |owner| tree.give(&item, owner))
        };
        let path = tree.path_of(&item);
        make().map_err(|error| io_failed("write", &path, error))?;
        Ok(Self::ByLog { item, path })
    }

    /// The option for it.
    pub(crate) fn order(&self) -> OsString {
        match self {
            Self::ByOption => "--tc-heuristic-recover=ROLLBACK".into(),
            Self::ByLog { path, .. } => option_of("--log-tc=", path),
        }
    }

    /// Removes the log of decisions, if one was written.
    pub(crate) fn end(self, tree: &Tree) -> Result<()> {
        match self {
            Self::ByOption => Ok(()),
            Self::ByLog { item, path } => {
                tree.remove(&item).map_err(|error| io_failed("remove", path, error))
            }
        }
    }
}
