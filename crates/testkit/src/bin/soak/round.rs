//! One round: load, a backup with a fault, a restore, and the proof.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_testkit::load::{DdlStorm, Prober, StormOptions, WriteLoad, ddl::finish_imports, writes};
use holdfast_testkit::program::{self, Ended};
use holdfast_testkit::rng::Rng;
use holdfast_testkit::{Server, assert_equal_checksums, replica, tables};
use rustix::process::Signal;
use serde_json::Value;

use super::Reach;
use super::fault::{Fault, moment};
use super::record::Record;
use super::stage::{Backup, NAME, Stage};

/// Machines may be slow: only stopped replication is a failure.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(900);
/// The number of backups to keep for starting replicas.
const KEPT: usize = 2;
/// How often an undisturbed backup is tried: a DDL storm may keep it from getting a lock.
const TRIES: u32 = 3;

/// The plan of a round.
#[derive(Debug)]
struct Plan {
    writers: u32,
    storm_connections: u32,
    full: bool,
    fault: Fault,
    /// Time under load before the backup.
    lead: Duration,
    /// Whether the restore is killed once before it runs to completion.
    restore_killed: bool,
    /// Whether the backup before the last one is restored.
    older: bool,
}

impl Plan {
    fn draw(reach: Reach, rng: &mut Rng) -> Plan {
        Plan {
            writers: rng.between(1, 4) as u32,
            storm_connections: rng.between(0, 3) as u32,
            full: rng.percent(15),
            fault: Fault::draw(reach, rng),
            lead: Duration::from_millis(rng.between(200, 3000)),
            restore_killed: rng.percent(25),
            older: rng.percent(25),
        }
    }
}

/// Runs round `number`. An error is a finding.
pub(crate) fn take(stage: &mut Stage, seed: u64, number: u64) -> Result<Record> {
    let mut rng = Rng::keyed(seed, 3, number);
    let plan = Plan::draw(stage.reach(), &mut rng);
    let begun = Instant::now();
    let mut record = Record { number, fault: plan.fault.name(), full: plan.full, ..Record::default() };

    let id = back_up_under_work(stage, &plan, &mut rng, &mut record)
        .with_context(|| format!("backup, {plan:?}"))?;
    stage.forget(KEPT)?;
    let checked = stage.holdfast.command("check").start()?.wait()?;
    ensure!(checked.succeeded(), "check after {id}: {}", checked.output);

    let id = match plan.older {
        true => stage.backups.first().map_or(id, |backup| backup.id.clone()),
        false => id,
    };
    let target = stage.dir().join("restored");
    restore(stage, &id, &target, plan.restore_killed, &mut rng)
        .with_context(|| format!("restore of {id}"))?;
    prove(stage, &target, &mut record).with_context(|| format!("proof of {id}, {plan:?}"))?;
    fs::remove_dir_all(&target)?;
    record.seconds = begun.elapsed().as_secs_f64();
    Ok(record)
}

/// Takes a backup under load with the fault; if that ends it, takes another.
fn back_up_under_work(stage: &mut Stage, plan: &Plan, rng: &mut Rng, record: &mut Record) -> Result<String> {
    stage.source.exec("FLUSH BINARY LOGS")?;
    let binlog = stage.binlog()?;
    let words = if plan.full { "--full" } else { "" };
    {
        // A server that is killed after an import loses rows by its own fault: its recovery ignores the redo
        // of such a table.
        let work = Work::start(&stage.source, plan, !plan.fault.is_of_the_server(), rng)?;
        thread::sleep(plan.lead);
        plan.fault.prepare(stage, rng)?;
        let imported = work.imported();
        let backup = stage.back_up(words).start()?;
        let is_excused = |ended: &Ended| !ended.succeeded() && work.excuses(&ended.output, imported);
        let ended = plan.fault.strike(stage, backup, is_excused, rng)?;
        record.struck = !ended.succeeded();
        if plan.fault.is_of_the_server() {
            // Errors of workers that have lost their connections are irrelevant. Tables without transactions
            // may have lost writes that the binlog contains, so no replica can replay past this moment.
            drop(work);
            tables::repair_after_crash(&stage.source)?;
            stage.backups.clear();
        } else {
            let is_by_design = is_excused(&ended);
            work.stop(record)?;
            if ended.succeeded() {
                stage.backup_takes_s = ended.elapsed.as_secs_f64();
                return note_backup(stage, &ended.output, binlog, record);
            }
            if is_by_design {
                record.struck = false;
                record.imports_refused += 1;
            } else if !plan.fault.may_end_the_backup() {
                record.refused.push(ended.output);
            }
        }
    }
    // After any fault, the next run must succeed, even under load.
    let work = Work::start(&stage.source, plan, false, rng)?;
    let mut tries = 0;
    let id = loop {
        let ended = stage.back_up(words).start()?.wait()?;
        tries += 1;
        if ended.succeeded() {
            break note_backup(stage, &ended.output, binlog, record)?;
        }
        record.refused.push(ended.output.clone());
        ensure!(tries < TRIES, "{tries} backups failed, the last with: {}", ended.output);
    };
    work.stop(record)?;
    Ok(id)
}

