//! Controls the server that replays: starts its applier, follows its progress,
//! and judges where it has arrived.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use holdfast_formats::{Flavor, gtid::MariaDbGtidPos};

use super::{
    super::{
        continuing::{gtid_text, in_file_name},
        own_server::account,
    },
    Reached,
    relay_logs::{CHANNEL, RelayLogs},
};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::Cancel,
    server::{
        Row, Session,
        code::{NO_SUCH_ROW, NO_SUCH_TABLE, PLUGIN_NOT_LOADED},
        programs::{OwnAccount, RunningServer},
        quoted_without_passwords,
        status::BinlogPosition,
    },
};

const POLL: Duration = Duration::from_millis(50);
/// An applier that has read everything and does nothing for this long is not where it should be.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Where the server must arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal<'a> {
    /// The end of what is replayed.
    pub(super) reached: &'a Reached,
    /// GTIDs of the backup.
    pub(super) from: Option<&'a str>,
    /// Whether every transaction has a GTID.
    pub(super) names_all: bool,
    /// Whether the files were made anew, from rows.
    pub(super) is_rebuilt: bool,
}

/// What the server reports about its applier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Status {
    is_running: bool,
    /// Why it stopped.
    error: Option<String>,
    /// The code of that error.
    code: u16,
    /// Whether it has nothing more to read.
    is_idle: bool,
    /// Applied up to here, in the relay log.
    relay: (String, u64),
    /// Applied up to here, in the source's binlog.
    source: (String, u64),
}

/// The server's applier.
pub(super) struct Applier {
    session: Session,
    flavor: Flavor,
}

impl Applier {
    /// Waits until the server is up.
    pub(super) fn connect(
        server: &mut RunningServer,
        own: &OwnAccount,
        flavor: Flavor,
        cancel: &Cancel,
    ) -> Result<Applier> {
        let session = own.connect(server, "start a server that replays transactions", cancel)?;
        Ok(Applier { session, flavor })
    }

    /// Scheduler events that only a source would run.
    pub(super) fn disabled_events(&mut self) -> Result<BTreeSet<String>> {
        let query = "SELECT CONCAT(event_schema, '.', event_name) AS name FROM information_schema.events \
                     WHERE status LIKE '%SIDE%DISABLED'";
        let rows = self.session.rows(query)?;
        Ok(rows.iter().map(|row| row.text("name").map(str::to_owned)).collect::<Result<_, _>>()?)
    }

    /// Begins with the first relay log.
    pub(super) fn begin(&mut self, first: &str) -> Result<()> {
        for statement in match self.flavor {
            Flavor::MariaDb => [
                format!(
                    "CHANGE MASTER '{CHANNEL}' TO MASTER_HOST='localhost', MASTER_USER='nobody', \
                     RELAY_LOG_FILE='{first}', RELAY_LOG_POS=4, MASTER_USE_GTID=no"
                ),
                format!("START SLAVE '{CHANNEL}' SQL_THREAD"),
            ],
            Flavor::MySql => [
                format!(
                    "CHANGE REPLICATION SOURCE TO SOURCE_HOST='localhost', SOURCE_USER='nobody', \
                     RELAY_LOG_FILE='{first}', RELAY_LOG_POS=4 FOR CHANNEL '{CHANNEL}'"
                ),
                format!("START REPLICA SQL_THREAD FOR CHANNEL '{CHANNEL}'"),
            ],
        } {
            self.session.exec(&statement)?;
        }
        Ok(())
    }

    /// Waits until the server has arrived. `tell` is given the bytes of relay log that are applied.
    pub(super) fn wait(
        &mut self,
        server: &mut RunningServer,
        goal: &Goal<'_>,
        logs: &RelayLogs,
        cancel: &Cancel,
        tell: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut last = Status::default();
        let mut moved = Instant::now();
        loop {
            cancel.check()?;
            let status = match self.status() {
                Ok(status) => status,
                Err(error) if error.kind() == ErrorKind::Server && server.ends_soon() => {
                    return Err(server.explain(error, "replay transactions"));
                }
                Err(error) => return Err(error),
            };
            if !status.is_running {
                return Err(stopped(&status, server, goal.is_rebuilt));
            }
            if status.is_idle && self.is_there(goal, &status)? {
                return Ok(());
            }
            if status != last || (status.is_idle && self.is_busy()?) {
                moved = Instant::now();
                tell(logs.bytes_before(&status.relay.0, status.relay.1));
            }
            if status.is_idle && moved.elapsed() > IDLE_LIMIT {
                let (file, offset) = &status.source;
                return Err(Error::failed(format!(
                    "the server has applied all transactions up to {file}:{offset}, but has not reached \
                     their end: {}",
                    goal.reached.gtids.as_deref().unwrap_or("no GTID")
                )));
            }
            last = status;
            thread::sleep(POLL);
        }
    }

