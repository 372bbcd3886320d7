//! Relay logs in the target: one for each piece of a binlog file, and their index.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufWriter, Write},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use holdfast_formats::{
    Flavor,
    binlog::{Header, Part, relay_log_head},
};
use holdfast_repo::format::item::ItemPath;

use super::{
    super::target::{DIRECTORY_MODE, Tree, io_failed, names::own_path},
    Piece, Reached, Transactions,
};
use crate::{
    error::{Context, Error, Result},
    event::Cancel,
};

/// A directory of the target, for the duration of the replay.
const DIRECTORY: &str = "#holdfast-relay";
/// The replication channel, so that none of the source's own is touched. Part of file names.
pub(super) const CHANNEL: &str = "holdfast_replay";
/// Servers put the channel's name between this and the number.
const BASE: &str = "relay";
/// They contain users' rows.
const MODE: u16 = 0o600;

/// Relay logs that a server can apply.
#[derive(Debug)]
pub(super) struct RelayLogs {
    /// Names and sizes, in order.
    files: Vec<(String, u64)>,
    /// Ids of the servers that wrote the transactions first: an applier skips those with its own server id.
    server_ids: BTreeSet<u32>,
}

impl RelayLogs {
    /// Writes all that there is to replay.
    pub(super) fn write(
        tree: &Tree,
        flavor: Flavor,
        owner: Option<(u32, u32)>,
        transactions: &mut dyn Transactions,
        cancel: &Cancel,
    ) -> Result<(RelayLogs, Reached)> {
        let mut logs = RelayLogs { files: Vec::new(), server_ids: BTreeSet::new() };
        logs.remove(tree)?;
        let directory = own_path(DIRECTORY)?;
        let make = || {
            tree.create_dir(&directory, DIRECTORY_MODE)?;
            owner.map_or(Ok(()), |owner| tree.give(&directory, owner))
        };
        make().map_err(|error| io_failed("make", tree.path_of(&directory), error))?;
        let mut current: Option<Writing> = None;
        let reached = transactions.each(&mut |piece| match piece {
            Piece::File { name, offset, format } => {
                cancel.check()?;
                let head = relay_log_head(flavor, format, name, offset)
                    .context(format_args!("make a relay log of binlog {name}"))?;
                logs.close(tree, current.take(), owner)?;
                let number = logs.files.len() + 1;
                let writing = Writing::create(tree, format!("{BASE}-{CHANNEL}.{number:06}"))?;
                current.insert(writing).append(tree, &head, false)
            }
            Piece::Event { bytes, part } => match &mut current {
                Some(writing) => {
                    let header = Header::parse(bytes).context("read an event that is to be replayed")?;
                    logs.server_ids.insert(header.server_id);
                    writing.append(tree, bytes, part == Part::Last)
                }
                None => Err(Error::failed("events of no binlog file are to be replayed")),
            },
        })?;
        logs.close(tree, current, owner)?;
        if reached.transactions == 0 {
            logs.files.clear();
        }
        logs.write_index(tree, owner)?;
        Ok((logs, reached))
    }

    fn close(&mut self, tree: &Tree, writing: Option<Writing>, owner: Option<(u32, u32)>) -> Result<()> {
        let Some(Writing { name, path, mut file, bytes, whole_bytes }) = writing else { return Ok(()) };
        if whole_bytes == 0 {
            // No transaction ends in it.
            return tree.remove(&path).map_err(|error| io_failed("remove", tree.path_of(&path), error));
        }
        let mut done = || {
            file.flush()?;
            if whole_bytes < bytes {
                file.get_ref().set_len(whole_bytes)?;
            }
            owner.map_or(Ok(()), |owner| tree.give(&path, owner))
        };
        done().map_err(|error| io_failed("write", tree.path_of(&path), error))?;
        self.files.push((name, whole_bytes));
        Ok(())
    }

    fn write_index(&self, tree: &Tree, owner: Option<(u32, u32)>) -> Result<()> {
        let mut text = Vec::new();
        for (name, _) in &self.files {
            text.extend(tree.path_of(&path_of(name)?).as_os_str().as_bytes());
            text.push(b'\n');
        }
        let path = path_of(&format!("{BASE}-{CHANNEL}.index"))?;
        let write = || {
            tree.create_file(&path, MODE)?.write_all(&text)?;
            owner.map_or(Ok(()), |owner| tree.give(&path, owner))
        };
        write().map_err(|error| io_failed("write", tree.path_of(&path), error))
    }

    /// The name of the first; `None` where there is nothing to replay.
    pub(super) fn first(&self) -> Option<&str> {
        self.files.first().map(|(name, _)| name.as_str())
    }

    /// Size of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }

    /// A server id for the server that replays, which is in none of the transactions.
    pub(super) fn free_server_id(&self) -> u32 {
        (1..=u32::MAX).find(|id| !self.server_ids.contains(id)).unwrap_or(u32::MAX)
    }

    /// How many bytes are before `offset` of the file `name`.
    /// A name that is not ours is the server's own file, after all of ours.
    pub(super) fn bytes_before(&self, name: &str, offset: u64) -> u64 {
        let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
        let mut before = 0;
        for (file, bytes) in &self.files {
            if file == name {
                return before + offset.min(*bytes);
            }
            before += bytes;
        }
        before
    }

    /// Where they are.
    pub(super) fn directory(&self, tree: &Tree) -> PathBuf {
        tree.path().join(DIRECTORY)
    }

    /// The name that the server is told: without the channel and the number.
    pub(super) fn base(&self, tree: &Tree) -> PathBuf {
        self.directory(tree).join(BASE)
    }

    /// The name of the index that the server is told.
    pub(super) fn index(&self, tree: &Tree) -> PathBuf {
        self.base(tree).with_extension("index")
    }

    /// Deletes them, and what the server has put beside them.
    pub(super) fn remove(&self, tree: &Tree) -> Result<()> {
        let directory = own_path(DIRECTORY)?;
        let failed = |error| io_failed("remove", tree.path_of(&directory), error);
        if tree.look(&directory).map_err(failed)?.is_none() {
            return Ok(());
        }
        for (name, _) in tree.list(DIRECTORY.as_bytes()).map_err(failed)? {
            let path = ItemPath::new([DIRECTORY.as_bytes(), b"/", &name].concat());
            tree.remove(&path.context("read the name of a relay log")?).map_err(failed)?;
        }
        tree.remove(&directory).map_err(failed)
    }
}

fn path_of(name: &str) -> Result<ItemPath> {
    own_path(&format!("{DIRECTORY}/{name}"))
}

/// A relay log that is not complete.
struct Writing {
    name: String,
    path: ItemPath,
    file: BufWriter<File>,
    bytes: u64,
    /// Bytes up to the end of the last whole transaction.
    whole_bytes: u64,
}

impl Writing {
    fn create(tree: &Tree, name: String) -> Result<Writing> {
        let path = path_of(&name)?;
        let file = tree.create_file(&path, MODE);
        let file = file.map_err(|error| io_failed("write", tree.path_of(&path), error))?;
        Ok(Writing { name, path, file: BufWriter::new(file), bytes: 0, whole_bytes: 0 })
    }

    fn append(&mut self, tree: &Tree, bytes: &[u8], is_border: bool) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| io_failed("write", tree.path_of(&self.path), error))?;
        self.bytes += bytes.len() as u64;
        if is_border {
            self.whole_bytes = self.bytes;
        }
        Ok(())
    }
}
