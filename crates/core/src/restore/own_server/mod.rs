//! The options of every server that a restore runs on its own files: for their recovery ([`super::prepare`]),
//! to load rows ([`super::rebuild`]), and to replay transactions ([`super::replay`]).
//!
//! Such a server has no network, binlog, event scheduler, persisted settings, or general logs, and a
//! temporary directory of its own. No other server can start on the files meanwhile. Restored ones are in
//! their final places, but the system tablespace keeps the name that it was assembled under, redo and the log
//! of Aria are in a directory of their own ([`private`]), and only this server is told so. Rebuilt ones
//! are all in that directory.
//!
//! Durability is not needed while it runs: if it is cut off, everything starts over from the repository.
//! After it ends, the whole filesystem is synced,
//! because MyISAM and others never sync what they were told to write.

pub(super) mod account;
pub(super) mod private;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use holdfast_formats::Flavor;

use super::{
    keyring::Keyring,
    opened::Opened,
    options::RestoreOptions,
    plan::Plan,
    roots::Roots,
    server_options::{deciding_options, set_aside, undecided},
    target::{Tree, names::REDO_MARIADB},
};
use private::Private;

use crate::{
    error::Result,
    position::Position,
    server::{
        ServerFacts,
        programs::{
            RunAs, RunningServer, SHORT_PLACE, ServerBinary, ServerRun, option_of, own_options, takes_socket,
        },
    },
};

/// The directory for everything of such a server that is not data.
/// In the target, where the right user has access.
const SCRATCH: &str = "#holdfast-prepare";
/// A directory that does not exist, below the private one.
const NO_PLUGINS: &str = "no-plugins";

/// The files, while only our own servers may find them.
pub(super) struct PrivateFiles<'a> {
    /// The data directory.
    pub(super) tree: &'a Tree,
    /// The source.
    pub(super) server: &'a ServerFacts,
    /// The position that the backup is at.
    pub(super) position: &'a Position,
    pub(super) owner: Option<(u32, u32)>,
    pub(super) binary: &'a ServerBinary,
    pub(super) options: &'a RestoreOptions,
    /// Options without which a server does not start on these files, or reads them wrongly.
    server_options: &'a [String],
    /// The directories that they are in.
    places: Vec<PathBuf>,
    /// What is moved out of the way of other servers, if that is not the whole data directory.
    moved: Option<(Keyring<'a>, Private<'a>)>,
}

impl<'a> PrivateFiles<'a> {
    /// Moves what other servers must not find, and puts in place what ours need.
    pub(super) fn enter(
        opened: &'a Opened,
        plan: &'a Plan,
        roots: &'a Roots,
        binary: &'a ServerBinary,
        options: &'a RestoreOptions,
    ) -> Result<Self> {
        let tree = roots.target();
        let keyring = Keyring::enter(tree, opened, options, plan.owner)?;
        let private = Private::enter(tree, plan, opened.server.flavor(), plan.owner)?;
        Ok(Self {
            tree,
            server: &opened.server,
            position: &opened.position,
            owner: plan.owner,
            binary,
            options,
            server_options: &plan.shown.server_options,
            places: roots.paths(),
            moved: Some((keyring, private)),
        })
    }

    /// A data directory where no other server looks for one.
    pub(super) fn elsewhere(
        tree: &'a Tree,
        (server, position): (&'a ServerFacts, &'a Position),
        owner: Option<(u32, u32)>,
        binary: &'a ServerBinary,
        options: &'a RestoreOptions,
        server_options: &'a [String],
    ) -> Self {
        let places = vec![tree.path().to_owned()];
        Self { tree, server, position, owner, binary, options, server_options, places, moved: None }
    }

    /// Moves everything back, still under names with which no server starts.
    pub(super) fn leave(self) -> Result<()> {
        let Some((keyring, private)) = self.moved else { return Ok(()) };
        keyring.leave()?;
        private.leave()
    }

    /// A run of the program that makes the data directory.
    pub(super) fn installation(
        &self,
        scratch_in: &Tree,
        orders: Vec<OsString>,
        stdin: Vec<u8>,
    ) -> Result<ServerRun> {
        let mut arguments: Vec<OsString> =
            vec!["--no-defaults".into(), option_of("--datadir=", self.tree.path())];
        arguments.extend(self.server_options.iter().map(OsString::from));
        arguments.extend(orders);
        arguments.extend(self.options.prepare_options.iter().map(OsString::from));
        self.run(scratch(scratch_in.path()), arguments, stdin, None)
    }