    /// Whether a thread of the applier works on something, however long that takes: the one that has read
    /// everything says so while others still apply.
    fn is_busy(&mut self) -> Result<bool> {
        const IDLE: [&str; 3] = [
            "Waiting for work from SQL thread",
            "Waiting for an event from Coordinator",
            "has read all relay log",
        ];
        for row in self.session.rows("SHOW PROCESSLIST")? {
            let state = row.text_or_null("State")?.unwrap_or_default();
            let is_of_applier = row.text_or_null("User")? == Some("system user")
                && row.text_or_null("Command")? != Some("Daemon");
            if is_of_applier && !state.is_empty() && !IDLE.iter().any(|idle| state.contains(idle)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn status(&mut self) -> Result<Status> {
        let query = match self.flavor {
            Flavor::MariaDb => format!("SHOW SLAVE '{CHANNEL}' STATUS"),
            Flavor::MySql => format!("SHOW REPLICA STATUS FOR CHANNEL '{CHANNEL}'"),
        };
        let row = self.session.row(&query)?;
        let row = row.ok_or_else(|| Error::failed("the server does not report the status of the replay"))?;
        Ok(status_of(self.flavor, &row)?)
    }

    /// Whether everything is applied, and nothing else.
    fn is_there(&mut self, goal: &Goal<'_>, status: &Status) -> Result<bool> {
        let unusable = || Error::failed("the GTIDs of what is to be replayed cannot be read");
        let is_at = |binlog: &BinlogPosition| status.source == (binlog.file.clone(), binlog.offset);
        match (self.flavor, &goal.reached.gtids, &goal.reached.binlog) {
            (Flavor::MariaDb, Some(gtids), _) => {
                let wanted: MariaDbGtidPos = gtids.parse().context("read the GTIDs of what is replayed")?;
                let now = self.session.value("SELECT @@GLOBAL.gtid_slave_pos")?.unwrap_or_default();
                let now: MariaDbGtidPos = now.parse().context("read the server's gtid_slave_pos")?;
                Ok(wanted.iter().all(|wanted| now.iter().any(|now| now == wanted)))
            }
            (Flavor::MySql, Some(_), Some(binlog)) if !goal.names_all && !is_at(binlog) => Ok(false),
            (Flavor::MySql, Some(gtids), _) => {
                let gtids = gtid_text(Some(gtids)).ok_or_else(unusable)?;
                let from = gtid_text(goal.from).unwrap_or_default();
                let query = format!(
                    "SELECT GTID_SUBSET('{from},{gtids}', @@GLOBAL.gtid_executed) \
                     AND GTID_SUBSET(@@GLOBAL.gtid_executed, '{from},{gtids}')"
                );
                Ok(self.session.value(&query)?.as_deref() == Some("1"))
            }
            (_, None, Some(binlog)) if binlog.file.chars().all(in_file_name) => Ok(is_at(binlog)),
            (_, None, _) => Err(unusable()),
        }
    }

    /// Removes all traces of the replay, and shuts the server down.
    pub(super) fn end(mut self, own: &OwnAccount) -> Result<()> {
        let statements = match self.flavor {
            Flavor::MariaDb => [format!("STOP SLAVE '{CHANNEL}'"), format!("RESET SLAVE '{CHANNEL}' ALL")],
            Flavor::MySql => [
                format!("STOP REPLICA FOR CHANNEL '{CHANNEL}'"),
                format!("RESET REPLICA ALL FOR CHANNEL '{CHANNEL}'"),
            ],
        };
        for statement in &statements {
            self.session.exec(statement)?;
        }
        account::end(own, self.session)
    }
}

/// Of a worker that failed, the status says only that it failed: the log says why.
fn stopped(status: &Status, server: &RunningServer, is_rebuilt: bool) -> Error {
    const LINES_SHOWN_MAX: usize = 3;
    let (file, offset) = &status.source;
    let why = status.error.as_deref().map(quoted_without_passwords);
    let why = why.as_deref().unwrap_or("it does not say why");
    let log = server.log().unwrap_or_default();
    let errors = log.iter().filter(|line| line.contains("[ERROR]"));
    let errors: Vec<String> = errors.map(|line| quoted_without_passwords(line)).collect();
    let shown = &errors[errors.len().saturating_sub(LINES_SHOWN_MAX)..];
    let said = if shown.is_empty() { String::new() } else { format!("; it logs\n  {}", shown.join("\n  ")) };
    let text = format!("the server stopped replaying after {file}:{offset}: {why}{said}");
    let error = Error::failed(text).hinted(
        "restore to a moment before this transaction (--before-gtid, --at), or check whether the server \
         needs options that the source had (--prepare-option)",
    );
    match status.code {
        NO_SUCH_TABLE if is_rebuilt => error.also_hinted(
            "a logical backup has no tables of the schema mysql: if it is one of those, begin with a physical \
             backup, or leave the table out with --prepare-option=--replicate-ignore-table=mysql.NAME",
        ),
        PLUGIN_NOT_LOADED => error.also_hinted(plugin_hint(why, said.as_str())),
        NO_SUCH_ROW => error.also_hinted(
            "if this is a MEMORY table, its rows ended with the server that had loaded them: leave the table out \
             with --prepare-option=--replicate-ignore-table=DATABASE.NAME",
        ),
        NO_SUCH_TABLE => error.also_hinted(
            "if this is a temporary table that was open when the backup ended, the backup does not contain \
             it: name an older backup, taken before the table was created",
        ),
        _ => error,
    }
}

/// Plugins by which accounts are authenticated, and the option with which a server has them. In MySQL, the first is
/// built in since 8.4, and gone in 9.0.
const AUTHENTICATION: [(&str, &str); 6] = [
    ("mysql_native_password", "mysql-native-password=ON"),
    ("ed25519", "plugin-load-add=auth_ed25519"),
    ("parsec", "plugin-load-add=auth_parsec"),
    ("gssapi", "plugin-load-add=auth_gssapi"),
    ("pam", "plugin-load-add=auth_pam"),
    ("auth_socket", "plugin-load-add=auth_socket.so"),
];

/// How to replay a statement that needs a plugin: a server of ours loads none of the source's by itself.
fn plugin_hint(why: &str, said: &str) -> String {
    let named = [why, said].into_iter().find_map(|text| text.split_once("Plugin '")?.1.split_once('\''));
    let name = named.map_or("a plugin", |(name, _)| name);
    let known = AUTHENTICATION.iter().find(|(known, _)| *known == name);
    match known {
        Some((_, option)) => {
            format!("the source had {name} loaded; to have it here too: --prepare-option=--{option}")
        }
        None => format!(
            "the source had {name} loaded; to have it here too: --prepare-option=--plugin-load-add=LIBRARY, where \
             PLUGIN_LIBRARY of information_schema.plugins names the library"
        ),
    }
}

fn status_of(flavor: Flavor, row: &Row) -> Result<Status, crate::server::SqlError> {
    let [running, state, source_file, source_offset] = match flavor {
        Flavor::MariaDb => {
            ["Slave_SQL_Running", "Slave_SQL_Running_State", "Relay_Master_Log_File", "Exec_Master_Log_Pos"]
        }
        Flavor::MySql => [
            "Replica_SQL_Running",
            "Replica_SQL_Running_State",
            "Relay_Source_Log_File",
            "Exec_Source_Log_Pos",
        ],
    };
    let error = row.text_or_null("Last_SQL_Error")?.filter(|error| !error.is_empty());
    Ok(Status {
        is_running: row.text(running)? == "Yes",
        error: error.map(str::to_owned),
        code: row.number("Last_SQL_Errno")?,
        is_idle: row.text_or_null(state)?.is_some_and(|state| state.contains("has read all relay log")),
        relay: (row.text("Relay_Log_File")?.to_owned(), row.number("Relay_Log_Pos")?),
        source: (row.text(source_file)?.to_owned(), row.number(source_offset)?),
    })
}
