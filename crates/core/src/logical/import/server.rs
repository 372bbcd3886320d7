//! The server that executes a dump: made for it and thrown away afterwards, with nothing to lose and nothing
//! to reach.
//!
//! It has no network, no binlog, no plugins, no persisted settings, and no files that statements can read or
//! write; it runs as an unprivileged user if we are root, dies with us, and writes nothing durably. It has
//! two accounts whose names and passwords nobody knows: one for us, and one for the dump, which may make and
//! fill tables and programs in the databases that the dump makes, and nothing else. Accounts that own the
//! dump's programs are made without a way to log in, and with no more rights than that; no other account is
//! left, because programs run with the rights of their owner.
//!
//! Everything is in one directory, whose lock tells whether it is still in use: the remains of a killed
//! import are removed by the next one in the same place.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use holdfast_formats::Flavor;
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::{
    data_directory::refuse_inside,
    error::{Context, Error, ErrorKind, Result},
    event::Cancel,
    logical::{
        selection::is_like_own_schema,
        sql::{quoted, quoted_text},
    },
    server::{
        ConnectOptions, Purpose, ServerVersion, Session,
        programs::{
            OwnAccount, RunAs, RunningServer, SHORT_PLACE, ServerBinary, ServerRun, drop_installed_accounts,
            install, is_servers_own, option_of, own_options, takes_socket,
        },
    },
    work_place::{abandoned, lock_new},
};

/// Prefix of the directories of imports.
const PREFIX: &str = "holdfast-import-";
/// Directory for everything that is neither data nor given to the server.
const SCRATCH: &str = "scratch";
/// Room to leave for other users of the file system.
const ROOM_BYTES_MIN: u64 = 256 << 20;
/// Longest statement: the servers' own limit.
pub(super) const STATEMENT_BYTES_MAX: usize = (1 << 30) - 16;
/// Rights of an account that owns programs and views, in the databases of the dump.
const DEFINER_RIGHTS: &str = "SELECT, INSERT, UPDATE, DELETE, EXECUTE, TRIGGER, EVENT, SHOW VIEW, REFERENCES";
/// Rights of the dump's own account there.
const LOADER_RIGHTS: &str = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, LOCK TABLES, CREATE VIEW, \
                             SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EXECUTE, EVENT, TRIGGER";
/// Databases of the server that a dump's views may show. The one with the accounts is not among them.
const SHOWN_SCHEMAS: [&str; 2] = ["performance_schema", "sys"];
/// Prefix of a name that denotes a directory as it is: that of another database.
const RAW_NAME: &str = "#mysql50#";

/// How to make such a server.
pub(super) struct ServerRequest<'a> {
    pub(super) binary: &'a ServerBinary,
    /// Where to make its directory.
    pub(super) work_dir: &'a Path,
    /// The user that it runs as, if we are root.
    pub(super) run_as: Option<RunAs>,
    pub(super) memory_bytes: u64,
    /// The user's own options, which come last.
    pub(super) options: &'a [String],
}

impl ServerRequest<'_> {
    /// Gives the server the files that we have made for it.
    fn give(&self, path: &Path) -> io::Result<()> {
        match self.run_as {
            Some(RunAs { uid, gid }) if geteuid().is_root() => chown(path, Some(uid), Some(gid)),
            _ => Ok(()),
        }
    }
}

/// A running server of our own. Dropping it kills the process and removes its directory.
pub(super) struct PrivateServer {
    // Dropped in this order: the process goes before its files.
    running: RunningServer,
    admin: OwnAccount,
    loader: OwnAccount,
    flavor: Flavor,
    /// Owners of programs, as statements name them.
    definers: BTreeSet<String>,
    /// Databases of the dump, as grants name them.
    databases: BTreeSet<String>,
    home: Home,
}

/// The server's directory.
struct Home {
    dir: TempDir,
    /// The place of its socket and logs, if its own path is too long for them.
    short: Option<TempDir>,
    _locks: Vec<File>,
}

