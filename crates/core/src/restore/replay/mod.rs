//! Replays transactions on restored files: recovery to any moment after a backup.
//!
//! The server replays them itself, as a replica would. They are written into relay logs ([`relay_logs`]) that
//! end after the last wanted transaction, so nothing has to be stopped in time; a server that runs on the
//! restored files alone ([`super::own_server`]) applies them with its parallel applier ([`applier`]). Nothing
//! that the server does is imitated: what a replica can follow can be replayed, at the speed of a replica.
//!
//! Invariants:
//! - The replayed transactions begin exactly where the backup ends, and the server must arrive exactly at
//!   their end, by GTIDs or, where there are none, by file and offset.
//! - A table never reaches outside: directories that statements name are ignored (`NO_DIR_IN_CREATE`, which
//!   an applier keeps whatever the statement's own mode is), and the server has no network.
//! - The relay logs, and the account by which the server was controlled, are gone when the replay is done.
//!
//! As on a replica, events of the scheduler that the transactions create or change are disabled afterwards
//! ([`Replayed::events_disabled`]).

mod applier;
mod relay_logs;

use std::{ffi::OsString, path::Path};

use holdfast_formats::{Flavor, binlog::Part};

use self::{
    applier::{Applier, Goal},
    relay_logs::RelayLogs,
};
use super::{
    buffer_pool::buffer_pool_bytes,
    done::{Reached, Replayed},
    options::RestoreOptions,
    own_server::{PrivateFiles, account, is_of_absent_plugin, is_of_replication, uses_gtids},
    server_options::undecided,
    target::io_failed,
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    points::point,
    server::{
        ServerFacts, TableName,
        programs::{Network, OwnAccount, Writes, option_of},
    },
};

/// Transactions in the order of their commits, the first right after what the backup holds.
pub trait Transactions {
    /// Gives everything to `take`, and returns where the last whole transaction ends.
    fn each(&mut self, take: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<Reached>;
}

/// A piece of a binlog.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Events of another file follow.
    File {
        /// The file's name.
        name: &'a str,
        /// Where the events begin in it.
        offset: u64,
        /// The event that the file begins with; it is not given again.
        format: &'a [u8],
    },
    /// An event.
    Event {
        /// All of it, with its checksum.
        bytes: &'a [u8],
        /// Its part in its transaction. A transaction whose last event does not come never happened.
        part: Part,
    },
}

