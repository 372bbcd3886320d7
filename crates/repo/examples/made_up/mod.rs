//! Helpers for repositories with backups of made-up servers.

use std::{env, error::Error, fs, path::Path, process::Command};

use holdfast_repo::{
    Kind, LogName, Password, Repo, RepoError, RunNo,
    format::manifest::{HEAD_SCHEMA, Head, RootPlace, Totals},
    log::{history::History, run::RunOptions},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

pub(crate) fn password() -> Password {
    Password::new("many".to_owned()).unwrap()
}

pub(crate) fn log() -> LogName {
    LogName { source: "db1".parse().unwrap(), kind: Kind::Physical }
}

pub(crate) fn run_options() -> RunOptions {
    RunOptions { renew_every: None, ..RunOptions::of_this_process() }
}

/// Mixes the bits of `n`.
pub(crate) fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (n ^ n >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ n >> 32
}

/// The head of a backup of a made-up server.
pub(crate) fn head(no: u64, base: Option<RunNo>, totals: Totals, roots: Vec<RootPlace>) -> Head {
    // Backups are an hour apart and all in the past, so that retention rules find something to expire.
    let at = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(480_000 + no.cast_signed());
    Head {
        schema: HEAD_SCHEMA,
        run: no,
        source: log().source.to_string(),
        kind: "physical".into(),
        method: "physical".into(),
        started_at: at,
        finished_at: at,
        tags: Vec::new(),
        server: object(json!({
            "version": {"flavor": "mariadb", "major": 11, "minor": 8, "patch": 5, "text": "11.8.5-MariaDB"},
            "identity": {"hostname": "db1.example", "server_id": 1},
        })),
        redo: None,
        position: Some(object(json!({
            "precision": "exact", "lsn": 1_000_000 * no, "gtid": format!("0-1-{no}"),
            "binlog": {"file": "binlog.000007", "offset": no * 1_000},
        }))),
        totals,
        flags: Vec::new(),
        roots,
        base: base.map(|run| run.0),
        more: Map::new(),
    }
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Reads the heads of all listed backups; returns their number.
pub(crate) fn read_heads(repo: &Repo, history: &History) -> Result<u64, RepoError> {
    let standing: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
    let mut count = 0;
    history.heads(repo, &standing, |_, head| {
        count += u64::from(Head::decode(&head?).is_ok());
        Ok::<_, RepoError>(())
    })?;
    Ok(count)
}

/// CPU seconds and peak memory of this process.
pub(crate) fn usage() -> Result<(f64, String), Box<dyn Error>> {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    Ok((cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9, peak.trim().to_owned()))
}

/// Runs this program on a directory with each of `verbs`, in separate processes.
pub(crate) fn in_turn(directory: &Path, verbs: &[&str]) -> Result<(), Box<dyn Error>> {
    for verb in verbs {
        let done = Command::new(env::current_exe()?).arg(directory).arg(verb).status()?;
        if !done.success() {
            return Err(format!("{verb} failed").into());
        }
    }
    Ok(())
}
