//! The results of a run: the JSON in `bench/results`, from which tables and plots are made.
//!
//! `SCHEMA_VERSION` is raised when a field is removed or changes its meaning.
//! Unless a name says otherwise, durations are in seconds and sizes in bytes.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::goals::Verdict;
use crate::machine::{Machine, ToolVersion};
use crate::stats::Spread;
use crate::suite::Suite;

pub(crate) const SCHEMA_VERSION: u32 = 1;

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) schema_version: u32,
    /// Defaults to physical for results from before there were other suites.
    #[serde(default)]
    pub(crate) suite: Suite,
    pub(crate) name: String,
    pub(crate) begun_at: String,
    pub(crate) elapsed_s: f64,
    /// How often each contestant ran.
    pub(crate) rounds: u32,
    /// A smoke test: the figures mean nothing.
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
    pub(crate) tools: Vec<ToolVersion>,
    pub(crate) data: Vec<Data>,
    pub(crate) series: Vec<Series>,
    pub(crate) figures: Vec<Figure>,
    /// Scenarios that ended early, with the reason.
    pub(crate) failures: Vec<String>,
    pub(crate) goals: Vec<Verdict>,
}

/// The data that were backed up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Data {
    /// The server's name. The amplification scenario has its own data.
    pub(crate) server: String,
    pub(crate) scenario: Option<String>,
    pub(crate) server_version: String,
    /// Size of the whole data directory, as allocated on disk.
    pub(crate) datadir_bytes: u64,
    /// Size of the files that any backup must read: without logs, temporary files and doublewrite files.
    pub(crate) data_file_bytes: u64,
    pub(crate) description: String,
}

/// State of the page cache when a command starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cache {
    /// Emptied.
    Cold,
    /// The data files have been read.
    Warm,
}

/// What the server does during a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Load {
    /// It runs without clients.
    Idle,
    /// It serves writers and the commit prober.
    Writes,
    /// The same, and it serves connections that change definitions, and their prober.
    Definitions,
    /// It does not run: restores need no server.
    Stopped,
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cache::Cold => "cold",
            Cache::Warm => "warm",
        })
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Load::Idle => "idle",
            Load::Writes => "under writes",
            Load::Definitions => "under writes and DDL",
            Load::Stopped => "server stopped",
        })
    }
}

/// Contestants that were measured in turns and are comparable with each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) scenario: String,
    pub(crate) server: String,
    pub(crate) cache: Cache,
    pub(crate) load: Load,
}

/// One contestant's runs in one group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    #[serde(flatten)]
    pub(crate) group: Group,
    /// A stable identifier for programs.
    pub(crate) contestant: String,
    /// A description for people.
    pub(crate) label: String,
    /// The shell command that was timed.
    pub(crate) command: String,
    pub(crate) samples: Vec<Sample>,
    /// Why there are no samples, or fewer.
    pub(crate) not_measured: Option<String>,
}

/// One run of one contestant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) round: u32,
    pub(crate) wall_s: f64,
    /// User time of all processes of the command.
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
    /// Peak memory of the largest process of the command.
    pub(crate) rss_max_bytes: u64,
    /// CPU time of the server meanwhile: some tools make it do their work.
    pub(crate) server_cpu_s: Option<f64>,
    /// CPU time of everything else on the machine except this program: the kernel's write-back,
    /// and unrelated processes.
    pub(crate) other_cpu_s: f64,
    /// Disk space allocated by the result.
    pub(crate) stored_bytes: Option<u64>,
    /// What clients of the server experienced meanwhile.
    pub(crate) clients: Option<Clients>,
    /// The tool's own report, for tools that provide one as JSON.
    pub(crate) said: Option<Value>,
}

/// What clients of the server experienced while a command ran.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Clients {
    /// Commits of the prober: single rows, one after the other, at most 1,000 per second.
    pub(crate) commits: usize,
    pub(crate) commit_median_ms: f64,
    pub(crate) commit_p99_ms: f64,
    pub(crate) commit_longest_ms: f64,
    /// When the longest commit was sent, relative to the start of the command.
    #[serde(default)]
    pub(crate) commit_longest_at_s: f64,
    /// The longest change of a definition, where they are probed: a view made or dropped, every 20 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) definition_longest_ms: Option<f64>,
    /// The rate of the writers.
    pub(crate) transactions_per_s: f64,
}

/// A measurement that is not a run of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) scenario: String,
    pub(crate) server: String,
    /// A stable identifier for programs.
    pub(crate) id: String,
    /// A description for people.
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) values: Vec<f64>,
}

/// MySQL's lock that only makes changes of definitions wait.
const INSTANCE_LOCK: &str = "LOCK INSTANCE FOR BACKUP";

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    Bytes,
    BytesPerCpuS,
    BytesPerS,
    Pages,
    /// A factor.
    Ratio,
    Ms,
}

impl Series {
    /// Median and extremes of one property of the samples.
    pub(crate) fn spread(&self, of: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(of))
    }
}

impl Sample {
    /// A field of the report that Holdfast ends with.
    pub(crate) fn reported(&self, field: &str) -> Option<&Value> {
        self.said.as_ref()?.get("data")?.get("report")?.get(field)
    }

    /// The longest lock that Holdfast reports and that blocks reads or writes: waiting for one can hold up others
    /// as well.
    pub(crate) fn longest_lock_ms(&self) -> Option<f64> {
        self.longest_ms(|statement| statement != INSTANCE_LOCK)
    }

    /// The longest instance lock that it reports.
    pub(crate) fn instance_lock_ms(&self) -> Option<f64> {
        self.longest_ms(|statement| statement == INSTANCE_LOCK)
    }

    fn longest_ms(&self, is_meant: impl Fn(&str) -> bool) -> Option<f64> {
        let locks = self.reported("locks")?.as_array()?;
        let blocked = |lock: &Value| Some(lock["wait_ms"].as_f64()? + lock["held_ms"].as_f64()?);
        let is_meant = |lock: &&Value| lock["statement"].as_str().is_some_and(&is_meant);
        locks.iter().filter(is_meant).filter_map(blocked).reduce(f64::max)
    }

    /// CPU time of the command's own processes.
    pub(crate) fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }
}

impl Results {
    /// The groups in the order in which they were measured.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for series in &self.series {
            if !groups.contains(&series.group) {
                groups.push(series.group.clone());
            }
        }
        groups
    }

    pub(crate) fn in_group<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = &'a Series> {
        self.series.iter().filter(move |series| series.group == *group)
    }

    /// The values of one figure.
    pub(crate) fn figure(&self, scenario: &str, server: &str, id: &str) -> Option<&Figure> {
        self.figures.iter().find(|it| it.scenario == scenario && it.server == server && it.id == id)
    }
}
