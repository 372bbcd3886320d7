//! Is the repository whole? Structure from outcomes, refs and index; with `read_data`, every byte that backups need.
//!
//! Nothing stops at the first finding. Each names the object, what is wrong with it, and the backups and files that
//! it takes down.
//!
//! A check takes no lock, and others drop and prune beside it. What is found while they do may only have been dropped
//! or moved: then all but the packs that were found whole is looked at again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    num::NonZero,
    sync::Arc,
    thread,
    time::Duration,
};

use crate::{
    checked::{Checked, Unread},
    error::RepoError,
    history::{History, Prunes, list_folder},
    interrupt::Interrupt,
    item::ItemPath,
    lease::look,
    names::{ChunkRef, Folder, LogName, PackId, RunNo},
    object::{ObjectKind, Place},
    outcome::OutcomeType,
    pack::PackRows,
    reader::{
        ChunkSource, ITEM_CACHE_BYTES,
        catalog::{self, is_of_the_object, list_index_parts, read_index_part},
    },
    refs::NeededPack,
    repo::Repo,
    run::REPORT_BYTES_MAX,
    segment::{SegmentReader, is_superseded, list_segments},
    steps::Steps,
    store::{ObjectInfo, exists},
};

mod maps;
mod packs;
mod rows;
mod sealed;

use rows::ProvenRows;

/// More fill a screen and help nobody.
const FILES_NAMED: usize = 20;
/// More would not make it quicker.
const MAPS_BYTES_MAX: usize = 64 << 20;
const DIRECTORIES_BYTES_MAX: usize = 32 << 20;
/// Where others do not stop dropping and pruning, what is found in the end is told.
const PASSES_MAX: u32 = 4;

/// What to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Reads every chunk of this share of the packs (1: of all), and all page maps.
    pub read_data: Option<f64>,
    /// Chooses which, where the share is below 1.
    pub seed: u64,
    /// Of these, only packs that nobody has read for so long, as far as it is recorded.
    pub unread_for: Option<Duration>,
    /// Begins no more packs after so many bytes: those that were read longest ago first.
    pub bytes_max: Option<u64>,
    /// Begins no more packs after this time: those that were read longest ago first.
    pub time_max: Option<Duration>,
    /// Threads that read packs; fewer where the memory does not do for all of them.
    pub threads: usize,
    /// Memory for buffers and caches. On top come 30 bytes for each MiB of the data,
    /// 20 for each chunk of rows, and 10 KiB for each backup.
    pub memory_bytes: usize,
    /// Files that a finding names, at most.
    pub files_named: usize,
    /// Ends it early, with [`RepoError::Interrupted`].
    pub interrupt: Interrupt,
    /// Hears how far it is.
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
    /// Bytes of items and leaves.
    maps_bytes: usize,
    /// Bytes of the directories of packs that page maps are compared with.
    directories_bytes: usize,
    /// Threads that read packs, before any page map is.
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

/// What is sealed for operators only.
const NOT_READ: [&str; 3] = [
    "what is in manifests and page maps (their signatures are right)",
    "what is in packs (they are there, of the size that was recorded, and begin and end as they should)",
    "what is in indexes and reports",
];

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Backups can be restored; what is wrong can be made anew from what is there, or no restore needs it.
    Repairable,
    /// Data of a backup is gone, or cannot be trusted.
    Lost,
}

/// What a repair can do about a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// It drops the backups that need what is lost; without any, nothing.
    #[default]
    Drop,
    /// It makes the refs of these backups anew from their page maps.
    Refs,
    /// It makes the index of this run anew from its packs.
    Index(RunNo),
    /// It deletes the object, which no restore needs.
    Discard,
    /// It says that the run came to nothing, or finds out what its prune did.
    Outcome,
}

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The object, down to the chunk.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// What a repair can do about it.
    pub remedy: Remedy,
    /// The backups that need it.
    pub backups: Vec<RunNo>,
    /// The files that need it, as far as page maps were read: the first few.
    pub files: Vec<ItemPath>,
    /// How many more files.
    pub files_more: u64,
}

