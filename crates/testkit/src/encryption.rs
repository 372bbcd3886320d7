//! Servers that encrypt everything they can, each with its keys in a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::keyring::{give_keyring, with_keyring};
use crate::kind::ServerKind;
use crate::server::{Server, ServerOptions};

/// Fewer tables than this are not everything that a filled server has.
const TABLES_AT_LEAST: usize = 10;

/// Makes a file with keys in `dir`; returns the options with which MariaDB reads it.
pub fn mariadb_key_options(dir: &Path) -> Result<Vec<String>> {
    let keys = dir.join("keys");
    fs::write(&keys, format!("1;{}\n", "0123456789abcdef".repeat(4)))?;
    Ok(vec![
        "--plugin-load-add=file_key_management".to_owned(),
        format!("--file-key-management-filename={}", keys.display()),
    ])
}

/// What a server needs to encrypt everything, and what those need that recover or copy its files.
#[derive(Clone, Debug)]
pub struct Encryption {
    /// Options of the server, and of servers on copies of its files.
    pub server_options: ServerOptions,
    /// Options for the recovery of its files.
    pub prepare_options: Vec<String>,
    /// The file with its keys, of which each server on a copy of its files needs a copy.
    pub keyring: Option<PathBuf>,
}

impl Encryption {
    /// Keys in `dir`, for a server with these options.
    pub fn new(kind: ServerKind, dir: &Path, options: ServerOptions) -> Result<Encryption> {
        if kind.is_mariadb() { Encryption::mariadb(dir, options) } else { Encryption::mysql(dir, options) }
    }

    /// Tables, temporary files, Aria, binlog and redo are encrypted, and background threads encrypt existing
    /// data.
    fn mariadb(dir: &Path, options: ServerOptions) -> Result<Encryption> {
        let prepare_options = mariadb_key_options(dir)?;
        let encrypted = [
            "--innodb-encrypt-tables=ON",
            "--innodb-encrypt-log=ON",
            "--innodb-encryption-threads=2",
            "--aria-encrypt-tables=ON",
            "--encrypt-tmp-files=ON",
            "--encrypt-binlog=ON",
        ];
        let init = prepare_options.iter().cloned().chain(encrypted.map(str::to_owned));
        let server_options = init.fold(options, ServerOptions::init_arg);
        Ok(Encryption { server_options, prepare_options, keyring: None })
    }

    /// Undo, redo and binlog are encrypted; for tables see [`Encryption::encrypt_tables`].
    fn mysql(dir: &Path, options: ServerOptions) -> Result<Encryption> {
        let encrypted =
            ["--innodb-redo-log-encrypt=ON", "--innodb-undo-log-encrypt=ON", "--binlog-encryption=ON"];
        let options = encrypted.into_iter().fold(options, ServerOptions::arg);
        let (program, keyring) = (dir.join("server"), dir.join("keyring"));
        fs::create_dir(&program)?;
        let server_options = with_keyring(options, &program, &keyring)?;
        Ok(Encryption { server_options, prepare_options: Vec::new(), keyring: Some(keyring) })
    }

    /// Encrypts what is not encrypted by options: on MySQL the dictionary, general tablespaces, and every
    /// other InnoDB table.
    pub fn encrypt_tables(&self, server: &Server) -> Result<()> {
        if server.kind().is_mariadb() {
            return Ok(());
        }
        for tablespace in ["mysql", "general"] {
            server.exec(format!("ALTER TABLESPACE {tablespace} ENCRYPTION = 'Y'"))?;
        }
        let tables: Vec<String> = server.query(
            "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
             WHERE engine = 'InnoDB' AND table_type = 'BASE TABLE' AND table_schema NOT IN ('mysql', 'sys')",
        )?;
        // Tables in general tablespaces are encrypted with these.
        let encrypted = tables
            .iter()
            .filter(|table| server.exec(format!("ALTER TABLE {table} ENCRYPTION = 'Y'")).is_ok());
        ensure!(encrypted.count() > TABLES_AT_LEAST, "{tables:?}");
        Ok(())
    }

    /// Gives a copy of the server's files its own keys, before a server is started on it.
    pub fn hand_over(&self, datadir: &Path) -> Result<()> {
        match &self.keyring {
            Some(keyring) => give_keyring(datadir, keyring, &datadir.with_extension("keyring")),
            None => Ok(()),
        }
    }
}
