//! Checks whether the repository is intact: its structure from outcomes, refs and index,
//! and with `read_data` every byte that backups need. A key that cannot open packs sees from their signatures
//! whether they are as they were written. Without `read_data`, only packs that
//! an earlier check found damaged are read.
//!
//! No finding stops the check. Each one names the object, what is wrong with it,
//! and the backups and files that it affects.
//!
//! A check takes no lock, and others may drop and prune meanwhile. Objects that seem missing may then only
//! have been dropped or moved, so everything is checked again, except packs already found intact.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    num::NonZero,
    sync::Arc,
    thread,
    time::Duration,
};

use crate::{
    data::reader::{ChunkSource, ITEM_CACHE_BYTES, catalog},
    error::RepoError,
    format::names::{ChunkRef, LogName, PackId, RunNo},
    interrupt::Interrupt,
    log::{
        check_record::Checked,
        history::{History, Prunes},
        outcome::OutcomeType,
    },
    repo::Repo,
    steps::Steps,
    store::ObjectInfo,
};

mod index;
mod maps;
mod needs;
mod pack_read;
mod packs;
mod proven;
mod records;
mod report;
mod rows;
mod sealed;
mod signed;

use maps::Affected;
use needs::Needed;
use proven::ProvenRows;
pub use report::{CheckReport, Finding, Remedy, Severity};

/// More than this fill a screen and help nobody.
const FILES_NAMED: usize = 20;
/// More memory would not make it faster.
const MAPS_BYTES_MAX: usize = 64 << 20;
const DIRECTORIES_BYTES_MAX: usize = 32 << 20;
/// If others keep dropping and pruning, the findings of the last pass are reported.
const PASSES_MAX: u32 = 4;

/// Options of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Reads every chunk of this fraction of the packs (1: of all), and all page maps. Packs that the last
    /// check to read them found damaged are always read.
    pub read_data: Option<f64>,
    /// Selects the packs, if the fraction is below 1.
    pub seed: u64,
    /// Reads only those of these packs that have not been read for this long, as far as records tell.
    pub unread_for: Option<Duration>,
    /// Begins no more packs after this many bytes. Packs unread for longest come first.
    pub bytes_max: Option<u64>,
    /// Begins no more packs after this time. Packs unread for longest come first.
    pub time_max: Option<Duration>,
    /// Threads that read packs; fewer if the memory does not suffice for all of them.
    pub threads: usize,
    /// Memory for buffers and caches. On top come 30 bytes for each MiB of the data, 20 for each chunk of
    /// rows, and 10 KiB for each backup.
    pub memory_bytes: usize,
    /// Maximum number of files that a finding names.
    pub files_named: usize,
    /// Ends the check early, with [`RepoError::Interrupted`].
    pub interrupt: Interrupt,
    /// Is told how far the check is.
    pub steps: Steps,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            read_data: None,
            seed: 0,
            unread_for: None,
            bytes_max: None,
            time_max: None,
            threads,
            memory_bytes: 256 << 20,
            files_named: FILES_NAMED,
            interrupt: Interrupt::default(),
            steps: Steps::default(),
        }
    }
}

/// How the memory is divided.
struct Budget {
    /// Bytes for items and leaves.
    maps_bytes: usize,
    /// Bytes for the directories of packs that page maps are compared with.
    directories_bytes: usize,
    /// Threads that read packs, which happens before any page map is read.
    threads: usize,
}

impl CheckOptions {
    fn budget(&self) -> Budget {
        let for_reading = self.memory_bytes.saturating_sub(catalog::CACHE_BYTES);
        let for_maps = for_reading.saturating_sub(ITEM_CACHE_BYTES);
        Budget {
            maps_bytes: (for_maps / 2).min(MAPS_BYTES_MAX),
            directories_bytes: (for_maps / 2).min(DIRECTORIES_BYTES_MAX),
            threads: self.threads.clamp(1, (for_reading / packs::THREAD_BYTES).max(1)),
        }
    }
}

/// What only operators can open.
const NOT_READ: [&str; 2] = [
    "the contents of manifests and page maps (their signatures are valid)",
    "the contents of indexes and reports",
];
/// What a check without `read_data` does not see of packs, with such a key.
const PACKS_NOT_READ: &str =
    "the contents of packs (they exist with the recorded size, and their first and last bytes are valid)";
/// What a check with `read_data` does not see of them.
const PACKS_SEALED: &str = "what is in packs (those that were read are as they were written)";
/// What it says if there were others.
const PACKS_UNPROVEN: &str = "packs without a signature that says whether they are as they were written: an early version, or a key that \
     has been removed, wrote them";

/// Checks one log. Errors are those of the store; anything wrong with the repository is a finding.
///
/// Records which packs it has found good, damaged or gone. In a store that it may only read, it cannot record
/// that, nor find out whether a run without an outcome has died; and with limits by age, bytes or time, which
/// take the store's clock, it fails.
pub fn check(repo: &Arc<Repo>, log: &LogName, options: CheckOptions) -> Result<CheckReport, RepoError> {
    let mut whole = Proven::default();
    let mut passes = 1;
    loop {
        // Anew for each pass: others may have deleted what the last one saw.
        let listed = Arc::new(repo.listed());
        let (report, history) = check_once(&listed, log, &options, &mut whole)?;
        if report.findings.is_empty() || passes == PASSES_MAX || !has_dropped_since(repo, &history)? {
            return Ok(report);
        }
        passes += 1;
    }
}

