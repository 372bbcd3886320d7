//! Lets the server recover the restored files: its own crash recovery, once, with nothing else.
//!
//! The server runs as [`super::own_server`] says, without the user's plugins, as the user who owns the files.
//! What it logged is then judged ([`judge`](mod@judge)): recovery must have ended exactly where the backup
//! ends. If the process is killed here, it leaves a directory on which no server starts.

mod judge;
mod kept;
mod standstill;
mod undecided;

use std::{ffi::OsString, fs::File, io::Write, os::unix::fs::FileExt, time::Instant};

use holdfast_formats::{
    Flavor,
    redo::mariadb::{DATA_START, LogHeader},
};
use holdfast_repo::format::item::ItemPath;

use super::{
    buffer_pool::{BUFFER_POOL_DEFAULT_MIN_BYTES, half_of_ram_bytes},
    continuing::set_gtids,
    done::Prepared,
    keyring,
    opened::Opened,
    options::RestoreOptions,
    own_server::{PrivateFiles, is_of_replication, uses_gtids},
    part::{MissingTablespaces, missing_tablespaces},
    plan::Plan,
    roots::Roots,
    target::{
        Tree, io_failed,
        names::{REDO_MARIADB, own_path, private_of},
    },
};
use judge::{Expected, FalseAlarms, Recovered, judge, recovered_up_to};
use standstill::StandstillWatch;
use undecided::Undecided;
pub(super) use undecided::{BY_HAND, may_be_undecided};

use crate::{
    captured_redo::CapturedRedo,
    error::{Context, Error, Result},
    event::{Cancel, Event, Listener},
    points::point,
    position::Position,
    server::{
        ServerFacts,
        programs::{Network, ServerExit, option_of},
        status::BinlogPosition,
    },
};

/// What MySQL executes once it has recovered the files. Not the file of [`super::own_server::account`].
const INIT_FILE: &str = "#holdfast-recovered.sql";

/// Statements that set the GTIDs of the position, if the source used them, and then stop the server.
fn init_file(server: &ServerFacts, position: &Position) -> Vec<u8> {
    let gtids = if uses_gtids(server) { set_gtids(&server.version, position) } else { None };
    let statements = gtids.into_iter().flatten().chain(["SHUTDOWN".to_owned()]);
    statements.flat_map(|statement| format!("{statement};\n").into_bytes()).collect()
}

/// The setting of MySQL with which a recovery hardly ever comes to a standstill. It costs time: pages are
/// then recovered by one thread.
const ONE_READER: &str = "--innodb-read-io-threads=1";
/// How often a recovery is started with that setting and all the memory that it may have. Each takes some
/// progress along: the pages that the one before it has written.
const CAREFUL_ATTEMPTS: u32 = 3;

fn orders(flavor: Flavor, tree: &Tree, init: &ItemPath) -> Vec<OsString> {
    // Loads none of the user's plugins and functions: otherwise the backup would choose code that runs here.
    // With a slow shutdown, the server waits for the rollback of unfinished transactions;
    // otherwise it stops between two of them.
    let mut orders = vec!["--skip-grant-tables".into(), "--innodb-fast-shutdown=0".into()];
    match flavor {
        Flavor::MariaDb => orders.push("--bootstrap".into()),
        Flavor::MySql => orders.push(option_of("--init-file=", &tree.path_of(init))),
    }
    orders
}

