//! The machine that measurements ran on, and other load on it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Facts about the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    pub(crate) system: String,
    /// Type and device of the filesystem used for everything.
    pub(crate) filesystem: String,
    /// Runnable processes in the minute before the start: a quiet machine has less than 0.5.
    pub(crate) load_at_start: f64,
}

impl Machine {
    /// Examines this machine; `dir` is the working directory of the measurements.
    pub(crate) fn look(dir: &Path) -> Result<Machine> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let memory_kib =
            field(&meminfo, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let load = fs::read_to_string("/proc/loadavg")?;
        Ok(Machine {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: thread::available_parallelism()?.get(),
            memory_bytes: memory_kib.context("no MemTotal in /proc/meminfo")? << 10,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            system: system.unwrap_or("unknown").trim_matches('"').to_owned(),
            filesystem: filesystem(dir)?,
            load_at_start: load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default(),
        })
    }
}

/// A program and its version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ToolVersion {
    pub(crate) name: String,
    /// The version as the program reports it.
    pub(crate) version: String,
}

/// Asks a program for its version: the first line of its output.
pub(crate) fn tool_version(name: &str, program: &Path, option: &str) -> ToolVersion {
    let said = Command::new(program).arg(option).output().ok().and_then(|output| {
        let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        let line = String::from_utf8_lossy(&text).lines().next()?.trim().to_owned();
        // Programs of other packages print their own path first, which is of no use.
        Some(
            line.strip_prefix(&program.display().to_string())
                .map(|rest| rest.trim().to_owned())
                .unwrap_or(line),
        )
    });
    ToolVersion { name: name.to_owned(), version: said.unwrap_or_else(|| "not there".to_owned()) }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

fn filesystem(dir: &Path) -> Result<String> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut best: (usize, String) = (0, "unknown".to_owned());
    for mount in mounts.lines() {
        let mut words = mount.split(' ');
        let (Some(device), Some(point), Some(kind)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        // Of two mounts on the same point, the later one is visible.
        if dir.starts_with(point) && point.len() >= best.0 {
            best = (point.len(), format!("{kind} on {device}"));
        }
    }
    Ok(best.1)
}

/// The kernel's unit for processor time, whatever its internal clock is.
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system time of a running process, without its children.
pub(crate) fn process_cpu_s(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).context(path)?;
    // The program's name, in parentheses, may contain anything; utime and stime are fields 14 and 15.
    let fields = stat.rsplit_once(')').context("no name in stat")?.1;
    let ticks: f64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS_PER_SECOND)
}

/// The time for which all processors together have been busy since boot.
pub(crate) fn machine_cpu_s() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    // The fields are user nice system idle iowait irq softirq steal; later fields are
    // included in user and nice.
    let ticks = |(place, field): (usize, &str)| match place {
        0..3 | 5..8 => field.parse::<f64>().unwrap_or_default(),
        _ => 0.0,
    };
    Ok(line.split_whitespace().skip(1).enumerate().map(ticks).sum::<f64>() / TICKS_PER_SECOND)
}
