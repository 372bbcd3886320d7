//! The order of commits, as the server's own program reads it from the server's own binlogs.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::change::Change;
use super::change::Commit;
use super::model::State;
use crate::server::Server;

/// A transaction in a binlog.
#[derive(Clone, Debug, Default)]
struct Entry {
    gtid: String,
    /// When it was committed; MariaDB's binlog has a resolution of one second.
    at: Timestamp,
    /// The position of its end.
    file: String,
    end: u64,
    /// The client and the client's transaction number.
    mark: Option<(u32, u64)>,
    /// The table that it drops.
    drops: Option<String>,
}

/// A commit and its position.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) commit: Commit,
    pub(super) gtid: String,
    pub(super) at: Timestamp,
    pub(super) file: String,
    pub(super) end: u64,
}

/// All commits in the order of the server's binlogs.
pub(super) struct History {
    begin: State,
    pub(super) commits: Vec<Placed>,
    /// The numbers of unanswered commits that took place, and that did not.
    pub(super) settled: [usize; 2],
}

impl History {
    /// Puts the clients' records into the server's order. Each answered commit must appear exactly once, and
    /// everything else in the binlog must be a commit that may have happened.
    pub(super) fn of(server: &Server, begin: State, noted: Vec<Commit>) -> Result<History> {
        let entries = read(server)?;
        let mut by_mark = HashMap::new();
        let mut by_gtid = HashMap::new();
        let mut drops: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, commit) in noted.iter().enumerate() {
            by_mark.insert((commit.client, commit.number), at);
            if let Some(gtid) = &commit.gtid {
                ensure!(by_gtid.insert(gtid.clone(), at).is_none(), "two clients were told of {gtid}");
            }
            if let Change::Drop(table) = &commit.change {
                drops.entry(table.clone()).or_default().push(at);
            }
        }
        let mut left: Vec<Option<Commit>> = noted.into_iter().map(Some).collect();
        let mut commits = Vec::new();
        for entry in entries {
            let by_drop = || {
                // Table names are never reused, so one of these commits dropped it: preferably one that was
                // answered.
                let all = drops.get(entry.drops.as_ref()?)?;
                let is_told = |at: &&usize| left[**at].as_ref().is_some_and(|it| it.answered.is_some());
                all.iter().find(is_told).or_else(|| all.iter().find(|at| left[**at].is_some())).copied()
            };
            let known = entry.mark.and_then(|mark| by_mark.get(&mark).copied()).or_else(by_drop);
            let told = by_gtid.get(&entry.gtid).copied();
            let at = match (known, told) {
                (Some(known), Some(told)) => {
                    ensure!(known == told, "{entry:?} is not what {:?} was told", left[told]);
                    known
                }
                (Some(at), None) | (None, Some(at)) => at,
                // Transactions that created the tables.
                (None, None) if commits.is_empty() => continue,
                (None, None) => bail!("no client has sent {entry:?}"),
            };
            let commit = left[at].take().with_context(|| format!("{entry:?} is there twice"))?;
            is_of_its_time(&commit, entry.at, server.kind().is_mariadb())?;
            let Entry { gtid, at, file, end, .. } = entry;
            commits.push(Placed { commit, gtid, at, file, end });
        }
        let missing: Vec<Commit> = left.into_iter().flatten().collect();
        if let Some(lost) = missing.iter().find(|commit| commit.answered.is_some()) {
            bail!("the server's binlog does not have {lost:?}");
        }
        let happened = commits.iter().filter(|placed| placed.commit.answered.is_none()).count();
        Ok(History { begin, commits, settled: [happened, missing.len()] })
    }

    /// The number of commits before a position that a backup reports.
    pub(super) fn commits_at(&self, position: &Value) -> Result<usize> {
        let binlog = &position["binlog"];
        let (file, offset) = (binlog["file"].as_str(), binlog["offset"].as_u64());
        let place = (file.context("no file")?, offset.context("no offset")?);
        Ok(self.commits.iter().take_while(|placed| (&*placed.file, placed.end) <= place).count())
    }

    /// The contents of the tables after the first `count` commits.
    pub(super) fn state_after(&self, count: usize) -> Result<State> {
        let mut state = self.begin.clone();
        for placed in &self.commits[..count] {
            state.apply(&placed.commit).with_context(|| format!("{placed:?}"))?;
        }
        Ok(state)
    }
}

/// Checks that the commit time in the binlog lies within the times that the client recorded.
fn is_of_its_time(commit: &Commit, at: Timestamp, in_seconds: bool) -> Result<()> {
    /// Clocks are read in different ways.
    const TOLERANCE: SignedDuration = SignedDuration::from_millis(10);
    let (first, last) = (commit.begun - TOLERANCE, commit.answered.map(|answered| answered + TOLERANCE));
    let is_before = if in_seconds { at.as_second() < first.as_second() } else { at < first };
    let is_after = last.is_some_and(|last| at > last);
    ensure!(!is_before && !is_after, "it was committed at {at}, the binlog says: {commit:?}");
    Ok(())
}

