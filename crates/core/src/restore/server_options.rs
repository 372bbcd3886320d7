//! Options of a server that runs on a backup's files, as what is known of the source demands them.

use std::path::PathBuf;

use holdfast_formats::Flavor;

use super::target::names::PARTIAL;
use crate::server::{
    ServerFacts,
    facts::{DECIDING, Plugin},
};

/// Options that overrule the source's own where those lead out of the data directory: a server started with
/// the source's would take what is left there, such as redo and undo of the lost server, for its own.
fn home_options(server: &ServerFacts) -> Vec<String> {
    let (innodb, aria) = (&server.innodb, server.aria.as_ref());
    let elsewhere =
        |dir: Option<&PathBuf>| dir.is_some_and(|dir| server.resolved(dir) != server.paths.datadir);
    [
        ("innodb-data-home-dir", innodb.data_home_dir.as_ref()),
        ("innodb-undo-directory", innodb.undo_directory.as_ref()),
        ("innodb-log-group-home-dir", innodb.log_group_home_dir.as_ref()),
        ("innodb-doublewrite-dir", innodb.doublewrite_dir.as_ref()),
        ("aria-log-dir-path", aria.and_then(|aria| aria.log_dir_path.as_ref())),
    ]
    .into_iter()
    .filter(|(_, dir)| elsewhere(*dir))
    .map(|(option, _)| format!("--{option}=."))
    .collect()
}

/// Options without which a server does not start on these files, or reads them wrongly, or reads others.
pub(super) fn format_options(server: &ServerFacts) -> Vec<String> {
    let mut options = shape_options(server);
    // What was ciphertext on the source must not be written in clear.
    match server.version.flavor {
        Flavor::MariaDb if server.encryption.redo => options.push("--innodb-encrypt-log=ON".to_owned()),
        Flavor::MySql => {
            let kinds = [("redo", server.encryption.redo), ("undo", server.encryption.undo)];
            let encrypted = kinds.iter().filter(|(_, encrypted)| *encrypted);
            options.extend(encrypted.map(|(kind, _)| format!("--innodb-{kind}-log-encrypt=ON")));
        }
        Flavor::MariaDb => {}
    }
    options
}

/// How MyISAM's own stopwords are called.
const BUILT_IN: &str = "(built-in)";

/// Options by which statements and rows make what they made on the source. A server whose rows are loaded has
/// no stopword tables before that. Other versions may not know all of them. A backup chooses no other
/// options: they could have the server run or write what the backup says.
pub(super) fn deciding_options(server: &ServerFacts, is_rebuilt: bool) -> Vec<String> {
    let is_passed = |name: &str, value: &str| match name {
        _ if !DECIDING.contains(&name) => false,
        "ft_stopword_file" => value.is_empty(),
        name if name.ends_with("_stopword_table") => !is_rebuilt,
        _ => true,
    };
    let deciding = server.sql.deciding.iter().filter(|(name, value)| is_passed(name, value));
    deciding.map(|(name, value)| format!("--loose-{name}={value}")).collect()
}

/// What to say about settings that decide what statements and rows make, and that a server here does not
/// have.
pub(super) fn undecided(server: &ServerFacts) -> Option<String> {
    let deciding = &server.sql.deciding;
    if deciding.is_empty() {
        return Some(
            "the backup does not say which settings its server had that no binlog has (old_mode, \
             innodb_ft_min_token_size and others): if they were not the defaults, give them by --prepare-option, or \
             what is replayed may make other tables and full-text indexes"
                .to_owned(),
        );
    }
    let file = deciding.get("ft_stopword_file").filter(|file| !file.is_empty() && *file != BUILT_IN)?;
    Some(format!(
        "the source has stopwords in {file}, which no backup has: full-text indexes of MyISAM and Aria tables are \
         replayed with the server's own, unless --prepare-option=--ft-stopword-file={file} gives them"
    ))
}

/// Plugins of the servers' own packages without which tables or accounts of a source cannot be made. Others
/// are not loaded because a backup says so: it would choose code that runs here.
const PLUGINS_NEEDED: [&str; 13] = [
    "auth_ed25519",
    "auth_pam",
    "auth_parsec",
    "auth_socket",
    "ha_archive",
    "ha_blackhole",
    "ha_mroonga",
    "ha_rocksdb",
    "provider_bzip2",
    "provider_lz4",
    "provider_lzma",
    "provider_lzo",
    "provider_snappy",
];

/// Options for a new data directory that the source's own configuration fits. It has no list of plugins.
pub(super) fn new_options(server: &ServerFacts) -> Vec<String> {
    let mut options = shape_options(server);
    let loaded = |library: &&str| {
        let name = |plugin: &Plugin| plugin.library.strip_suffix(".so").map(str::to_owned);
        server.plugins.iter().any(|plugin| name(plugin).as_deref() == Some(*library))
    };
    let needed = PLUGINS_NEEDED.iter().filter(|library| loaded(library));
    options.extend(needed.map(|library| format!("--plugin-load-add={library}")));
    options
}

/// The files of the system tablespace, by their names in the data directory.
pub(super) fn system_files(server: &ServerFacts) -> Vec<String> {
    let path = at_home(&server.innodb.data_file_path);
    path.split(';').map(|file| file.split(':').next().unwrap_or(file).to_owned()).collect()
}

/// The size of pages, the case of names, and where files are.
fn shape_options(server: &ServerFacts) -> Vec<String> {
    let innodb = &server.innodb;
    let mut options = vec![
        format!("--innodb-page-size={}", innodb.page_size),
        format!("--innodb-data-file-path={}", at_home(&innodb.data_file_path)),
        format!("--lower-case-table-names={}", server.sql.lower_case_table_names),
    ];
    options.extend(home_options(server));
    if let Some(count) = innodb.undo_tablespaces {
        options.push(format!("--innodb-undo-tablespaces={count}"));
    }
    if let Some(aria) = &server.aria {
        options.push(format!("--aria-block-size={}", aria.block_size));
    }
    options
}

/// `innodb_data_file_path` with every file in the data directory.
fn at_home(data_file_path: &str) -> String {
    let home = |file: &str| file.rsplit_once('/').map_or(file, |(_, name)| name).to_owned();
    data_file_path.split(';').map(home).collect::<Vec<_>>().join(";")
}

/// `innodb_data_file_path` with every file under the name that it has until the restore is done.
pub(super) fn set_aside(data_file_path: &str) -> String {
    let aside = |file: &str| {
        let (name, rest) = file.split_once(':').map_or((file, None), |(name, rest)| (name, Some(rest)));
        let rest = rest.map(|rest| format!(":{rest}")).unwrap_or_default();
        format!("{name}{PARTIAL}{rest}")
    };
    at_home(data_file_path).split(';').map(aside).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// System tablespaces that were elsewhere are looked for at home.
    #[test]
    fn system_tablespaces() {
        for (path, home) in [
            ("ibdata1:12M:autoextend", "ibdata1:12M:autoextend"),
            ("sub/ibdata1:12M", "ibdata1:12M"),
            (
                "/a/ibdata1:10M;/b/c/ibdata2:50M:autoextend:max:2G",
                "ibdata1:10M;ibdata2:50M:autoextend:max:2G",
            ),
        ] {
            assert_eq!(at_home(path), home);
        }
        assert_eq!(
            set_aside("/a/ibdata1:10M;/b/ibdata2:50M:autoextend:max:2G"),
            "ibdata1.partial:10M;ibdata2.partial:50M:autoextend:max:2G"
        );
    }
}
