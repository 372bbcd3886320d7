//! Letting the server recover the restored files: its own crash recovery, once, with nothing else.
//!
//! The server runs without network, binlog, event scheduler, persisted settings, plugins of the user's or general
//! logs, with a temporary directory of its own, as the user the files belong to. What it logged is then judged
//! ([`super::judge`]): it must have arrived exactly where the backup ends.
//!
//! Nobody else's server can start on the files meanwhile: the system tablespace keeps the name that it was assembled
//! under, redo and the log of Aria are in a directory of their own ([`super::private`]), and only this server is told so. A
//! process that is killed here leaves a directory on which none starts.
//!
//! Durability while it runs is not needed: a recovery that is cut off is begun again from the repository.

use std::{
    ffi::OsString,
    fs::File,
    io::Write,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
};

use holdfast_formats::{
    Flavor,
    redo::mariadb::{DATA_START, LogHeader},
};

use super::{
    judge::{Expected, FalseAlarms, judge, recovered_up_to},
    keyring::{self, Keyring},
    layout::{PARTIAL, REDO_MARIADB, own_path, private_of},
    opened::Opened,
    options::RestoreOptions,
    plan::Plan,
    private::Private,
    report::{Prepared, set_gtids},
    roots::Roots,
    target::io_failed,
};
use crate::{
    error::{Context, Error, Result},
    event::{Cancel, Event, Listener},
    physical::{BinlogPosition, CapturedRedo, Position},
    points::point,
    server::{
        ServerFacts,
        process::{Network, RunAs, ServerBinary, ServerExit, ServerRun},
    },
};

/// Everything of the recovering server that is not data. In the target, where the right user can go.
const SCRATCH: &str = "#holdfast-prepare";
/// Where it is instead if a socket's path in the target would be too long for the kernel.
const SCRATCH_SHORT: &str = "/tmp";
const SOCKET_PATH_MAX: usize = 100;
/// A directory that is nowhere, in the private one.
const NO_PLUGINS: &str = "no-plugins";
/// What MySQL executes once it is up.
const INIT_FILE: &str = "#holdfast-init.sql";

/// Sets the GTIDs of the position, where the source used them, then stops.
fn init_file(server: &ServerFacts, position: &Position) -> Vec<u8> {
    let gtids = if uses_gtids(server) { set_gtids(&server.version, position) } else { None };
    let statements = gtids.into_iter().flatten().chain(["SHUTDOWN".to_owned()]);
    statements.flat_map(|statement| format!("{statement};\n").into_bytes()).collect()
}

/// Who has the keys of the source's files is a plugin or a component.
fn needs_plugins(server: &ServerFacts) -> bool {
    !server.encryption.key_providers.is_empty()
}

/// What MySQL says when it does not find a component that the source had installed. It goes on without.
fn is_of_absent_component(line: &str) -> bool {
    const NO_LIBRARY: &str = "MY-001126 - ";
    const NOT_LOADED: &str = "MY-003529 - ";
    line.contains("[MY-013129]") && (line.contains(NO_LIBRARY) || line.contains(NOT_LOADED))
}

/// What MySQL says of channels of the source, which are in its tables, and whose relay logs no backup has. It tells nothing
/// of data: the recovering server replicates nothing.
fn is_of_replication(line: &str) -> bool {
    line.contains("[ERROR]") && line.contains("[Repl]")
}

fn uses_gtids(server: &ServerFacts) -> bool {
    server.binlog.as_ref().and_then(|binlog| binlog.gtid_mode.as_deref()) == Some("ON")
}

const BUFFER_POOL_MIN: u64 = 128 << 20;
const BUFFER_POOL_MAX: u64 = 1 << 30;
/// A server does not start with less.
const BUFFER_POOL_LEAST: u64 = 32 << 20;

/// From a server's start to its end, without redo.
const MARIADB_START_MS: u64 = 500;
const MYSQL_START_MS: u64 = 2000;
const MARIADB_REDO_BYTES_PER_MS: u64 = 500_000;
const MYSQL_REDO_BYTES_PER_MS: u64 = 150_000;

/// The buffer pool of the recovery: recovery keeps parsed redo in it, and pages of it are read once each.
pub(super) fn buffer_pool_bytes(options: &RestoreOptions, redo_bytes: u64) -> u64 {
    let wanted = options
        .prepare_memory_bytes
        .unwrap_or_else(|| redo_bytes.saturating_mul(2).clamp(BUFFER_POOL_MIN, BUFFER_POOL_MAX));
    let info = rustix::system::sysinfo();
    let ram = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    wanted.min(ram / 2).max(BUFFER_POOL_LEAST) >> 20 << 20
}