impl Home {
    fn make(wanted: &ServerRequest<'_>) -> Result<Home> {
        let shown = wanted.work_dir.display();
        let parent = wanted.work_dir.canonicalize();
        let parent = parent.context_kind(ErrorKind::Usage, format!("look at {shown}"))?;
        refuse_inside(&parent)?;
        sweep(&parent);
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&parent);
        let dir = dir.context(format!("make a directory in {shown}"))?;
        let make = || -> io::Result<File> {
            let lock = lock_new(dir.path())?;
            for name in ["data", "files"] {
                let path = dir.path().join(name);
                fs::create_dir(&path)?;
                fs::set_permissions(&path, Permissions::from_mode(0o700))?;
                wanted.give(&path)?;
            }
            if wanted.run_as.is_some_and(|run_as| run_as.uid != geteuid().as_raw()) {
                // Ours, and passed through by the server on the way to its own.
                fs::set_permissions(dir.path(), Permissions::from_mode(0o711))?;
            }
            Ok(lock)
        };
        let lock = make().context(format!("prepare {}", dir.path().display()))?;
        let mut locks = vec![lock];
        let mut short = None;
        if !takes_socket(&dir.path().join(SCRATCH)) {
            sweep(Path::new(SHORT_PLACE));
            let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(SHORT_PLACE);
            let made = made.context(format!("make a directory in {SHORT_PLACE}"))?;
            let mode = fs::set_permissions(made.path(), Permissions::from_mode(0o711));
            mode.context(format!("prepare {}", made.path().display()))?;
            locks.push(lock_new(made.path()).context(format!("prepare {}", made.path().display()))?);
            short = Some(made);
        }
        Ok(Home { dir, short, _locks: locks })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn option(&self, option: &str, name: &str) -> OsString {
        option_of(option, &self.path(name))
    }

    fn scratch(&self) -> PathBuf {
        self.short.as_ref().unwrap_or(&self.dir).path().join(SCRATCH)
    }
}

/// Removes the remains of killed imports. Any that cannot be removed are in nobody's way.
fn sweep(parent: &Path) {
    for (path, _lock) in abandoned(parent, PREFIX, None) {
        drop(fs::remove_dir_all(path));
    }
}

/// Chooses the program to execute a dump: one of the dump's flavor and release series, or the one that is
/// named.
pub(super) fn choose(
    explicit: Option<&Path>,
    flavor: Flavor,
    version: Option<&ServerVersion>,
    directories: &[PathBuf],
) -> Result<ServerBinary> {
    let binary = match (explicit, version) {
        (Some(path), _) => ServerBinary::probe(path)?,
        (None, Some(version)) => {
            ServerBinary::find(None, &ServerVersion { patch: 0, ..version.clone() }, directories)
                .map_err(|error| program_hint(error, flavor, Some(version)))?
        }
        (None, None) => {
            let text = "the dump does not say which server version it is from";
            return Err(program_hint(Error::new(ErrorKind::Usage, text), flavor, None));
        }
    };
    let (shown, found) = (binary.path.display(), &binary.version);
    if found.flavor != flavor {
        let text = format!("the dump is of {flavor}, and {shown} is {found}");
        return Err(Error::new(ErrorKind::Usage, text).hinted(
            "name a server program of the same kind (--server-binary); or say by --flavor that the other one is to execute it",
        ));
    }
    if let (None, Some(version)) = (explicit, version)
        && !found.same_series(version)
    {
        let text = format!("the dump is of {version}, and the only server program here is {shown}, {found}");
        return Err(program_hint(Error::failed(text), flavor, Some(version)));
    }
    Ok(binary)
}

fn program_hint(error: Error, flavor: Flavor, version: Option<&ServerVersion>) -> Error {
    let which =
        version.map_or_else(|| flavor.to_string(), |version| format!("{flavor} {}", version.series()));
    error.hinted(format!(
        "a server program executes the dump, in private: install {which}, or name one by --server-binary, be it of another version"
    ))
}

/// A version as servers number it in comments.
pub(super) fn version_number(version: &ServerVersion) -> u32 {
    let (major, minor, patch) = version.number();
    u32::from(major) * 10_000 + u32::from(minor) * 100 + u32::from(patch)
}