/// Whether others have dropped backups, or declared packs dead, since `history` was read.
fn has_dropped_since(repo: &Repo, history: &History) -> Result<bool, RepoError> {
    let now = history.renewed(repo)?;
    Ok(now.outcomes().iter().any(|outcome| {
        outcome.run >= history.next_run()
            && matches!(outcome.outcome_type, OutcomeType::Expire | OutcomeType::Prune | OutcomeType::Repair)
    }))
}

/// What was read and found intact: it is not read again if others drop and prune during a check.
#[derive(Default)]
pub(crate) struct Proven {
    /// Packs whose every byte was read, with their sizes.
    packs: HashMap<PackId, u64>,
    rows: ProvenRows,
    /// Packs from which the index differed when they were read.
    misled: BTreeSet<PackId>,
}

/// Makes one pass. `whole`: what earlier passes found intact.
fn check_once(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &CheckOptions,
    whole: &mut Proven,
) -> Result<(CheckReport, Arc<History>), RepoError> {
    options.steps.phase("structure");
    let mut report = CheckReport::default();
    let history = History::salvage(repo, log, &mut |_, error| {
        report.stops_runs = true;
        report.findings.push(Finding { remedy: Remedy::Outcome, ..Finding::of(&error, Severity::Lost) });
    })?;
    let prunes = history.all_prunes_or(repo, &mut |_, error| {
        let backups = history.standing().map(|outcome| outcome.run).collect();
        report.stops_runs = true;
        let finding = Finding::of(&error, Severity::Lost);
        report.findings.push(Finding { backups, remedy: Remedy::Outcome, ..finding });
        Ok(())
    })?;
    check_history(repo, history, prunes, report, options, whole)
}

/// Checks everything that follows from `history`. `report` has the findings about the history itself.
pub(crate) fn check_history(
    repo: &Arc<Repo>,
    history: History,
    prunes: Prunes,
    report: CheckReport,
    options: &CheckOptions,
    whole: &mut Proven,
) -> Result<(CheckReport, Arc<History>), RepoError> {
    let source = ChunkSource::with_prunes(Arc::clone(repo), &history, prunes, options.budget().maps_bytes);
    let reads_data = options.read_data.is_some();
    let mut check = Check {
        source: Arc::new(source),
        history: Arc::new(history),
        options: options.clone(),
        report,
        needed: BTreeMap::new(),
        there: BTreeMap::new(),
        checked: Checked::default(),
        read: HashSet::new(),
        bad_packs: HashMap::new(),
        bad_chunks: HashMap::new(),
        affected: Affected::default(),
    };
    check.endings()?;
    check.segments()?;
    check.refs()?;
    if !repo.can_read() {
        check.index_names()?;
        check.packs()?;
        check.unread()?;
        check.found_bad();
        check.sealed_packs()?;
        check.report.not_checked.extend(NOT_READ);
        if reads_data {
            check.options.steps.phase("data");
            check.read_packs(whole)?;
            check.report.not_checked.push(PACKS_SEALED);
            check.report.not_checked.extend((check.report.packs_unproven > 0).then_some(PACKS_UNPROVEN));
        } else {
            check.report.not_checked.push(PACKS_NOT_READ);
        }
        check.attribute()?;
        return Ok((check.report, check.history));
    }
    check.packs()?;
    check.index()?;
    check.unread()?;
    check.record_missing();
    check.forget_useless();
    if reads_data {
        check.options.steps.phase("data");
        check.read_packs(whole)?;
        check.reports()?;
        let checked = Checked::read(repo, check.source.log(), &mut |_| {})?;
        check.report.unread = check.unread_by(&checked);
        check.options.steps.phase("maps");
    } else {
        check.read_packs(whole)?;
    }
    check.backups(&whole.rows)?;
    check.misled(&mut whole.misled)?;
    check.attribute()?;
    Ok((check.report, check.history))
}

struct Check {
    source: Arc<ChunkSource>,
    history: Arc<History>,
    options: CheckOptions,
    report: CheckReport,
    needed: BTreeMap<PackId, Needed>,
    /// Packs that exist.
    there: BTreeMap<PackId, ObjectInfo>,
    /// What earlier checks have read of them.
    checked: Checked,
    /// Packs that this check has read.
    read: HashSet<PackId>,
    /// Positions of findings about packs and chunks, to which backups and files are still to be added.
    bad_packs: HashMap<PackId, usize>,
    bad_chunks: HashMap<ChunkRef, usize>,
    affected: Affected,
}

impl Check {
    fn find(&mut self, finding: Finding) -> usize {
        self.report.findings.push(finding);
        self.report.findings.len() - 1
    }

    /// Turns an error about an object into a finding.
    fn finding(
        &mut self,
        error: RepoError,
        severity: Severity,
        backups: Vec<RunNo>,
    ) -> Result<usize, RepoError> {
        if error.is_of_the_object() {
            Ok(self.find(Finding { backups, ..Finding::of(&error, severity) }))
        } else {
            Err(error)
        }
    }

    /// A read-only store can be checked all the same: that nothing could be recorded is only told.
    fn note_unrecorded(&mut self, recorded: Result<(), RepoError>) {
        if let Err(error) = recorded {
            self.report.not_recorded.get_or_insert(error.to_string());
        }
    }

    fn bad_pack(&mut self, pack: PackId, severity: Severity, problem: impl ToString) {
        let object = self.source.log().pack(pack).to_string();
        let finding = Finding { problem: problem.to_string(), ..Finding::of_object(object, severity) };
        let position = self.find(finding);
        if severity != Severity::Repairable {
            self.bad_packs.entry(pack).or_insert(position);
        }
    }
}
