//! The report: JSON with the raw results, and a table and a plot made from it.

mod markdown;
mod svg;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::goals;
use crate::results::{Results, SCHEMA_VERSION, Unit};
use crate::stats::Spread;

pub(crate) use markdown::goals;

/// Writes the report to `base` with three file extensions.
pub(crate) fn write(results: &Results, base: &Path) -> Result<()> {
    let mut json = serde_json::to_string_pretty(results)?;
    json.push('\n');
    put(base, "json", &json)?;
    put(base, "md", &markdown::page(results))?;
    put(base, "svg", &svg::plot(results))
}

/// Regenerates table and plot, using the current goals.
pub(crate) fn again(file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut results: Results = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    ensure!(
        results.schema_version == SCHEMA_VERSION,
        "{}: schema version {}, this program reads {SCHEMA_VERSION}",
        file.display(),
        results.schema_version
    );
    results.goals = goals::judge(&results);
    write(&results, &file.with_extension(""))
}

fn put(base: &Path, ending: &str, text: &str) -> Result<()> {
    let mut path = base.as_os_str().to_owned();
    path.push(".");
    path.push(ending);
    let path = PathBuf::from(path);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// Formats a number.
fn number(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => megabytes(value),
        Unit::BytesPerCpuS => format!("{:.0} MB/CPU s", value / 1e6),
        Unit::BytesPerS => format!("{:.0} MB/s", value / 1e6),
        Unit::Pages => format!("{value:.0}"),
        Unit::Ratio => format!("{value:.3}"),
        Unit::Ms => format!("{value:.1} ms"),
    }
}

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

/// Formats a median, with the extremes if there are several values.
fn spread(values: Spread, show: impl Fn(f64) -> String) -> String {
    match values.count {
        1 => show(values.median),
        _ => format!("{} ({} to {})", show(values.median), show(values.min), show(values.max)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::machine::Machine;
    use crate::results::{Cache, Data, Group, Load, Results, SCHEMA_VERSION, Sample, Series};
    use crate::suite::Suite;

    /// Results of three rounds, the second of which was slow for all contestants, and a
    /// contestant that is missing.
    pub(crate) fn results() -> Results {
        let sample = |round: u32, wall_s: f64| Sample {
            round,
            wall_s,
            user_s: 1.0,
            system_s: 0.5,
            rss_max_bytes: 1 << 20,
            server_cpu_s: Some(0.1),
            other_cpu_s: 0.0,
            stored_bytes: Some(4_000_000),
            clients: None,
            said: None,
        };
        let series = |contestant: &str, walls: &[f64]| Series {
            group: Group {
                scenario: "full".to_owned(),
                server: "mariadb-10.11".to_owned(),
                cache: Cache::Cold,
                load: Load::Idle,
            },
            contestant: contestant.to_owned(),
            label: format!("label of <{contestant}>"),
            command: "cp -a \"$A\" \"$B\"".to_owned(),
            samples: (0..).zip(walls).map(|(round, wall)| sample(round, *wall)).collect(),
            not_measured: walls.is_empty().then(|| "zstd is not installed".to_owned()),
        };
        Results {
            schema_version: SCHEMA_VERSION,
            suite: Suite::Physical,
            name: "test".to_owned(),
            begun_at: "2026-01-02T03:04:05Z".to_owned(),
            elapsed_s: 60.0,
            rounds: 3,
            quick: false,
            machine: Machine {
                cpu: "Some CPU".to_owned(),
                cores: 2,
                memory_bytes: 8 << 30,
                kernel: "6.1".to_owned(),
                system: "Debian".to_owned(),
                filesystem: "ext4 on /dev/vda".to_owned(),
                load_at_start: 0.1,
            },
            tools: Vec::new(),
            data: vec![Data {
                server: "mariadb-10.11".to_owned(),
                scenario: None,
                server_version: "10.11.1".to_owned(),
                datadir_bytes: 5_000_000,
                data_file_bytes: 4_000_000,
                description: "rows".to_owned(),
            }],
            series: vec![
                series("floor", &[10.0, 30.0, 10.0]),
                series("holdfast-plain", &[11.0, 33.0, 11.0]),
                series("mariadb-backup", &[9.0, 31.0, 10.0]),
                series("mariadb-backup-zstd", &[]),
            ],
            figures: Vec::new(),
            failures: Vec::new(),
            goals: Vec::new(),
        }
    }
}