    /// Starts a server. `orders` say what it is to do; the user's own options come last.
    pub(super) fn start(
        &self,
        buffer_pool_bytes: u64,
        orders: Vec<OsString>,
        time_zone: Option<String>,
    ) -> Result<RunningServer> {
        let mut arguments = self.arguments(buffer_pool_bytes);
        arguments.extend(orders);
        arguments.extend(self.options.prepare_options.iter().map(OsString::from));
        self.run(scratch(self.tree.path()), arguments, Vec::new(), time_zone)?.start()
    }

    fn run(
        &self,
        scratch: PathBuf,
        arguments: Vec<OsString>,
        stdin: Vec<u8>,
        time_zone: Option<String>,
    ) -> Result<ServerRun> {
        let binary = self.binary.path.clone();
        let run_as = Some(RunAs::owner_of(self.tree.path())?);
        Ok(ServerRun { binary, arguments, stdin, scratch, run_as, time_zone, writes: self.writes() })
    }

    /// What is recovered and replayed is what a backup or an archive says. So the server writes to its files only,
    /// unless options of the user or keys may have it write elsewhere.
    fn writes(&self) -> Option<Vec<PathBuf>> {
        let writes_no_keys = match &self.moved {
            Some((keyring, _)) => keyring.is_only_read(self.server),
            None => self.server.encryption.key_providers.is_empty(),
        };
        let is_confined = self.options.prepare_options.is_empty() && writes_no_keys;
        is_confined.then(|| self.places.clone())
    }

    /// Where the redo is.
    fn redo_dir(&self) -> PathBuf {
        self.moved.as_ref().map_or_else(|| self.tree.path().to_owned(), |(_, private)| private.path())
    }

    /// A directory that does not exist.
    fn no_plugins(&self) -> PathBuf {
        self.redo_dir().join(NO_PLUGINS)
    }

    /// Its options, except for what it is to do.
    fn arguments(&self, buffer_pool_bytes: u64) -> Vec<OsString> {
        let (server, redo_dir) = (self.server, &*self.redo_dir());
        let mut arguments: Vec<OsString> =
            vec!["--no-defaults".into(), option_of("--datadir=", self.tree.path())];
        arguments.extend(own_options(server.flavor(), buffer_pool_bytes));
        let mut add = |option: String| arguments.push(option.into());
        add("--performance-schema=OFF".to_owned());
        self.server_options.iter().cloned().for_each(&mut add);
        deciding_options(server, self.is_rebuilt()).into_iter().for_each(&mut add);
        if self.moved.is_some() {
            add(format!("--innodb-data-file-path={}", set_aside(&server.innodb.data_file_path)));
            arguments.push(option_of("--innodb-log-group-home-dir=", redo_dir));
        }
        let mut add = |option: String| arguments.push(option.into());
        let redo_size = server.innodb.redo_size;
        match server.flavor() {
            Flavor::MariaDb => {
                // With a size below that of the laid-out redo, recovery calls the log too small while it
                // still holds redo. The server's own next start makes it the size it is configured for.
                let laid_out = std::fs::metadata(redo_dir.join(REDO_MARIADB)).map_or(0, |log| log.len());
                add(format!("--innodb-log-file-size={}", laid_out.max(redo_size)));
                if self.moved.is_some() {
                    arguments.push(option_of("--aria-log-dir-path=", redo_dir));
                }
            }
            Flavor::MySql => {
                // The lines that are judged are logged as notes.
                add("--log-error-verbosity=3".to_owned());
                if !self.needs_plugins() {
                    // The user's components are loaded whatever else is said
                    // (verified), so none may be found.
                    add(format!("--plugin-dir={}", self.no_plugins().display()));
                }
                add(format!("--innodb-redo-log-capacity={redo_size}"));
                // As on the source, whatever this version's default is. If the mode may change, replayed
                // transactions may be of both kinds.
                let (mode, is_consistent) = match gtid_mode(server) {
                    Some("ON") => ("ON", "ON"),
                    Some("ON_PERMISSIVE") => ("ON_PERMISSIVE", "ON"),
                    _ => ("OFF_PERMISSIVE", "OFF"),
                };
                add(format!("--gtid-mode={mode}"));
                add(format!("--enforce-gtid-consistency={is_consistent}"));
            }
        }
        arguments
    }

