//! Files with encryption keys, if they are below the data directory.
//!
//! A backup contains none of them: access to a repository must not give access to the keys of its contents. A
//! restore deletes none of them: the one in its target may be the only copy.
//!
//! Recognizes the files that the server's settings name, with what a keyring leaves next to them, and the
//! configurations of keyring components: each can hold a password or a token, except that of
//! `component_keyring_file`, which only names a file.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::server::ServerFacts;

/// Beginning and end of the names of keyring components' configurations; below, the one that holds no secret.
const COMPONENT_CONFIG: (&str, &str) = ("component_keyring_", ".cnf");
const PLAIN_CONFIG: &str = "component_keyring_file.cnf";
/// MySQL's keyrings write this before they replace their file; a server that dies in between leaves it.
const KEYRING_BACKUP: &str = ".backup";

/// The key files of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyFiles {
    /// The paths that the server names, made absolute.
    named: Vec<PathBuf>,
    /// Those below the data directory, relative to it.
    below: Vec<PathBuf>,
}

impl KeyFiles {
    /// The key files that the server's settings name.
    pub(crate) fn of(facts: &ServerFacts) -> Self {
        let encryption = &facts.encryption;
        let named = encryption.key_file.iter().chain(&encryption.more_key_files);
        let named: Vec<_> = named.map(|path| facts.resolved(path)).collect();
        let datadir = facts.resolved(Path::new(""));
        let below = named.iter().filter_map(|path| path.strip_prefix(&datadir).ok());
        let below = below.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned);
        Self { below: below.collect(), named }
    }

    /// The paths that the server names, made absolute.
    pub(crate) fn named(&self) -> &[PathBuf] {
        &self.named
    }

    /// The named files below the data directory, relative to it.
    pub(crate) fn below(&self) -> &[PathBuf] {
        &self.below
    }

    /// The key files that exist in `datadir`, the server's data directory as this process sees it.
    pub(crate) fn found_in(&self, datadir: &Path) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(datadir).into_iter().flatten().flatten();
        let names = listed.map(|entry| PathBuf::from(entry.file_name()));
        let configs = names.filter(|name| name.to_str().is_some_and(|name| self.contains(name)));
        let below = self.below.iter().filter(|path| datadir.join(path).exists()).cloned();
        let found: BTreeSet<_> = below.chain(configs).collect();
        found.into_iter().collect()
    }

    /// Whether the file at `path`, relative to the data directory, holds keys, or is in a directory that
    /// does.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let (begin, end) = COMPONENT_CONFIG;
        let is_config =
            !path.contains('/') && path.starts_with(begin) && path.ends_with(end) && path != PLAIN_CONFIG;
        let original = path.strip_suffix(KEYRING_BACKUP).unwrap_or(path);
        is_config
            || [path, original]
                .into_iter()
                .any(|path| self.below.iter().any(|key| Path::new(path).starts_with(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys and what belongs to them are recognized, and nothing that is merely named alike.
    #[test]
    fn keys_are_known() {
        let below = ["keys", "sub/keyring", "okv"].map(PathBuf::from).to_vec();
        let files = KeyFiles { named: Vec::new(), below };
        for (path, has_keys) in [
            ("keys", true),
            ("keys.backup", true),
            ("keys.txt", false),
            ("keys2", false),
            ("sub/keyring", true),
            ("sub/keyring.backup", true),
            ("sub/other", false),
            ("keyring", false),
            ("okv/ssl/key.pem", true),
            ("component_keyring_file.cnf", false),
            ("component_keyring_vault.cnf", true),
            ("component_keyring_encrypted_file.cnf", true),
            ("component_keyring_kmip/notes.cnf", false),
            ("mysqld.my", false),
            ("ibdata1", false),
        ] {
            assert_eq!(files.contains(path), has_keys, "{path}");
        }
    }
}
