//! Clients that write, and record the contents and times of each commit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use jiff::Timestamp;
use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder};

use super::change::{COLUMNS, Change, Commit};
use super::model::State;
use super::{AREAS, area_tables};
use crate::load::server_error;
use crate::rng::Rng;
use crate::server::Server;

const CLIENTS_OF_AN_AREA: u32 = 3;
/// On MySQL, clients in the second area choose their own GTIDs; those with an even id add a tag.
const OWN_UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa942957";
/// Errors that roll back a transaction because of other clients or a shutdown: a table, column or
/// index that does not exist (any more) or exists already; deadlock, lock wait; a changed
/// definition; the end of the server.
const ROLLED_BACK: [u16; 13] = [1146, 1051, 1054, 1091, 1060, 1050, 1213, 1205, 1412, 1053, 1317, 1927, 3169];
/// Errors after which it is unknown whether the statement took effect.
const ENDED: [u16; 4] = [1053, 1317, 1927, 3169];

/// The running clients.
pub(super) struct Clients {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Vec<Commit>>>>,
}

/// Creates the tables; returns their contents.
pub(super) fn prepare(server: &Server) -> Result<State> {
    for area in AREAS {
        server.exec_all([
            format!("CREATE DATABASE {area}"),
            format!(
                "CREATE TABLE {area}.journal (client INT, number BIGINT, PRIMARY KEY (client, number)) ENGINE=InnoDB"
            ),
        ])?;
        server.exec_all(area_tables(area).map(|table| format!("CREATE TABLE {table} {COLUMNS}")))?;
    }
    Ok(State::with_tables(AREAS.into_iter().flat_map(area_tables)))
}

impl Clients {
    pub(super) fn start(server: &Server, seed: u64) -> Clients {
        let ends = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (area, first) in AREAS.into_iter().zip([1, 1 + CLIENTS_OF_AN_AREA]) {
            let coming_and_going = Arc::new(Mutex::new(Vec::new()));
            for id in first..first + CLIENTS_OF_AN_AREA {
                let mut client = Client {
                    area,
                    id,
                    defines: id == first,
                    is_mariadb: server.kind().is_mariadb(),
                    opts: server.opts(),
                    rng: Rng::keyed(seed, 11, id.into()),
                    own_ids: i64::from(id) * 100_000_000,
                    number: 0,
                    coming_and_going: Arc::clone(&coming_and_going),
                    commits: Vec::new(),
                };
                let ends = Arc::clone(&ends);
                threads.push(thread::spawn(move || {
                    client.work(&ends).with_context(|| format!("client {id}"))?;
                    Ok(client.commits)
                }));
            }
        }
        Clients { ends, threads }
    }

    /// Fails if a client has given up.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.threads.iter().position(JoinHandle::is_finished) {
            Some(at) => {
                joined(self.threads.remove(at))?;
                bail!("a client has ended")
            }
            None => Ok(()),
        }
    }

    pub(super) fn stop(mut self) -> Result<Vec<Commit>> {
        self.ends.store(true, Ordering::SeqCst);
        let all: Result<Vec<Vec<Commit>>> = self.threads.drain(..).map(joined).collect();
        Ok(all?.concat())
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
    }
}

fn joined(thread: JoinHandle<Result<Vec<Commit>>>) -> Result<Vec<Commit>> {
    thread.join().map_err(|_| anyhow!("a client panicked"))?
}

struct Client {
    area: &'static str,
    id: u32,
    /// Whether it also runs DDL.
    defines: bool,
    is_mariadb: bool,
    opts: OptsBuilder,
    rng: Rng,
    own_ids: i64,
    number: u64,
    /// Tables created by the client of this area that runs DDL. Names are never reused.
    coming_and_going: Arc<Mutex<Vec<String>>>,
    commits: Vec<Commit>,
}

/// The result of a transaction.
enum Outcome {
    Done(Option<String>),
    RolledBack,
    /// The connection was lost before the commit was sent.
    Lost,
    /// The connection was lost during the commit, so whether it took effect is unknown.
    Unknown,
}