impl PrivateServer {
    /// Makes and starts a server.
    pub(super) fn start(wanted: &ServerRequest<'_>, cancel: &Cancel) -> Result<PrivateServer> {
        let home = Home::make(wanted)?;
        let flavor = wanted.binary.version.flavor;
        let making = |orders, stdin| Ok(run(wanted, &home, orders, stdin));
        install(wanted.binary, &making, "make the private server", &|_| false, cancel)?;
        let (admin, loader) = (OwnAccount::random()?, OwnAccount::random()?);
        write_init_file(&home, wanted, &init_sql(flavor, &admin, &loader))?;
        let run = run(wanted, &home, serving(wanted, &home), Vec::new());
        let mut running = run.start()?;
        admin.connect(&mut running, "start the private server", cancel)?;
        let (definers, databases) = (BTreeSet::new(), BTreeSet::new());
        let server = PrivateServer { running, admin, loader, flavor, definers, databases, home };
        // It holds passwords, and has been read.
        drop(fs::remove_file(server.home.path("init.sql")));
        server.drop_accounts()?;
        if flavor == Flavor::MySql {
            server.admin()?.exec("ALTER INSTANCE DISABLE INNODB REDO_LOG")?;
        }
        Ok(server)
    }

    /// How to reach it with all rights.
    pub(super) fn connect(&self) -> ConnectOptions {
        self.admin.options(&self.running)
    }

    fn admin(&self) -> Result<Session> {
        Session::open(&self.connect(), Purpose::Control)
    }

    /// A session for statements of the dump.
    pub(super) fn loader(&self) -> Result<Session> {
        Session::open(&self.loader.options(&self.running), Purpose::Load)
    }

    /// Adds what the server says to an error, if it has ended.
    pub(super) fn explain(&mut self, error: Error) -> Error {
        if self.running.has_ended() { self.running.explain(error, "the private server ended") } else { error }
    }

    /// Drops all accounts that the installation has made, except those that the server itself needs.
    fn drop_accounts(&self) -> Result<()> {
        let mut admin = self.admin()?;
        drop_installed_accounts(&mut admin, &[self.admin.name(), self.loader.name()])?;
        for schema in SHOWN_SCHEMAS {
            admin.exec(&format!("GRANT SELECT ON {schema}.* TO {}", self.loader.quoted()))?;
        }
        Ok(())
    }

    /// Lets the dump work in a database, which need not exist yet.
    pub(super) fn open_database(&mut self, name: &str) -> Result<()> {
        if is_like_own_schema(name) || name.to_ascii_lowercase().starts_with(RAW_NAME) {
            return Err(Error::new(ErrorKind::Usage, format!("no dump makes a database called {name}")));
        }
        let database = quoted(&as_pattern(name));
        if self.databases.contains(&database) {
            return Ok(());
        }
        let mut admin = self.admin()?;
        admin.exec(&format!("GRANT {LOADER_RIGHTS} ON {database}.* TO {}", self.loader.quoted()))?;
        if self.flavor == Flavor::MariaDb {
            admin.exec(&format!("GRANT DELETE HISTORY ON {database}.* TO {}", self.loader.quoted()))?;
        }
        for definer in &self.definers {
            admin.exec(&format!("GRANT {DEFINER_RIGHTS} ON {database}.* TO {definer}"))?;
        }
        self.databases.insert(database);
        Ok(())
    }

    /// Fails if its files leave too little room on the file system for anyone else.
    pub(super) fn check_room(&self) -> Result<()> {
        let dir = self.home.dir.path();
        let space = rustix::fs::statvfs(dir).map_err(io::Error::from);
        let space = space.context(format!("ask for the room in {}", dir.display()))?;
        if space.f_bavail.saturating_mul(space.f_frsize) >= ROOM_BYTES_MIN {
            return Ok(());
        }
        let text = format!("there is no room left in {} for what the dump makes", dir.display());
        Err(Error::failed(text).hinted(
            "it takes about as much as the dump uncompressed, and its indexes: name another place by --work-dir",
        ))
    }