/// `backup soak/physical #42 completed OK`
fn note_backup(stage: &mut Stage, output: &str, binlog: String, record: &mut Record) -> Result<String> {
    let number = output
        .lines()
        .rev()
        .filter(|line| line.contains("completed OK"))
        .find_map(|line| line.split('#').nth(1)?.split(' ').next())
        .with_context(|| format!("no number of a backup in: {output}"))?;
    let id = format!("{NAME}#{number}");
    record.definitions_blocked_ms = definitions_blocked_ms(stage, &id)?;
    stage.backups.push(Backup { id: id.clone(), binlog });
    Ok(id)
}

/// How long the backup blocked DDL in all its tries, according to its own report: from the request of the lock on,
/// since a lock that waits can block as well, to its release.
fn definitions_blocked_ms(stage: &Stage, id: &str) -> Result<u64> {
    const BLOCKING: [&str; 2] = ["BACKUP STAGE FLUSH", "LOCK INSTANCE FOR BACKUP"];
    let told = stage.holdfast.command(format!("report {id} --json")).start()?.wait()?;
    let report: Value = serde_json::from_str(told.output.lines().last().unwrap_or_default())?;
    let locks =
        report["data"]["report"]["locks"].as_array().with_context(|| format!("no locks in {report}"))?;
    let blocking =
        locks.iter().filter(|lock| BLOCKING.iter().any(|statement| lock["statement"] == *statement));
    let times = blocking.flat_map(|lock| ["wait_ms", "held_ms"].map(|time| lock[time].as_f64()));
    let ms: f64 = times.sum::<Option<f64>>().context("a lock without a time")?;
    Ok(ms.ceil() as u64)
}

/// The clients of the server.
struct Work {
    load: WriteLoad,
    storm: Option<DdlStorm>,
    commits: Prober,
    definitions: Prober,
}

impl Work {
    fn start(server: &Server, plan: &Plan, imports: bool, rng: &mut Rng) -> Result<Work> {
        let load = WriteLoad::start_paced(server, plan.writers, rng.next_u64(), None)?;
        let storm = match plan.storm_connections {
            0 => None,
            connections => {
                let options = StormOptions {
                    imports,
                    in_use: true,
                    per_second: None,
                    ..StormOptions::new(connections, rng.next_u64())
                };
                Some(DdlStorm::start_with(server, options)?)
            }
        };
        let (commits, definitions) = (Prober::of_commits(server)?, Prober::of_definitions(server)?);
        Ok(Work { load, storm, commits, definitions })
    }

    fn imported(&self) -> u64 {
        self.storm.as_ref().map_or(0, DdlStorm::imported)
    }

    /// Whether the error is one that a backup must fail with because of an import.
    fn excuses(&self, output: &str, imported: u64) -> bool {
        self.storm.as_ref().is_some_and(|storm| storm.excuses(output, imported))
    }

    fn stop(self, record: &mut Record) -> Result<()> {
        record.transactions += self.load.stop()?.committed;
        if let Some(storm) = self.storm {
            let stopped = storm.stop()?;
            record.ddl += stopped.done;
            record.imports += stopped.imports;
        }
        let longest = |prober: Prober| Ok::<_, anyhow::Error>(prober.stop()?.max().as_millis() as u64);
        record.longest_commit_ms = record.longest_commit_ms.max(longest(self.commits)?);
        record.longest_definition_ms = record.longest_definition_ms.max(longest(self.definitions)?);
        Ok(())
    }
}

fn restore(stage: &mut Stage, id: &str, target: &Path, killed: bool, rng: &mut Rng) -> Result<()> {
    if killed {
        let mut restore = stage.restore(id, target)?.start()?;
        thread::sleep(moment(stage.restore_takes_s, rng));
        restore.signal(Signal::KILL)?;
        if restore.wait()?.succeeded() {
            return Ok(());
        }
    }
    let done = stage.restore(id, target)?.done()?;
    stage.restore_takes_s = done.elapsed.as_secs_f64();
    Ok(())
}

/// Proves that the restored server is sound, starts replication at the recorded position, and ends up with
/// the source's data.
fn prove(stage: &Stage, target: &Path, record: &mut Record) -> Result<()> {
    let restored = stage.attach(target)?;
    finish_imports(&stage.source, &restored)?;
    record.tables_checked = tables::check_tables(&restored)?;
    writes::check_ledger(&restored).context("the restored books do not balance")?;
    let position = program::restored_position(target)?;
    replica::catch_up(&stage.source, &restored, &position, CATCH_UP_DEADLINE)?;
    record.tables_equal = assert_equal_checksums(&stage.source, &restored)?;
    Ok(())
}
