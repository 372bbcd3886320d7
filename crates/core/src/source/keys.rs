//! Keeps key files out of a backup, whatever name they are found under; see [`KeyFiles`].

use std::collections::BTreeMap;

use super::{
    CaptureOptions,
    files::{Entry, Inode, Stat},
};
use crate::{key_files::KeyFiles, server::ServerFacts};

/// Removes other names of key files from `entries`: links to them, and their own names where the server's
/// settings name them by a link.
pub(super) fn leave_keys(
    entries: &mut BTreeMap<String, Entry>,
    facts: &ServerFacts,
    options: &CaptureOptions,
) {
    let keys = KeyFiles::of(facts);
    let stats = keys.named().iter().filter_map(|path| Stat::of(&options.map_path(path)).ok());
    let keys: Vec<Inode> = stats.map(|stat| stat.inode).collect();
    entries.retain(|_, entry| entry.is_dir || !keys.contains(&entry.stat.inode));
}