/// Has the server replay the transactions on the recovered target.
pub(super) fn run(
    files: &PrivateFiles<'_>,
    transactions: &mut dyn Transactions,
    only: Option<&[TableName]>,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<Replayed> {
    let PrivateFiles { tree, server: facts, options, owner, .. } = files;
    let flavor = facts.flavor();
    let (logs, reached) = RelayLogs::write(tree, flavor, *owner, transactions, cancel)?;
    point("restore.relay.written");
    let Some(first) = logs.first() else {
        logs.remove(tree)?;
        return Ok(Replayed { reached, bytes: 0, ms: 0, events_disabled: Vec::new() });
    };

    if let Some(text) = undecided(facts) {
        listener.event(Event::Warning { text });
    }
    let own = OwnAccount::random()?;
    let init = account::write_creation(&own, files, false)?;
    let mut orders = vec![
        option_of("--init-file=", &tree.path_of(&init)),
        option_of("--relay-log=", &logs.base(tree)),
        option_of("--relay-log-index=", &logs.index(tree)),
    ];
    orders.extend(applying(facts, options, logs.free_server_id()));
    // The source may have stopped giving GTIDs after the backup. This mode takes both kinds.
    let names_all = uses_gtids(facts) && !reached.has_nameless;
    if uses_gtids(facts) && !names_all {
        orders.extend(["--gtid-mode=OFF_PERMISSIVE", "--enforce-gtid-consistency=OFF"].map(OsString::from));
    }
    if flavor == Flavor::MariaDb {
        // MySQL is given no such directory at all.
        orders.push(option_of("--secure-file-priv=", &logs.directory(tree)));
    }
    orders.extend(files.without_plugins());
    if files.is_rebuilt() {
        let ignored = OF_PROVIDERS.map(|tables| format!("--replicate-wild-ignore-table={tables}"));
        orders.extend(ignored.map(OsString::from));
    }
    orders.extend(
        only.unwrap_or_default().iter().map(|TableName { schema, table }| {
            OsString::from(format!("--replicate-do-table={schema}.{table}"))
        }),
    );
    let mut server =
        files.start(buffer_pool_bytes(options, logs.bytes()), orders, options.time_zone.clone())?;
    let goal = Goal {
        reached: &reached,
        from: files.position.gtid.as_deref(),
        names_all,
        is_rebuilt: files.is_rebuilt(),
    };
    if let Network::Shared(why) = server.network() {
        let text = format!(
            "the server that replays transactions has no network of its own ({why}); its options keep it off"
        );
        listener.event(Event::Note { text });
    }
    if let Writes::Anywhere(Some(why)) = server.writes() {
        let text = format!(
            "the server that replays transactions can write wherever its user may ({why}): replay no archive that \
             you do not trust"
        );
        listener.event(Event::Note { text });
    }
    let mut applier = Applier::connect(&mut server, &own, flavor, cancel)?;
    let disabled_before = applier.disabled_events()?;
    applier.begin(first)?;
    point("restore.replaying");
    applier.wait(&mut server, &goal, &logs, cancel, &mut |bytes_done| {
        listener.event(Event::Progress { bytes_done, bytes_total: logs.bytes() });
    })?;
    let disabled_after = applier.disabled_events()?;
    let events_disabled = disabled_after.difference(&disabled_before).cloned().collect();
    applier.end(&own)?;
    let mut exit = server.wait(cancel)?;
    exit.log.retain(|line| !is_of_replication(line) && !is_of_absent_plugin(line));
    files.forget_absent(&mut exit.log);
    if let Some(part) = &options.part {
        part.forget_absent(&mut exit.log);
    }
    exit.success("replay transactions on the restored files", &|_| false)?;
    point("restore.replayed");
    tree.remove(&init).map_err(|error| io_failed("remove", tree.path_of(&init), error))?;
    logs.remove(tree)?;
    let ms = u64::try_from(exit.duration.as_millis()).unwrap_or(u64::MAX);
    Ok(Replayed { reached, bytes: logs.bytes(), ms, events_disabled })
}

/// Tables that providers of managed servers keep in `mysql` and write to all the time. Logical backups have
/// no tables of that schema.
const OF_PROVIDERS: [&str; 4] =
    [r"mysql.rds\_%", r"mysql.aurora\_%", r"mysql.ro\_replica\_%", r"mysql.\_\_az%"];

/// Where time zones are described.
const ZONES: &str = "/usr/share/zoneinfo";

/// Refuses to replay if statements could come to other values than on the source: those that depend on its
/// host's zone, of which the backup knows no more than an abbreviation.
pub(super) fn check_zone(server: &ServerFacts, options: &RestoreOptions) -> Result<()> {
    let usage = |message: String| Error::new(ErrorKind::Usage, message);
    if let Some(zone) = &options.time_zone {
        let is_name = zone.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        return match is_name && Path::new(ZONES).join(zone).is_file() {
            true => Ok(()),
            false => Err(usage(format!("this host knows no time zone {zone}"))),
        };
    }
    match server.sql.system_time_zone.as_deref() {
        None | Some("UTC" | "GMT" | "Etc/UTC" | "UCT" | "Universal" | "Zulu" | "") => Ok(()),
        Some(zone) => Err(usage(format!(
            "the source's host is in time zone {zone}, and statements that are replayed may depend on it"
        ))
        .hinted(
            "name its zone, as in --time-zone Europe/Berlin; any zone will do if the binlog contains only \
             rows",
        )),
    }
}

/// Options that say how the server applies transactions.
fn applying(facts: &ServerFacts, options: &RestoreOptions, server_id: u32) -> Vec<OsString> {
    let threads = options.parallel.max(1);
    let mut arguments = vec![
        // An applier takes this part of the mode from the server, all others from the statement.
        "--sql-mode=NO_DIR_IN_CREATE".to_owned(),
        // Statements do not name the engine where the source's default was meant.
        format!("--default-storage-engine={}", facts.sql.default_storage_engine),
        "--innodb-strict-mode=OFF".to_owned(),
        format!("--server-id={server_id}"),
    ];
    match facts.flavor() {
        Flavor::MariaDb => {
            arguments.push(format!("--slave-parallel-threads={threads}"));
            arguments.push("--slave-parallel-mode=optimistic".to_owned());
            arguments.push("--slave-parallel-max-queued=16777216".to_owned());
        }
        Flavor::MySql => arguments.push(format!("--replica-parallel-workers={threads}")),
    }
    arguments.into_iter().map(OsString::from).collect()
}