    /// The option that keeps the server from loading the source's plugins, which could reach other servers or
    /// files; `None` if it cannot read the backup without some. MySQL gets it with its other options.
    pub(super) fn without_plugins(&self) -> Option<OsString> {
        let none = option_of("--plugin-dir=", &self.no_plugins());
        (self.server.flavor() == Flavor::MariaDb && !self.needs_plugins()).then_some(none)
    }

    /// Whether it cannot read or make the files without plugins, or the user names some.
    fn needs_plugins(&self) -> bool {
        let names_some = |option: &String| {
            let option = option.trim_start_matches('-').replace('_', "-");
            ["plugin-load", "early-plugin-load", "plugin-dir"].iter().any(|name| option.starts_with(name))
        };
        needs_plugins(self.server)
            || self.server_options.iter().chain(&self.options.prepare_options).any(names_some)
    }

    /// Whether it has the source's settings for the words of full-text indexes.
    pub(super) fn knows_words(&self) -> bool {
        let deciding = &self.server.sql.deciding;
        !deciding.is_empty()
            && undecided(self.server).is_none()
            && !deciding.keys().any(|name| name.ends_with("_stopword_table"))
    }

    /// Whether its files were made anew, from the rows of a logical backup.
    pub(super) fn is_rebuilt(&self) -> bool {
        self.moved.is_none()
    }

    /// Removes from the log what the server says about missing what it was not to find.
    pub(super) fn forget_absent(&self, log: &mut Vec<String>) {
        if !needs_plugins(self.server) {
            log.retain(|line| !is_of_absent_component(line));
        }
    }
}

/// Whether all of the source's transactions have GTIDs (MySQL; on MariaDB they always do).
pub(super) fn uses_gtids(server: &ServerFacts) -> bool {
    gtid_mode(server) == Some("ON")
}

fn gtid_mode(server: &ServerFacts) -> Option<&str> {
    server.binlog.as_ref()?.gtid_mode.as_deref()
}

/// Whether the source needs plugins: a plugin or a component provides the keys of its files.
fn needs_plugins(server: &ServerFacts) -> bool {
    !server.encryption.key_providers.is_empty()
}

/// Whether a line says that MySQL does not find a component that the
/// source had installed. It continues without.
fn is_of_absent_component(line: &str) -> bool {
    const NO_LIBRARY: &str = "MY-001126 - ";
    const NOT_LOADED: &str = "MY-003529 - ";
    line.contains("[MY-013129]") && (line.contains(NO_LIBRARY) || line.contains(NOT_LOADED))
}

/// Whether a line says that MariaDB does not find a plugin that the source had installed. It continues
/// without; a table or a statement that needs the plugin fails by itself.
pub(super) fn is_of_absent_plugin(line: &str) -> bool {
    line.contains("Can't open shared library") || line.contains("Couldn't load plugin")
}

/// Whether a line is an error of MySQL about the source's channels, which are in its tables, and whose relay
/// logs no backup has. It says nothing about data: no such server replicates from anybody.
pub(super) fn is_of_replication(line: &str) -> bool {
    line.contains("[ERROR]") && line.contains("[Repl]")
}

/// Where such a server keeps what is not data.
fn scratch(target: &Path) -> PathBuf {
    let scratch = target.join(SCRATCH);
    if takes_socket(&scratch) {
        scratch
    } else {
        // In a container, the next process has the pid of the one that was killed there.
        let (pid, now) = (rustix::process::getpid().as_raw_nonzero(), jiff::Timestamp::now());
        let name = format!("holdfast-prepare-{pid}-{:x}", now.as_nanosecond());
        Path::new(SHORT_PLACE).join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a killed process leaves in a shared directory is in nobody's way.
    #[test]
    fn scratch_directories() {
        let deep = Path::new("/").join("x".repeat(100));
        assert_ne!(scratch(&deep), scratch(&deep));
        assert_eq!(scratch(Path::new("/srv/db1")), Path::new("/srv/db1").join(SCRATCH));
    }
}