impl Client {
    fn work(&mut self, ends: &AtomicBool) -> Result<()> {
        const MOST_BETWEEN_MS: u64 = 30;
        let mut conn = None;
        while !ends.load(Ordering::SeqCst) {
            // The server may be down.
            let Some(open) = &mut conn else {
                conn = self.connect().ok();
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            self.number += 1;
            let change = self.draw()?;
            let begun = Timestamp::now();
            let outcome = self.commit(open, &change)?;
            let answered = Timestamp::now();
            let (gtid, answered) = match outcome {
                Outcome::Done(gtid) => (gtid, Some(answered)),
                Outcome::Unknown => (None, None),
                Outcome::RolledBack => continue,
                Outcome::Lost => {
                    conn = None;
                    continue;
                }
            };
            self.follow(&change)?;
            if answered.is_none() {
                conn = None;
            }
            let (area, client, number) = (self.area, self.id, self.number);
            self.commits.push(Commit { area, client, number, change, gtid, begun, answered });
            thread::sleep(Duration::from_millis(self.rng.below(MOST_BETWEEN_MS)));
        }
        Ok(())
    }

    fn connect(&self) -> Result<Conn, mysql::Error> {
        let mut conn = Conn::new(self.opts.clone())?;
        conn.query_drop("SET SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 5")?;
        if self.is_mariadb {
            let is_second = self.area == AREAS[1];
            // Domains are independent of each other: a client of one does not touch the other's tables.
            conn.query_drop(format!(
                "SET SESSION gtid_domain_id = {}, SESSION server_id = {}",
                if is_second { 7 } else { 0 },
                self.id % 2 + 1
            ))?;
        } else if self.id % 3 == 2 {
            conn.query_drop("SET SESSION binlog_transaction_compression = ON")?;
        }
        Ok(conn)
    }

    fn draw(&mut self) -> Result<Change> {
        let mut tables = area_tables(self.area).to_vec();
        let made = self.made()?.clone();
        if !self.defines || !self.rng.percent(20) {
            tables.extend(made);
            return Ok(Change::draw_rows(&mut self.rng, &tables, &mut self.own_ids));
        }
        let rng = &mut self.rng;
        let new = format!("{}.made_{}", self.area, self.number);
        let some = |rng: &mut Rng| made[rng.index(made.len())].clone();
        Ok(match rng.below(100) {
            0..15 => {
                Change::Truncate(rng.pick(&tables.iter().map(|it| &**it).collect::<Vec<_>>()).to_owned())
            }
            15..55 if rng.percent(50) => {
                Change::AddExtra(tables[rng.index(tables.len())].clone(), rng.below(99) as i64)
            }
            15..55 => Change::DropExtra(tables[rng.index(tables.len())].clone()),
            55..70 if made.len() > 1 => Change::Drop(some(rng)),
            70..80 if !made.is_empty() => Change::Rename(some(rng), new),
            _ => Change::Create(new),
        })
    }

    fn made(&self) -> Result<std::sync::MutexGuard<'_, Vec<String>>> {
        self.coming_and_going.lock().map_err(|_| anyhow!("a client panicked"))
    }

    /// Updates the list of tables that exist, or may exist.
    fn follow(&self, change: &Change) -> Result<()> {
        let mut made = self.made()?;
        match change {
            Change::Create(name) => made.push(name.clone()),
            Change::Drop(name) => made.retain(|it| it != name),
            Change::Rename(from, to) => {
                made.retain(|it| it != from);
                made.push(to.clone());
            }
            _ => {}
        }
        Ok(())
    }

    fn commit(&mut self, conn: &mut Conn, change: &Change) -> Result<Outcome> {
        let own = (!self.is_mariadb && self.area == AREAS[1]).then(|| {
            let tag = if self.id.is_multiple_of(2) { "tagged:" } else { "" };
            format!("{OWN_UUID}{}:{tag}{}", self.id, self.number)
        });
        let prepare = own.iter().map(|own| format!("SET gtid_next = '{own}'"));
        let (statements, last) = match change {
            Change::Rows(steps) => {
                let journal =
                    format!("INSERT INTO {}.journal VALUES ({}, {})", self.area, self.id, self.number);
                let steps = steps.iter().map(super::change::Step::sql);
                let begin = ["BEGIN".to_owned(), journal];
                (prepare.chain(begin).chain(steps).collect::<Vec<_>>(), "COMMIT".to_owned())
            }
            _ => {
                let mark = format!("/* {}:{} */", self.id, self.number);
                (prepare.collect(), change.definition_sql(&mark).unwrap_or_default())
            }
        };
        for statement in statements {
            if let Err(error) = conn.query_drop(&statement) {
                return self.roll_back(conn, &error, &statement);
            }
        }
        if matches!(change, Change::Rows(_)) && self.rng.percent(3) {
            return Ok(if conn.query_drop("ROLLBACK").is_ok() { Outcome::RolledBack } else { Outcome::Lost });
        }
        if let Err(error) = conn.query_drop(&last) {
            return match server_error(&error) {
                Some(code) if ROLLED_BACK.contains(&code) && !ENDED.contains(&code) => {
                    self.roll_back(conn, &error, &last)
                }
                _ => Ok(Outcome::Unknown),
            };
        }
        Ok(Outcome::Done(match self.is_mariadb {
            true => conn.query_first("SELECT @@last_gtid").ok().flatten(),
            false => own,
        }))
    }

    /// Rolls back after an error; if the server is still running, the error must be one of the expected ones.
    fn roll_back(&self, conn: &mut Conn, error: &mysql::Error, statement: &str) -> Result<Outcome> {
        let Some(code) = server_error(error) else { return Ok(Outcome::Lost) };
        if conn.query_drop("ROLLBACK").is_err() {
            return Ok(Outcome::Lost);
        }
        let begin: String = statement.chars().take(200).collect();
        ensure!(ROLLED_BACK.contains(&code), "{error}: {begin}");
        Ok(Outcome::RolledBack)
    }
}