/// Lets the server recover the target.
pub(super) fn run(
    files: &PrivateFiles<'_>,
    (opened, plan, roots): (&Opened, &Plan, &Roots),
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<Prepared> {
    let PrivateFiles { tree, options, .. } = files;
    let flavor = opened.server.version.flavor;
    let init = own_path(INIT_FILE)?;
    if flavor == Flavor::MySql {
        let write =
            || tree.create_file(&init, 0o644)?.write_all(&init_file(&opened.server, &opened.position));
        write().map_err(|error| io_failed("write", tree.path_of(&init), error))?;
    }
    let undecided = may_be_undecided(opened).then(|| Undecided::of(files)).transpose()?;
    let mut orders = orders(flavor, tree, &init);
    orders.extend(undecided.iter().map(Undecided::order));
    let mut exit = recover(files, (opened, plan), &orders, listener, cancel)?;
    if flavor == Flavor::MySql {
        exit.log.retain(|line| !is_of_replication(line));
    }
    files.forget_absent(&mut exit.log);
    if let Some(part) = &options.part {
        let missing = missing_tablespaces(flavor, &exit.log);
        if !missing.is_empty() {
            let said = exit.success("recover the restored files", &|_| false).err();
            let error = said.unwrap_or_else(|| Error::failed("recover the restored files"));
            return Err(error.caused_by(MissingTablespaces(missing)));
        }
        part.forget_absent(&mut exit.log);
    }
    let recovered = check(opened, &exit, roots).map_err(|error| hinted(error, opened, options))?;
    if let Network::Shared(why) = &exit.network {
        let text =
            format!("the recovering server had no network of its own ({why}); its options kept it off");
        listener.event(Event::Note { text });
    }
    kept::require_files(opened, options, roots)?;
    compare_binlog(opened.position.binlog.as_ref(), recovered.binlog.as_ref(), listener);
    if flavor == Flavor::MySql {
        tree.remove(&init).map_err(|error| io_failed("remove", tree.path_of(&init), error))?;
    }
    if let Some(undecided) = undecided {
        undecided.end(tree)?;
    }
    point("restore.recovered");
    Ok(Prepared {
        program: files.binary.path.clone(),
        version: files.binary.version.to_string(),
        lsn: recovered.lsn,
        binlog: recovered.binlog,
        rows_rolled_back: recovered.rows_rolled_back,
        ms: u64::try_from(exit.duration.as_millis()).unwrap_or(u64::MAX),
    })
}

/// Runs the server until it has ended by itself. If it comes to a standstill, starts it again with a setting
/// that makes that rare, and with more memory if the user has left that to us, a few times. It starts over
/// then: of what it has done, pages are left that hold a part of their redo, like after any crash. No page is
/// torn, since a server that stands still writes nothing.
fn recover(
    files: &PrivateFiles<'_>,
    (opened, plan): (&Opened, &Plan),
    orders: &[OsString],
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<ServerExit> {
    let options = files.options;
    let mut buffer_pool = plan
        .shown
        .prepare
        .as_ref()
        .map_or(BUFFER_POOL_DEFAULT_MIN_BYTES, |prepare| prepare.buffer_pool_bytes);
    let mut orders = orders.to_vec();
    let mut careful_attempts = 0;
    loop {
        let (mut watch, mut stands_still) = (StandstillWatch::default(), false);
        let running = files.start(buffer_pool, orders.clone(), None)?;
        point("restore.recovering");
        let result = running.wait_and_tell(cancel, &mut |log| {
            tell_progress(opened, log, listener);
            stands_still = watch.stands_still(log, Instant::now());
            if stands_still { Err(stuck()) } else { Ok(()) }
        });
        if !stands_still {
            return result;
        }
        let has_one_reader = orders.iter().any(|order| order == ONE_READER);
        let more = match options.prepare_memory_bytes {
            Some(_) => buffer_pool,
            None => half_of_ram_bytes().min(buffer_pool * 2).max(buffer_pool),
        };
        if !has_one_reader {
            orders.push(ONE_READER.into());
        }
        if more == buffer_pool {
            careful_attempts += 1;
            if careful_attempts > CAREFUL_ATTEMPTS {
                return result;
            }
        }
        buffer_pool = more;
        let text = format!(
            "the recovering server came to a standstill: no page of its buffer pool was free, and each of its \
             threads waited for another. It is started again, with one thread for reads and {} MiB",
            buffer_pool >> 20
        );
        listener.event(Event::Note { text });
    }
}

fn stuck() -> Error {
    Error::failed(
        "recover the restored files: the server waits for free pages in its buffer pool, and does nothing",
    )
    .hinted("give it more memory with --prepare-memory, and run the restore again")
}

/// Reports how much of the redo is recovered.
fn tell_progress(opened: &Opened, log: &[String], listener: &dyn Listener) {
    let (begin, end) = (opened.redo.checkpoint_lsn(), opened.redo.stop_lsn());
    let reached = recovered_up_to(opened.server.version.flavor, &log.join("\n"));
    if let Some(bytes_done) = reached.and_then(|reached| reached.min(end).bytes_since(begin)) {
        let bytes_total = end.bytes_since(begin).unwrap_or(0);
        listener.event(Event::Progress { bytes_done, bytes_total });
    }
}

fn check(opened: &Opened, exit: &ServerExit, roots: &Roots) -> Result<Recovered> {
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
            "the recovered server did not shut down in good order: its redo log continues after the \
             checkpoint at {}",
            checkpoint.lsn
        )))
    }
}

/// Adds a hint about what may be missing, if the source had keys and
/// the recovering server was not told of any.
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
            "name a copy of that file with --keyring, and make sure that this server program loads the \
             component"
        }
        false => "give the recovering server the options for it with --prepare-option",
    };
    error.hinted(format!(
        "the source had its keys from {providers}{file}, which is not part of a backup: {how}"
    ))
}

/// Warns if the recovered position is later than the backup's. InnoDB stores the position of its own last
/// transaction, without what other engines wrote after it. So the server's position may be before the
/// backup's, but not after it.
fn compare_binlog(
    recorded: Option<&BinlogPosition>,
    found: Option<&BinlogPosition>,
    listener: &dyn Listener,
) {
    let (Some(recorded), Some(found)) = (recorded, found) else { return };
    if found.order() > recorded.order() {
        let text = format!(
            "the recovered server remembers binlog position {}:{}, later than the backup's {}:{}; this is \
             normal only if the source's binlogs were reset (RESET MASTER)",
            found.file, found.offset, recorded.file, recorded.offset
        );
        listener.event(Event::Warning { text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// File numbers continue beyond six digits.
    #[test]
    fn a_later_place_in_the_binlog_is_warned_of() {
        struct Heard(std::sync::Mutex<usize>);
        impl Listener for Heard {
            fn event(&self, event: Event) {
                *self.0.lock().unwrap() += usize::from(matches!(event, Event::Warning { .. }));
            }
        }
        let place = |file: &str, offset| BinlogPosition { file: file.to_owned(), offset };
        for (recorded, found, is_later) in [
            (place("b.000009", 100), place("b.000010", 4), true),
            (place("b.000009", 100), place("b.000009", 100), false),
            (place("b.999999", 100), place("b.1000000", 4), true),
            (place("b.1000000", 4), place("b.999999", 100), false),
        ] {
            let heard = Heard(std::sync::Mutex::new(0));
            compare_binlog(Some(&recorded), Some(&found), &heard);
            assert_eq!(*heard.0.lock().unwrap() == 1, is_later, "{recorded:?} {found:?}");
        }
    }
}