/// What a check did and found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// What is wrong, worst first.
    pub findings: Vec<Finding>,
    /// What every run builds on is damaged: nothing more can be written to this log ([`RepoError::History`]).
    pub stops_runs: bool,
    /// Backups that stand.
    pub backups: u64,
    /// Packs that they need.
    pub packs: u64,
    /// Of these, packs that were read.
    pub packs_read: u64,
    /// Bytes of them.
    pub bytes_read: u64,
    /// Packs that were to be read, and are left for want of time or by the number of bytes.
    pub packs_left: u64,
    /// Bytes of them.
    pub bytes_left: u64,
    /// For how long what backups need was not read, after this check.
    pub unread: Unread,
    /// Why it is not recorded what was read.
    pub not_recorded: Option<String>,
    /// Items whose page maps were read.
    pub items_walked: u64,
    /// What was not looked at, because the key cannot read it.
    pub not_checked: Vec<&'static str>,
}

/// Checks one log. Errors are those of the store; what is wrong with the repository is a finding.
pub fn check(repo: &Arc<Repo>, log: &LogName, options: CheckOptions) -> Result<CheckReport, RepoError> {
    let mut whole = Proven::default();
    let mut passes = 1;
    loop {
        let (report, history) = check_once(repo, log, &options, &mut whole)?;
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

/// What was read and found right: it is not read again where others drop and prune beside a check.
#[derive(Default)]
pub(crate) struct Proven {
    /// Packs of which every byte was read, with their sizes.
    packs: HashMap<PackId, u64>,
    rows: ProvenRows,
    /// Packs of which the index said something else when they were read.
    misled: BTreeSet<PackId>,
}

/// `whole`: what was found right by a check before.
fn check_once(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &CheckOptions,
    whole: &mut Proven,
) -> Result<(CheckReport, History), RepoError> {
    options.steps.phase("structure");
    let mut report = CheckReport::default();
    let history = History::salvage(repo, log, &mut |_, error| {
        report.stops_runs = true;
        report.findings.push(Finding { remedy: Remedy::Outcome, ..Finding::of(&error, Severity::Lost) });
    })?;
    let prunes = history.prunes_or(repo, &mut |_, error| {
        let backups = history.standing().map(|outcome| outcome.run).collect();
        report.stops_runs = true;
        let finding = Finding::of(&error, Severity::Lost);
        report.findings.push(Finding { backups, remedy: Remedy::Outcome, ..finding });
        Ok(())
    })?;
    check_history(repo, history, prunes, report, options, whole)
}

/// What follows from `history`; `report` says what is wrong with that.
pub(crate) fn check_history(
    repo: &Arc<Repo>,
    history: History,
    prunes: Prunes,
    report: CheckReport,
    options: &CheckOptions,
    whole: &mut Proven,
) -> Result<(CheckReport, History), RepoError> {
    let source = ChunkSource::with_prunes(Arc::clone(repo), &history, prunes, options.budget().maps_bytes);
    let reads_data = options.read_data.is_some();
    let mut check = Check {
        source: Arc::new(source),
        history,
        options: options.clone(),
        report,
        needed: BTreeMap::new(),
        there: BTreeMap::new(),
        read: HashSet::new(),
        bad_packs: HashMap::new(),
        bad_chunks: HashMap::new(),
    };
    check.endings()?;
    check.segments()?;
    check.refs()?;
    if !repo.can_read() {
        check.index_names()?;
        check.packs()?;
        check.unread()?;
        check.sealed_packs()?;
        check.report.not_checked.extend(NOT_READ);
        if reads_data {
            check
                .report
                .not_checked
                .push("any stored byte of the data: --read-data does nothing with this key");
        }
        check.attribute()?;
        return Ok((check.report, check.history));
    }
    check.packs()?;
    check.index()?;
    check.unread()?;
    if reads_data {
        check.options.steps.phase("data");
        check.read_packs(whole)?;
        check.reports()?;
        check.report.unread = check.unread_now(&mut |_| {})?;
        check.options.steps.phase("maps");
    }
    check.backups(&whole.rows)?;
    check.misled(&mut whole.misled)?;
    check.attribute()?;
    Ok((check.report, check.history))
}

impl Finding {
    pub(crate) fn of(error: &RepoError, severity: Severity) -> Self {
        let (object, problem) = match error {
            RepoError::Damaged { object, damage } => (object.clone(), damage.to_string()),
            RepoError::Store(error) => (error.path.clone(), error.kind.to_string()),
            other => (String::new(), other.to_string()),
        };
        Self { problem, ..Self::of_object(object, severity) }
    }
}

/// What all backups together need of a pack, and what is in it.
#[derive(Debug, Default)]
struct Needed {
    /// As the first refs have it that name the pack; of a pack that was asked, what it says itself.
    shape: Option<Shape>,
    /// Whether some refs, the index or the store have another size or other chunks.
    is_disputed: bool,
    /// Of each chunk up to the last needed one, whether it is.
    chunks: Vec<bool>,
}

/// Size and chunks of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    size_bytes: u64,
    /// Units of each chunk; `None` where the key at hand cannot tell.
    units: Option<Vec<u32>>,
}

impl Shape {
    fn of_refs(pack: &NeededPack) -> Self {
        let units = pack.chunks.iter().map(|chunk| chunk.units).collect();
        Self { size_bytes: pack.size_bytes, units: Some(units) }
    }

    fn of_rows(rows: &PackRows) -> Self {
        let units = rows.rows().iter().map(|row| row.unit_count).collect();
        Self { size_bytes: rows.size_bytes, units: Some(units) }
    }

    fn fits(&self, other: &Self) -> bool {
        let units = self.units.as_ref().zip(other.units.as_ref());
        self.size_bytes == other.size_bytes && units.is_none_or(|(one, other)| one == other)
    }
}

impl Needed {
    fn need(&mut self, ordinal: u32) {
        let chunk = ordinal as usize;
        if self.chunks.len() <= chunk {
            self.chunks.resize(chunk + 1, false);
        }
        self.chunks[chunk] = true;
    }

    fn needs(&self, ordinal: u32) -> bool {
        self.chunks.get(ordinal as usize).is_some_and(|needed| *needed)
    }
}

struct Check {
    source: Arc<ChunkSource>,
    history: History,
    options: CheckOptions,
    report: CheckReport,
    needed: BTreeMap<PackId, Needed>,
    /// Packs that exist.
    there: BTreeMap<PackId, ObjectInfo>,
    /// Packs that were read.
    read: HashSet<PackId>,
    /// Findings about packs and chunks, to which backups and files are still to be added.
    bad_packs: HashMap<PackId, usize>,
    bad_chunks: HashMap<ChunkRef, usize>,
}

impl Check {
    fn find(&mut self, finding: Finding) -> usize {
        self.report.findings.push(finding);
        self.report.findings.len() - 1
    }

    /// Makes an error that is about an object a finding.
    fn finding(
        &mut self,
        error: RepoError,
        severity: Severity,
        backups: Vec<RunNo>,
    ) -> Result<usize, RepoError> {
        if is_of_the_object(&error) {
            Ok(self.find(Finding { backups, ..Finding::of(&error, severity) }))
        } else {
            Err(error)
        }
    }

    fn bad_pack(&mut self, pack: PackId, severity: Severity, problem: impl ToString) {
        let object = self.source.log().pack(pack).to_string();
        let finding = Finding { problem: problem.to_string(), ..Finding::of_object(object, severity) };
        let position = self.find(finding);
        if severity == Severity::Lost {
            self.bad_packs.entry(pack).or_insert(position);
        }
    }

    /// Outcomes that are not there, and whose absence shows: after the newest that is, nothing tells of one but what its
    /// run stored before it, and what later runs did.
    fn endings(&mut self) -> Result<(), RepoError> {
        let (repo, log) = (Arc::clone(self.source.repo()), self.source.log().clone());
        let next = self.history.next_run();
        let foreseen = self.history.last_foreseen();
        let mut strangers = self.history.strangers().first().map(|run| log.outcome(*run).to_string());
        let mut begun = Vec::new();
        let mut stored = Vec::new();
        for folder in [Folder::Runs, Folder::Refs, Folder::Reports] {
            let runs = list_folder(&repo, &log, folder)?.into_keys().map(|(run, _)| run);
            let mut runs: Vec<RunNo> = runs.filter(|run| *run >= next).collect();
            if let Some(far) = runs.iter().find(|run| **run > foreseen) {
                strangers.get_or_insert_with(|| format!("{}{:010}", log.folder(folder), far.0));
            }
            runs.retain(|run| *run <= foreseen);
            if folder == Folder::Refs {
                stored.clone_from(&runs);
            }
            begun.extend(runs);
        }
        if let Some(object) = strangers {
            let problem =
                "bears the number of a run that is not to be for long: it counts for nothing".to_owned();
            self.find(Finding { problem, ..Finding::of_object(object, Severity::Repairable) });
        }
        if let Some(run) = self.history.uncertain_hold() {
            let problem = "was to hold backups, or to let go of them, and its outcome is gone, or never was: say once more \
                           what is held"
                .to_owned();
            let object = log.outcome(run).to_string();
            self.find(Finding { problem, ..Finding::of_object(object, Severity::Repairable) });
        }
        let Some(newest) = begun.into_iter().max() else { return Ok(()) };
        // It may have come since the history was read.
        let is_there = |run| exists(&**repo.store(), &log.outcome(run));
        if is_there(next)? {
            return Ok(());
        }
        if newest > next {
            self.report.stops_runs = true;
            let problem = format!("is missing: run {newest} began after it");
            let object = log.outcome(next).to_string();
            self.find(Finding {
                problem,
                remedy: Remedy::Outcome,
                ..Finding::of_object(object, Severity::Lost)
            });
        }
        let is_alive = look(&repo, &log, newest)?.is_some_and(|lease| lease.is_alive);
        if stored.contains(&newest) && !is_alive && !is_there(newest)? {
            let problem = format!(
                "is missing, although run {newest} had stored all that comes before it: either the run died just there, \
                 or its outcome was deleted, and what it recorded with it"
            );
            let object = log.outcome(newest).to_string();
            self.find(Finding {
                problem,
                remedy: Remedy::Outcome,
                ..Finding::of_object(object, Severity::Lost)
            });
        }
        Ok(())
    }

    /// Refs of every backup: whole, and what they need is not dead.
    fn refs(&mut self) -> Result<(), RepoError> {
        let standing: Vec<RunNo> = self.history.standing().map(|outcome| outcome.run).collect();
        self.report.backups = standing.len() as u64;
        for run in standing {
            self.options.interrupt.check()?;
            let refs = match self.history.backup_refs(self.source.repo(), run) {
                Ok(refs) => refs,
                Err(error) => {
                    let position = self.finding(error, Severity::Lost, vec![run])?;
                    self.report.findings[position].remedy = Remedy::Refs;
                    continue;
                }
            };
            for pack in refs.packs {
                let mut is_compared = false;
                for (ordinal, need) in pack.chunks.iter().enumerate() {
                    let stored = ChunkRef { pack: pack.pack, ordinal: ordinal as u32 };
                    let chunk = self.source.resolve(stored);
                    if need.needed > 0 {
                        let needed = self.needed.entry(chunk.pack).or_default();
                        needed.need(chunk.ordinal);
                        if chunk == stored && !is_compared {
                            is_compared = true;
                            let shape = Shape::of_refs(&pack);
                            needed.is_disputed |= *needed.shape.get_or_insert_with(|| shape.clone()) != shape;
                        }
                    }
                }
            }
        }
        let dead: Vec<PackId> =
            self.needed.keys().copied().filter(|pack| self.source.prunes().is_dead(*pack)).collect();
        for pack in dead {
            self.bad_pack(pack, Severity::Lost, "a prune has named it dead, and a backup needs it");
        }
        self.report.packs = self.needed.len() as u64;
        Ok(())
    }

    /// Packs of which refs or the store say different things: what a pack says of itself decides, and refs that say
    /// something else are to be made anew. Nobody can harm one backup by what he says of its packs in another.
    fn disputes(&mut self) -> Result<(), RepoError> {
        let disputed = self.needed.iter().filter(|(_, needed)| needed.is_disputed);
        let disputed: Vec<PackId> = disputed.map(|(pack, _)| *pack).collect();
        for pack in &disputed {
            self.ask(*pack)?;
        }
        self.disputed_refs(&disputed.into_iter().collect())
    }

    /// Asks a pack itself what is in it. Without a key for that its size is all that can be told.
    fn ask(&mut self, pack: PackId) -> Result<(), RepoError> {
        self.options.interrupt.check()?;
        let Some(size_bytes) = self.there.get(&pack).map(|info| info.size_bytes) else { return Ok(()) };
        let own = match self.source.repo().can_read() {
            true => self.source.confirmed_pack(pack).map(|rows| Shape::of_rows(&rows)),
            false => Ok(Shape { size_bytes, units: None }),
        };
        let needed = self.needed.entry(pack).or_default();
        needed.is_disputed = true;
        match own {
            Ok(own) => needed.shape = Some(own),
            Err(error) if is_of_the_object(&error) => {
                let recorded = needed.shape.as_ref().map(|shape| shape.size_bytes);
                let problem = match recorded.filter(|recorded| *recorded != size_bytes) {
                    Some(recorded) => format!("is {size_bytes} bytes, recorded are {recorded}"),
                    None => Finding::of(&error, Severity::Lost).problem,
                };
                self.bad_pack(pack, Severity::Lost, problem);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Finds the refs that say something else of `packs` than these do. If all that name one do, it may be another pack
    /// than they mean: their page maps tell.
    fn disputed_refs(&mut self, packs: &BTreeSet<PackId>) -> Result<(), RepoError> {
        let asked = packs.iter().filter(|pack| !self.bad_packs.contains_key(pack));
        let asked: BTreeSet<PackId> = asked.copied().collect();
        if asked.is_empty() {
            return Ok(());
        }
        let mut agreed = BTreeSet::new();
        let mut wrong: Vec<(RunNo, PackId)> = Vec::new();
        let standing: Vec<RunNo> = self.history.standing().map(|outcome| outcome.run).collect();
        for run in standing {
            self.options.interrupt.check()?;
            let Ok(refs) = self.history.backup_refs(self.source.repo(), run) else { continue };
            for pack in refs.packs.iter().filter(|pack| asked.contains(&pack.pack)) {
                let said = Shape::of_refs(pack);
                let own = self.needed.get(&pack.pack).and_then(|needed| needed.shape.as_ref());
                match own.is_none_or(|own| own.fits(&said)) {
                    true => drop(agreed.insert(pack.pack)),
                    false => wrong.push((run, pack.pack)),
                }
            }
        }
        if !self.source.repo().can_read() {
            // Whose word is right cannot be told; that nobody's is can.
            for pack in asked.difference(&agreed) {
                let size_bytes = self.there.get(pack).map_or(0, |info| info.size_bytes);
                let problem = format!("is {size_bytes} bytes, and no backup that needs it says so");
                self.bad_pack(*pack, Severity::Lost, problem);
            }
            wrong.retain(|(_, pack)| agreed.contains(pack));
        }
        for of_run in wrong.chunk_by(|one, next| one.0 == next.0) {
            let run = of_run[0].0;
            let is_alone = |(_, pack): &&(RunNo, PackId)| !agreed.contains(pack);
            let alone = of_run.iter().find(is_alone);
            let (severity, pack) =
                alone.map_or((Severity::Repairable, of_run[0].1), |(_, pack)| (Severity::Lost, *pack));
            let problem =
                format!("say something else of the size or the chunks of pack {pack} than it does itself");
            let object = self.source.log().refs(run).to_string();
            let finding = Finding::of_object(object, severity);
            self.find(Finding { problem, remedy: Remedy::Refs, backups: vec![run], ..finding });
        }
        Ok(())
    }

    /// The index of every run whose packs are needed: whole, and agreeing with the packs.
    fn index(&mut self) -> Result<(), RepoError> {
        let exist = list_index_parts(self.source.repo(), self.source.log())?;
        let void = self.history.void_index(self.source.repo())?;
        let mut asked = BTreeSet::new();
        let runs: BTreeSet<RunNo> = self.needed.keys().map(|pack| pack.run).collect();
        for run in runs {
            let recorded = self.history.outcome(run).map_or(0, |outcome| outcome.index_parts);
            let parts: BTreeSet<u32> = exist
                .get(&run)
                .into_iter()
                .flatten()
                .copied()
                .filter(|part| !void.contains(&(run, *part)))
                .collect();
            let mut listed: BTreeSet<PackId> = BTreeSet::new();
            for part in &parts {
                self.options.interrupt.check()?;
                match read_index_part(self.source.repo(), self.source.log(), run, *part) {
                    Ok(packs) => {
                        let mut wrong = None;
                        for (part, rows) in packs {
                            let pack = PackId { run, part };
                            listed.insert(pack);
                            if !self.is_as_listed(pack, &rows, &mut asked)? {
                                wrong.get_or_insert(pack);
                            }
                        }
                        if let Some(pack) = wrong {
                            let object = self.source.log().index(run, *part).to_string();
                            let problem =
                                format!("says something else of the size or the chunks of pack {pack}");
                            let finding = Finding::of_object(object, Severity::Repairable);
                            self.find(Finding { problem, remedy: Remedy::Index(run), ..finding });
                        }
                    }
                    Err(error) => {
                        let position = self.finding(error, Severity::Repairable, Vec::new())?;
                        self.report.findings[position].remedy = Remedy::Index(run);
                    }
                }
            }
            let unlisted = self.needed.range(PackId { run, part: 0 }..=PackId { run, part: u32::MAX });
            let unlisted: Vec<PackId> =
                unlisted.map(|(pack, _)| *pack).filter(|pack| !listed.contains(pack)).collect();
            for pack in unlisted {
                let object = self.source.log().pack(pack).to_string();
                let problem = "no index part lists it".to_owned();
                let finding = Finding::of_object(object, Severity::Repairable);
                self.find(Finding { problem, remedy: Remedy::Index(run), ..finding });
            }
            // Parts all of whose packs are gone may be gone; that is seen by what they should list.
            if recorded > 0 && parts.is_empty() {
                let object = self.source.log().index(run, 0).to_string();
                let problem = format!("none of {recorded} index parts is there");
                self.find(Finding {
                    problem,
                    remedy: Remedy::Index(run),
                    ..Finding::of_object(object, Severity::Repairable)
                });
            }
        }
        self.disputed_refs(&asked)
    }

    /// Whether a pack that is needed is what the index says, as far as backups and the pack itself tell.
    /// Packs that were asked for this are added to `asked`.
    fn is_as_listed(
        &mut self,
        pack: PackId,
        rows: &PackRows,
        asked: &mut BTreeSet<PackId>,
    ) -> Result<bool, RepoError> {
        let listed = Shape::of_rows(rows);
        let Some(needed) = self.needed.get(&pack) else { return Ok(true) };
        let fits = |needed: &Needed| needed.shape.as_ref().is_none_or(|shape| shape.fits(&listed));
        let is_short = needed.chunks.len() > rows.rows().len();
        if (fits(needed) && !is_short) || !self.there.contains_key(&pack) {
            return Ok(true);
        }
        if !needed.is_disputed {
            self.ask(pack)?;
            asked.insert(pack);
        }
        Ok(self.bad_packs.contains_key(&pack) || self.needed.get(&pack).is_none_or(fits))
    }

    /// Every needed pack is there, and what refs say of it.
    fn packs(&mut self) -> Result<(), RepoError> {
        let there = list_folder(self.source.repo(), self.source.log(), Folder::Packs)?;
        self.there = there.into_iter().map(|((run, part), info)| (PackId { run, part }, info)).collect();
        // A listing may be behind, or leave something out: only the object itself tells that it is gone.
        let unlisted: Vec<PackId> =
            self.needed.keys().copied().filter(|pack| !self.there.contains_key(pack)).collect();
        for pack in unlisted {
            self.options.interrupt.check()?;
            match self.source.repo().store().head(&self.source.log().pack(pack)) {
                Ok(info) => drop(self.there.insert(pack, info)),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut missing = Vec::new();
        for (pack, needed) in &mut self.needed {
            match self.there.get(pack).map(|info| info.size_bytes) {
                None => missing.push(*pack),
                Some(size) => {
                    needed.is_disputed |= needed.shape.as_ref().is_some_and(|shape| shape.size_bytes != size);
                }
            }
        }
        for pack in missing {
            self.bad_pack(pack, Severity::Lost, "is missing");
        }
        self.disputes()
    }

    /// For how long what backups need was not read. A record that cannot be believed is found, if no check has written
    /// another since.
    fn unread(&mut self) -> Result<(), RepoError> {
        let mut damaged = Vec::new();
        self.report.unread = self.unread_now(&mut |error| damaged.push(error))?;
        for error in damaged {
            let finding = Finding::of(&error, Severity::Repairable);
            self.find(Finding { remedy: Remedy::Discard, ..finding });
        }
        Ok(())
    }

    fn unread_now(&self, each: &mut dyn FnMut(RepoError)) -> Result<Unread, RepoError> {
        let checked = Checked::read(self.source.repo(), self.source.log(), each)?;
        let mut unread = Unread::default();
        for pack in self.needed.keys() {
            if let Some(info) = self.there.get(pack) {
                unread.add(&checked, *pack, info);
            }
        }
        Ok(unread)
    }

    /// Segments that are needed: signed, whole, and none missing between others.
    fn segments(&mut self) -> Result<(), RepoError> {
        let (repo, log) = (Arc::clone(self.source.repo()), self.source.log().clone());
        for run in list_segments(&repo, &log)?.into_keys() {
            if is_superseded(&self.history, run) {
                continue;
            }
            let mut reader = SegmentReader::new(&repo, &self.history, run);
            let read = loop {
                self.options.interrupt.check()?;
                match reader.read_next() {
                    Ok(Some(_)) => {}
                    Ok(None) => break reader.check_end(),
                    Err(error) => break Err(error),
                }
            };
            if let Err(error) = read
                // The run may have ended meanwhile, and its segments gone.
                && !is_superseded(&self.history.renewed(&repo)?, run)
            {
                self.finding(error, Severity::Lost, Vec::new())?;
            }
        }
        Ok(())
    }

    /// The report of every backup that has one. No restore needs it.
    fn reports(&mut self) -> Result<(), RepoError> {
        let (repo, log) = (Arc::clone(self.source.repo()), self.source.log().clone());
        for (run, part) in list_folder(&repo, &log, Folder::Reports)?.into_keys() {
            self.options.interrupt.check()?;
            let place = Place { log: &log, kind: ObjectKind::Report, run, part };
            if let Err(error) = repo.read_object(&place, REPORT_BYTES_MAX) {
                let position = self.finding(error, Severity::Repairable, Vec::new())?;
                self.report.findings[position].remedy = Remedy::Discard;
            }
        }
        Ok(())
    }

    /// Packs of which the index was found wrong on the way; those that were read `before` are compared once more.
    fn misled(&mut self, before: &mut BTreeSet<PackId>) -> Result<(), RepoError> {
        for pack in before.iter().filter(|pack| self.needed.contains_key(pack)) {
            match self.source.confirmed_pack(*pack) {
                Err(error) if !is_of_the_object(&error) => return Err(error),
                _ => {}
            }
        }
        before.extend(self.source.misled());
        let remedies = self.report.findings.iter().map(|it| it.remedy);
        let told: HashSet<Remedy> = remedies.collect();
        for pack in self.source.misled() {
            let remedy = Remedy::Index(pack.run);
            if told.contains(&remedy) {
                continue;
            }
            let object = self.source.log().pack(pack).to_string();
            let problem = "its directory and the index disagree: the directory counts".to_owned();
            let finding = Finding::of_object(object, Severity::Repairable);
            self.find(Finding { problem, remedy, ..finding });
        }
        Ok(())
    }

    /// Adds to each finding about a pack or a chunk the backups whose refs need it.
    fn attribute(&mut self) -> Result<(), RepoError> {
        if !self.bad_packs.is_empty() || !self.bad_chunks.is_empty() {
            let standing: Vec<RunNo> = self.history.standing().map(|outcome| outcome.run).collect();
            for run in standing {
                let Ok(refs) = self.history.backup_refs(self.source.repo(), run) else { continue };
                let mut hit: HashSet<usize> = HashSet::new();
                for pack in &refs.packs {
                    for (ordinal, _) in pack.chunks.iter().enumerate().filter(|(_, need)| need.needed > 0) {
                        let stored = ChunkRef { pack: pack.pack, ordinal: ordinal as u32 };
                        let chunk = self.source.resolve(stored);
                        hit.extend(self.bad_chunks.get(&chunk));
                        hit.extend(self.bad_packs.get(&chunk.pack));
                    }
                }
                for position in hit {
                    if let Some(finding) = self.report.findings.get_mut(position)
                        && !finding.backups.contains(&run)
                    {
                        finding.backups.push(run);
                    }
                }
            }
        }
        self.report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Ok(())
    }
}

impl Finding {
    fn of_object(object: String, severity: Severity) -> Self {
        Self {
            severity,
            object,
            problem: String::new(),
            remedy: Remedy::default(),
            backups: Vec::new(),
            files: Vec::new(),
            files_more: 0,
        }
    }
}