    /// Makes sure that the account that something belongs to exists, and was made by us.
    pub(super) fn make_definer(&mut self, name: &str, host: Option<&str>) -> Result<()> {
        let is_role = host.is_none() && self.flavor == Flavor::MariaDb;
        let definer = match host {
            None if is_role => quoted_text(name),
            // Servers compare hosts without regard to case.
            host => format!("{}@{}", quoted_text(name), quoted_text(&host.unwrap_or("%").to_lowercase())),
        };
        if self.definers.contains(&definer) {
            return Ok(());
        }
        if is_servers_own(name) || name == self.admin.name() || name == self.loader.name() {
            let text = format!("it belongs to {definer}, an account of the server's own");
            return Err(Error::new(ErrorKind::Usage, text).hinted(
                "a program owned by that account could do anything: give it another DEFINER in the dump",
            ));
        }
        let mut admin = self.admin()?;
        // Fails if it exists: it was not made by us then, and may do more than it should.
        match is_role {
            true => admin.exec(&format!("CREATE ROLE {definer}"))?,
            false => admin.exec(&format!("CREATE USER {definer} ACCOUNT LOCK"))?,
        }
        for schema in SHOWN_SCHEMAS {
            admin.exec(&format!("GRANT SELECT ON {schema}.* TO {definer}"))?;
        }
        for database in &self.databases {
            admin.exec(&format!("GRANT {DEFINER_RIGHTS} ON {database}.* TO {definer}"))?;
        }
        self.definers.insert(definer);
        Ok(())
    }
}

/// A database's name in a grant, where names are patterns.
fn as_pattern(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for letter in name.chars() {
        if matches!(letter, '\\' | '_' | '%') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

/// A run of the program, with the options that it gets each time, and while it is made.
fn run(wanted: &ServerRequest<'_>, home: &Home, more: Vec<OsString>, stdin: Vec<u8>) -> ServerRun {
    let mut arguments: Vec<OsString> = vec!["--no-defaults".into(), home.option("--datadir=", "data")];
    arguments.extend(more);
    arguments.extend(wanted.options.iter().map(OsString::from));
    ServerRun {
        binary: wanted.binary.path.clone(),
        arguments,
        stdin,
        scratch: home.scratch(),
        run_as: wanted.run_as,
        time_zone: None,
        writes: wanted.options.is_empty().then(|| vec![home.dir.path().to_owned()]),
    }
}

/// The options that it serves with.
fn serving(wanted: &ServerRequest<'_>, home: &Home) -> Vec<OsString> {
    let flavor = wanted.binary.version.flavor;
    let mut options = own_options(flavor, wanted.memory_bytes);
    options.extend(
        ["--skip-symbolic-links", "--local-infile=ON", "--max-allowed-packet=1G"].map(OsString::from),
    );
    options.push(home.option("--init-file=", "init.sql"));
    // It does not exist: whatever is not built in is not loaded.
    options.push(home.option("--plugin-dir=", "no-plugins"));
    if flavor == Flavor::MariaDb {
        options.push("--performance-schema=OFF".into());
        // Nobody reports on rows that are inserted later.
        options.push("--loose-max-delayed-threads=0".into());
        options.push(home.option("--secure-file-priv=", "files"));
    }
    options
}

/// Makes our accounts, and leaves no others that can do anything.
fn init_sql(flavor: Flavor, admin: &OwnAccount, loader: &OwnAccount) -> String {
    // Programs belong to whomever the dump names, except to accounts of the server's own.
    let rights = match flavor {
        Flavor::MariaDb => "SET USER",
        Flavor::MySql => "SET_ANY_DEFINER, ALLOW_NONEXISTENT_DEFINER, SESSION_VARIABLES_ADMIN",
    };
    let (admin, loader) = (admin.creation(), loader.creation_with(rights));
    format!("{admin}{loader}DROP USER IF EXISTS 'root'@'localhost';\n")
}

fn write_init_file(home: &Home, wanted: &ServerRequest<'_>, sql: &str) -> Result<()> {
    let path = home.path("init.sql");
    let write = || -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(sql.as_bytes())?;
        wanted.give(&path)
    };
    write().context(format!("write {}", path.display()))
}