/// The least time that recovery takes: what a server needs to start and to end, and to read and apply so much redo where
/// all pages that it changes fit the buffer pool (measured with 20 GiB, `docs/restore.md`).
pub(super) fn least_ms(flavor: Flavor, redo_bytes: u64) -> u64 {
    let (start_ms, bytes_per_ms) = match flavor {
        Flavor::MariaDb => (MARIADB_START_MS, MARIADB_REDO_BYTES_PER_MS),
        Flavor::MySql => (MYSQL_START_MS, MYSQL_REDO_BYTES_PER_MS),
    };
    start_ms + redo_bytes / bytes_per_ms
}

/// Options without which a server does not start on these files, or reads them wrongly.
pub(super) fn format_options(server: &ServerFacts) -> Vec<String> {
    let innodb = &server.innodb;
    let mut options = vec![
        format!("--innodb-page-size={}", innodb.page_size),
        format!("--innodb-data-file-path={}", at_home(&innodb.data_file_path)),
        format!("--lower-case-table-names={}", server.sql.lower_case_table_names),
    ];
    if let Some(count) = innodb.undo_tablespaces {
        options.push(format!("--innodb-undo-tablespaces={count}"));
    }
    if let Some(aria) = &server.aria {
        options.push(format!("--aria-block-size={}", aria.block_size));
    }
    // What was ciphertext at the source is not written in clear.
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

/// `innodb_data_file_path` with every file in the data directory.
fn at_home(data_file_path: &str) -> String {
    let home = |file: &str| file.rsplit_once('/').map_or(file, |(_, name)| name).to_owned();
    data_file_path.split(';').map(home).collect::<Vec<_>>().join(";")
}

/// `innodb_data_file_path` with every file under the name that it has until all is done.
fn set_aside(data_file_path: &str) -> String {
    let aside = |file: &str| {
        let (name, rest) = file.split_once(':').map_or((file, None), |(name, rest)| (name, Some(rest)));
        let rest = rest.map(|rest| format!(":{rest}")).unwrap_or_default();
        format!("{name}{PARTIAL}{rest}")
    };
    at_home(data_file_path).split(';').map(aside).collect::<Vec<_>>().join(";")
}

fn arguments(
    server: &ServerFacts,
    datadir: &Path,
    private: &Path,
    server_options: &[String],
    buffer_pool_bytes: u64,
    extra: &[String],
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--no-defaults".into(), option_of("--datadir=", datadir)];
    let mut add = |option: String| arguments.push(option.into());
    for option in [
        "--skip-networking",
        "--skip-log-bin",
        "--skip-slave-start",
        "--general-log=OFF",
        "--slow-query-log=OFF",
        "--event-scheduler=OFF",
        "--performance-schema=OFF",
        "--innodb-doublewrite=OFF",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-load-at-startup=OFF",
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
    ] {
        add(option.to_owned());
    }
    add(format!("--innodb-buffer-pool-size={buffer_pool_bytes}"));
    server_options.iter().cloned().for_each(&mut add);
    add(format!("--innodb-data-file-path={}", set_aside(&server.innodb.data_file_path)));
    arguments.push(option_of("--innodb-log-group-home-dir=", private));
    let mut add = |option: String| arguments.push(option.into());
    let redo_size = server.innodb.redo_size;
    match server.version.flavor {
        Flavor::MariaDb => {
            add("--bootstrap".to_owned());
            add("--skip-grant-tables".to_owned());
            add("--loose-wsrep-on=OFF".to_owned());
            // Waits for the rollback of unfinished transactions.
            add("--innodb-fast-shutdown=0".to_owned());
            // With less than what the captured redo was laid out in, recovery calls the log too small while it
            // still holds redo. The server's own next start makes it the size it is configured for.
            let laid_out = std::fs::metadata(private.join(REDO_MARIADB)).map_or(0, |log| log.len());
            add(format!("--innodb-log-file-size={}", laid_out.max(redo_size)));
            arguments.push(option_of("--aria-log-dir-path=", private));
        }
        Flavor::MySql => {
            let init = option_of("--init-file=", &datadir.join(INIT_FILE));
            for option in [
                "--persisted-globals-load=OFF",
                // Loads no plugins and functions of the user's: the backup would choose code that runs here.
                "--skip-grant-tables",
                "--mysqlx=OFF",
                // The lines that are judged are notes.
                "--log-error-verbosity=3",
                "--secure-file-priv=NULL",
            ] {
                add(option.to_owned());
            }
            if !needs_plugins(server) {
                // Components of the user's are loaded all the same (verified), so there are none to be found.
                add(format!("--plugin-dir={}", private.join(NO_PLUGINS).display()));
            }
            add(format!("--innodb-redo-log-capacity={redo_size}"));
            if uses_gtids(server) {
                add("--gtid-mode=ON".to_owned());
                add("--enforce-gtid-consistency=ON".to_owned());
            }
            arguments.push(init);
        }
    }
    arguments.extend(extra.iter().map(OsString::from));
    arguments
}

fn option_of(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

/// Lets `binary` recover the target.
pub(super) fn run(
    opened: &Opened,
    plan: &Plan,
    roots: &Roots,
    binary: &ServerBinary,
    options: &RestoreOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<Prepared> {
    let tree = roots.target();
    let flavor = opened.server.version.flavor;
    let init = own_path(INIT_FILE)?;
    if flavor == Flavor::MySql {
        let write =
            || tree.create_file(&init, 0o644)?.write_all(&init_file(&opened.server, &opened.position));
        write().map_err(|error| io_failed("write", tree.path_of(&init), error))?;
    }
    let buffer_pool =
        plan.shown.prepare.as_ref().map_or(BUFFER_POOL_MIN, |prepare| prepare.buffer_pool_bytes);
    let run_as = RunAs::owner_of(tree.path())?;
    let keyring = Keyring::enter(tree, opened, options, plan.owner)?;
    let private = Private::enter(tree, plan, flavor, plan.owner)?;
    point("restore.private.entered");
    let server_run = ServerRun {
        binary: binary.path.clone(),
        arguments: arguments(
            &opened.server,
            tree.path(),
            &private.path(),
            &plan.shown.server_options,
            buffer_pool,
            &options.prepare_options,
        ),
        stdin: Vec::new(),
        scratch: scratch(tree.path()),
        run_as: Some(run_as),
    };
    let running = server_run.start()?;
    point("restore.recovering");
    let mut exit = running.wait_and_tell(cancel, &mut |log| tell_progress(opened, log, listener))?;
    if flavor == Flavor::MySql {
        exit.log.retain(|line| !is_of_replication(line));
    }
    if !needs_plugins(&opened.server) {
        exit.log.retain(|line| !is_of_absent_component(line));
    }
    let recovered = check(opened, &exit, roots).map_err(|error| hinted(error, opened, options))?;
    if let Network::Shared(why) = &exit.network {
        let text =
            format!("the recovering server had no network of its own ({why}); its options kept it off");
        listener.event(Event::Note { text });
    }
    compare_binlog(opened.position.binlog.as_ref(), recovered.binlog.as_ref(), listener);
    if flavor == Flavor::MySql {
        tree.remove(&init).map_err(|error| io_failed("remove", tree.path_of(&init), error))?;
    }
    point("restore.recovered");
    keyring.leave()?;
    private.leave()?;
    Ok(Prepared {
        program: binary.path.clone(),
        version: binary.version.to_string(),
        lsn: recovered.lsn.0,
        binlog: recovered.binlog,
        rows_rolled_back: recovered.rows_rolled_back,
        ms: u64::try_from(exit.duration.as_millis()).unwrap_or(u64::MAX),
    })
}

/// Tells how much of the redo is recovered.
fn tell_progress(opened: &Opened, log: &[String], listener: &dyn Listener) {
    let (begin, end) = (opened.redo.checkpoint_lsn(), opened.redo.stop_lsn());
    let reached = recovered_up_to(opened.server.version.flavor, &log.join("\n"));
    if let Some(bytes_done) = reached.and_then(|reached| reached.min(end).bytes_since(begin)) {
        let bytes_total = end.bytes_since(begin).unwrap_or(0);
        listener.event(Event::Progress { bytes_done, bytes_total });
    }
}

fn scratch(target: &Path) -> PathBuf {
    let scratch = target.join(SCRATCH);
    if scratch.as_os_str().as_bytes().len() <= SOCKET_PATH_MAX {
        scratch
    } else {
        // In a container, the next process has the number of the one that was killed there.
        let (pid, now) = (rustix::process::getpid().as_raw_nonzero(), jiff::Timestamp::now());
        let name = format!("holdfast-prepare-{pid}-{:x}", now.as_nanosecond());
        Path::new(SCRATCH_SHORT).join(name)
    }
}

fn check(opened: &Opened, exit: &ServerExit, roots: &Roots) -> Result<super::judge::Recovered> {
    let log = exit.log.join("\n");
    let false_alarms = FalseAlarms::of(&log);
    exit.success("recover the restored files", &|line| false_alarms.has(line))?;
    let expected = Expected {
        flavor: opened.server.version.flavor,
        stop_lsn: opened.redo.stop_lsn(),
        precision: opened.position.precision,
    };
    let recovered = judge(&log, &expected)
        .map_err(|refused| Error::failed("recover the restored files").caused_by(refused))?;
    if let CapturedRedo::MariaDb { .. } = opened.redo {
        check_clean_log(roots)?;
    }
    Ok(recovered)
}

/// MariaDB does not log that it has shut down; its redo log shows it.
fn check_clean_log(roots: &Roots) -> Result<()> {
    let tree = roots.target();
    let path = private_of(&own_path(REDO_MARIADB)?)?;
    let failed = |error| io_failed("read", tree.path_of(&path), error);
    let Some(file) = tree.open_file(&path).map_err(failed)? else {
        return Err(Error::failed("the recovered server left no redo log"));
    };
    let file: File = file;
    let mut prefix = vec![0; DATA_START as usize];
    file.read_exact_at(&mut prefix, 0).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let header = LogHeader::parse(&prefix, size).context("read the recovered server's redo log")?;
    let checkpoint = header.checkpoint();
    if checkpoint.lsn == checkpoint.end {
        Ok(())
    } else {
        Err(Error::failed(format!(
            "the recovered server did not shut down in good order: its redo log goes on after the checkpoint at {}",
            checkpoint.lsn
        )))
    }
}

/// Says what may be missing where the source had keys and the recovering server was not told of any.
fn hinted(error: Error, opened: &Opened, options: &RestoreOptions) -> Error {
    let encryption = &opened.server.encryption;
    let was_told = !options.prepare_options.is_empty() || options.keyring.is_some();
    if encryption.key_providers.is_empty() || was_told || error.hint().is_some() {
        return error;
    }
    let providers = encryption.key_providers.join(", ");
    let file = encryption.key_file.as_ref().map_or(String::new(), |file| format!(" ({})", file.display()));
    let how = match keyring::is_file(opened) {
        true => {
            "name a copy of that file with --keyring, and see that this server program loads the component"
        }
        false => "give the recovering server the options for it with --prepare-option",
    };
    error.hinted(format!(
        "the source had its keys from {providers}{file}, which is not part of a backup: {how}"
    ))
}

/// InnoDB stores the position of its own last transaction; what other engines wrote after it is not in it. So the
/// server's may be before the backup's, and not after it.
fn compare_binlog(
    recorded: Option<&BinlogPosition>,
    found: Option<&BinlogPosition>,
    listener: &dyn Listener,
) {
    let (Some(recorded), Some(found)) = (recorded, found) else { return };
    if (&found.file, found.offset) > (&recorded.file, recorded.offset) {
        let text = format!(
            "the recovered server remembers binlog position {}:{}, later than the backup's {}:{}; this is normal only \
             if the source's binlogs were begun anew (RESET MASTER)",
            found.file, found.offset, recorded.file, recorded.offset
        );
        listener.event(Event::Warning { text });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

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

    /// What a killed process leaves in a directory of all is in nobody's way.
    #[test]
    fn scratch_directories() {
        let deep = Path::new("/").join("x".repeat(SOCKET_PATH_MAX));
        assert_ne!(scratch(&deep), scratch(&deep));
        assert_eq!(scratch(Path::new("/srv/db1")), Path::new("/srv/db1").join(SCRATCH));
    }

    /// The buffer pool follows the redo, within bounds, and the user's word counts.
    #[test]
    fn buffer_pool() {
        let mut options = RestoreOptions::new("x");
        assert_eq!(buffer_pool_bytes(&options, 0), BUFFER_POOL_MIN);
        assert_eq!(buffer_pool_bytes(&options, 100 << 20), 200 << 20);
        assert_eq!(buffer_pool_bytes(&options, u64::MAX), BUFFER_POOL_MAX);
        options.prepare_memory_bytes = Some((64 << 20) + 5);
        assert_eq!(buffer_pool_bytes(&options, 0), 64 << 20);
        options.prepare_memory_bytes = Some(u64::MAX);
        let info = rustix::system::sysinfo();
        assert!(buffer_pool_bytes(&options, 0) <= info.totalram as u64 * u64::from(info.mem_unit) / 2);
    }
}