fn read(server: &Server) -> Result<Vec<Entry>> {
    let is_mariadb = server.kind().is_mariadb();
    let program = server.kind().program(if is_mariadb { "mariadb-binlog" } else { "mysqlbinlog" })?;
    let files: Vec<mysql::Row> = server.query("SHOW BINARY LOGS")?;
    let mut entries = Vec::new();
    for row in files {
        let name: String = row.get(0).context("no name of a binlog")?;
        let mut child = Command::new(&program)
            .args(["--no-defaults", "-v", "--base64-output=DECODE-ROWS"])
            .arg(server.datadir().join(&name))
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(server.home().join("binlog.errors"))?)
            .spawn()
            .with_context(|| program.display().to_string())?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut reader = Reader {
            is_mariadb,
            file: &name,
            entries: Vec::new(),
            at: None,
            time: None,
            in_journal: false,
            client: None,
        };
        for line in output.split(b'\n') {
            reader.line(&String::from_utf8_lossy(&line?)).with_context(|| name.clone())?;
        }
        ensure!(child.wait()?.success(), "{} did not read {name}", program.display());
        entries.append(&mut reader.entries);
    }
    Ok(entries)
}

struct Reader<'a> {
    is_mariadb: bool,
    file: &'a str,
    entries: Vec<Entry>,
    /// MySQL: when the next transaction was committed.
    at: Option<Timestamp>,
    /// MariaDB: the time of the last event that has one. What a server logs while it recovers from a crash has none.
    time: Option<Timestamp>,
    /// Whether the current row belongs to a journal.
    in_journal: bool,
    /// The client in that row.
    client: Option<u32>,
}

impl Reader<'_> {
    fn line(&mut self, line: &str) -> Result<()> {
        if let Some(row) = line.strip_prefix("### ") {
            return self.row(row.trim());
        }
        if line.starts_with('#') && line.contains(" end_log_pos ") {
            return self.event(line);
        }
        if let Some(us) = line.strip_prefix("# original_commit_timestamp=") {
            let us = us.split_whitespace().next().unwrap_or_default().parse()?;
            self.at = Some(Timestamp::from_microsecond(us)?);
        } else if let Some(rest) = line.strip_prefix("SET @@SESSION.GTID_NEXT= '") {
            let gtid = rest.split('\'').next().unwrap_or_default();
            if let Some(at) = self.at.take().filter(|_| gtid != "AUTOMATIC") {
                self.begin(gtid, at);
            }
        } else if let Some(entry) = self.entries.last_mut() {
            // /* 3:17 */
            if let Some(mark) = line.split("/* ").nth(1).and_then(|rest| rest.split(" */").next())
                && let Some((client, number)) = mark.split_once(':')
                && let (Ok(client), Ok(number)) = (client.parse(), number.parse())
            {
                entry.mark = Some((client, number));
            }
            // DROP TABLE `pitr_a`.`made_17` /* generated by server */
            // With IF EXISTS if a server completes it after a crash.
            if let Some(rest) = line.strip_prefix("DROP TABLE ") {
                let rest = rest.strip_prefix("IF EXISTS ").unwrap_or(rest);
                entry.drops = rest.split_whitespace().next().map(|name| name.replace('`', ""));
            }
        }
        Ok(())
    }

    fn begin(&mut self, gtid: &str, at: Timestamp) {
        let file = self.file.to_owned();
        self.entries.push(Entry { gtid: gtid.to_owned(), at, file, ..Entry::default() });
    }

    /// `#261123 14:30:17 server id 1  end_log_pos 384 CRC32 0x12345678`, a tab, and `GTID 0-1-5 trans`
    fn event(&mut self, line: &str) -> Result<()> {
        let (head, rest) = line.split_once(" end_log_pos ").context("no end")?;
        let end: u64 = rest.split_whitespace().next().unwrap_or_default().parse()?;
        let kind = line.split('\t').nth(1).unwrap_or_default().trim();
        if self.is_mariadb {
            let time = head.trim_start_matches('#').split(" server").next().unwrap_or_default();
            // A one-digit hour follows two spaces.
            let time = time.split_whitespace().collect::<Vec<_>>().join(" ");
            let at =
                jiff::civil::DateTime::strptime("%y%m%d %H:%M:%S", &time).with_context(|| time.clone())?;
            let at = at.to_zoned(jiff::tz::TimeZone::UTC)?.timestamp();
            self.time = Some(at).filter(|at| at.as_second() > 0).or(self.time);
        }
        if let Some(gtid) = kind.strip_prefix("GTID ").filter(|_| self.is_mariadb) {
            let at = self.time.context("no event before it has a time")?;
            self.begin(gtid.split_whitespace().next().unwrap_or_default(), at);
        }
        let is_part = ["Xid", "Query", "Transaction_Payload", "Transaction_payload"]
            .iter()
            .any(|it| kind.starts_with(it));
        if let Some(entry) = self.entries.last_mut().filter(|_| is_part) {
            entry.end = entry.end.max(end);
        }
        Ok(())
    }

    /// ```text
    /// ### INSERT INTO `pitr_a`.`journal`
    /// ### SET
    /// ###   @1=3
    /// ###   @2=17
    /// ```
    fn row(&mut self, row: &str) -> Result<()> {
        if row.starts_with("INSERT INTO") {
            self.in_journal = row.ends_with(".`journal`");
        } else if row.starts_with("UPDATE") || row.starts_with("DELETE") {
            self.in_journal = false;
        } else if self.in_journal {
            let number = |text: &str| text.split_whitespace().next().unwrap_or_default().parse::<u64>();
            if let Some(client) = row.strip_prefix("@1=") {
                self.client = Some(number(client)?.try_into()?);
            } else if let (Some(value), Some(client)) = (row.strip_prefix("@2="), self.client.take()) {
                let entry = self.entries.last_mut().context("a row without a transaction")?;
                entry.mark = Some((client, number(value)?));
            }
        }
        Ok(())
    }
}
