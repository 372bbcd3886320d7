//! Loading a logical backup into a running server.
//!
//! [`run`] is the outline: look at the target → decide what becomes of each object → read what is to replace
//! existing rows → databases and sequences → tables with their rows and indexes, and rows read again meanwhile
//! → foreign keys → routines, views, triggers → rows not read again yet → grants and events.
//!
//! Invariants: nothing is touched before everything that can be refused is; existing objects stay, unless
//! they are to be overwritten; a load interrupted at any moment is resumed by the same command, without a row
//! too many or too few; what a successful load made was read again and equals the backup, or it is named.

mod accept;
mod adapt;
mod alike;
mod computed;
mod elements;
mod foreign_keys;
mod link;
mod local_infile;
mod names;
mod object;
mod plan;
mod planning;
mod programs;
mod progress;
mod readable;
mod redo;
mod report;
mod rows;
mod target;
mod verify;

use std::sync::Arc;

use holdfast_formats::Flavor;
use holdfast_repo::{
    Kind, LogName, Repo, RunNo, data::reader::Backup, format::hex::to_hex, log::history::History,
};
use jiff::Timestamp;
use serde_json::json;

pub use adapt::{Conversion, Conversions};
pub use names::{Rename, Renames};
pub use plan::Adaptation;
pub use report::{LoadPlan, LoadReport};
pub use target::Way;

use link::Link;
use object::Stage;
use plan::Plan;
use programs::Programs;
use progress::Progress;
pub(crate) use progress::Unfinished;
use target::Target;
use verify::Verifying;

use super::{selection::Selection, stored::origin::Origin};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    head,
    points::point,
    server::{ConnectOptions, Purpose, Session},
    watch::{Watch, ms},
};

/// How often a load goes on by itself after its tunnel has broken.
const WAYS_MAX: u32 = 3;
/// The phase from which the target is changed.
pub(crate) const CREATE: &str = "create";

/// How to load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The target.
    pub connect: ConnectOptions,
    /// What to load from the backup.
    pub selection: Selection,
    /// What the backup is called, if not by its own name.
    pub called: Option<String>,
    /// Objects that get another name.
    pub renames: Renames,
    /// What is converted: engines, character sets.
    pub conversions: Conversions,
    /// Drops existing objects of the same names.
    pub overwrite: bool,
    /// Leaves out what the target cannot have, instead of refusing.
    pub leave_out: bool,
    /// Creates the scheduler's events disabled.
    pub disable_events: bool,
    /// Creates them as of this time; `None`: now, when the time of some may have passed.
    pub events_as_of: Option<Timestamp>,
    /// Writes nothing into the target's binlog.
    pub without_binlog: bool,
    /// MySQL: switches redo logging off during the load. A crash of the server then loses the whole server.
    pub disable_redo: bool,
    /// MySQL: switches `local_infile` on during the load, for the whole server.
    pub enable_local_infile: bool,
    /// Reads everything again before the load ends.
    pub verify: bool,
    /// Number of sessions that load.
    pub parallel: usize,
    /// Chunks of rows, of about 256 KiB each, that one transaction loads: this much is repeated after an
    /// interruption.
    pub chunks_per_commit: u64,
}

impl LoadOptions {
    /// Options as an expert would choose them.
    #[must_use]
    pub fn new(connect: ConnectOptions) -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            connect,
            selection: Selection::default(),
            called: None,
            renames: Renames::default(),
            conversions: Conversions::default(),
            overwrite: false,
            leave_out: false,
            disable_events: false,
            events_as_of: None,
            without_binlog: false,
            disable_redo: false,
            enable_local_infile: false,
            verify: true,
            parallel: processors.clamp(2, 8),
            chunks_per_commit: 64,
        }
    }
}

/// The unfinished load on a server, if there is one.
pub(crate) fn unfinished(session: &mut Session) -> Result<Option<Unfinished>> {
    Progress::unfinished(session)
}

/// A load that was looked into; nothing is touched yet.
struct Loading<'a> {
    backup: Backup,
    target: Target,
    plan: Plan,
    control: Link,
    identity: String,
    shown: LoadPlan,
    /// Numbers of views that wait for what their owners may do.
    denied: Vec<usize>,
    options: &'a LoadOptions,
}

/// Reports what a load would do, and refuses what it would refuse. Changes nothing.
pub fn plan(
    repo: &Arc<Repo>,
    log: &LogName,
    run: RunNo,
    options: &LoadOptions,
    cancel: &Cancel,
) -> Result<LoadPlan> {
    one_server(options)
        .and_then(|options| Ok(Loading::look(repo, log, run, &options, cancel)?.shown))
        .map_err(|error| options.connect.explain_loss(error).at(repo))
}

/// The options, with sessions on one server only: a name may lead to several.
fn one_server(options: &LoadOptions) -> Result<LoadOptions> {
    let identity = Session::open(&options.connect, Purpose::Load)?.identity()?;
    Ok(LoadOptions { connect: options.connect.leading_to(&identity), ..options.clone() })
}

/// Loads a backup.
pub fn run(
    repo: &Arc<Repo>,
    log: &LogName,
    run: RunNo,
    options: &LoadOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<LoadReport> {
    let watch = Watch::new(listener);
    watch.phase("look");
    let options = &one_server(options).map_err(|error| options.connect.explain_loss(error))?;
    let mut ways_left = WAYS_MAX;
    loop {
        let done =
            Loading::look(repo, log, run, options, cancel).and_then(|loading| loading.load(&watch, cancel));
        match done {
            // It continues where it was, as if the same command were given again.
            Err(error) if ways_left > 0 && options.connect.is_loss_of_tunnel(&error) => {
                cancel.check()?;
                ways_left -= 1;
                let error = options.connect.explain_loss(error);
                let text = format!("the connection to the server is lost, continuing over another: {error}");
                watch.event(Event::Warning { text });
            }
            done => return done.map_err(|error| options.connect.explain_loss(error).at(repo)),
        }
    }
}

impl<'a> Loading<'a> {
    fn look(
        repo: &Arc<Repo>,
        log: &LogName,
        run: RunNo,
        options: &'a LoadOptions,
        cancel: &Cancel,
    ) -> Result<Self> {
        let history = History::read(repo, log)?;
        let backup = Backup::open(repo, &history, run)?;
        if log.kind != Kind::Logical {
            return Err(Error::new(ErrorKind::Usage, format!("{log} {run} is not a logical backup"))
                .hinted("a physical one is restored into a directory: --target-dir"));
        }
        let mut control = Link::first(options)?;
        let mut target = Target::read(&mut control.session)?;
        if target.is_in_group && options.without_binlog {
            return Err(Error::new(
                ErrorKind::Usage,
                "the target is a member of a group, whose other members would not get the rows",
            )
            .hinted("load without --without-binlog: the other members get only what is in the binlog"));
        }
        local_infile::refuse(&target, options)?;
        control.configure(options, &target)?;
        redo::refuse(&mut control, &target, options)?;
        let mut plan = Plan::make(&backup, &target, &mut control.session, options, cancel)?;
        target.computing = plan.computing.clone();
        control.configure(options, &target)?;
        let name = options.called.clone().unwrap_or_else(|| format!("{log}{run}"));
        let renames: Vec<String> = options.renames.0.iter().map(ToString::to_string).collect();
        let mut asked = vec![json!(options.selection.identity()), json!(renames), json!(options.overwrite)];
        asked.extend(options.conversions.identity().map(|conversions| json!(conversions)));
        // Replicas of the target get all of it or nothing.
        asked.extend(options.without_binlog.then(|| json!("without_binlog")));
        let asked = json!(asked).to_string();
        let asked = to_hex(&blake3::hash(asked.as_bytes()).as_bytes()[..8]);
        // The repository comes first: see `Unfinished::repository`.
        let identity = format!("{} {name} {asked}", repo.info().repository_id);
        let stages = Progress::under_way(&mut control.session, &identity, &plan)?;
        let is_continued = stages.is_some();
        plan.mark_accounts(&mut control.session, options, stages.as_deref())?;
        refuse_missing_privileges(&target, &plan)?;
        let there = in_the_way(&plan, &target, stages.as_deref(), options)?;
        let source_version = head::server_version(backup.head());
        let row_bytes = plan.tables.iter().map(|table| table.totals.bytes).sum();
        let schemas_there = plan.schemas.iter().filter(|schema| !schema.is_ours).count();
        let rows_by = local_infile::way(&target, options);
        let shown = LoadPlan {
            import: Origin::of(backup.head()),
            source_version: source_version.map(|version| version.to_string()).unwrap_or_default(),
            backup: name,
            target_version: target.version.to_string(),
            tables: plan.tables.len() as u64,
            rows: plan.tables.iter().map(|table| table.totals.rows).sum(),
            row_bytes,
            objects: (plan.objects.len() - plan.tables.len() - plan.accounts.len() - schemas_there) as u64,
            accounts: plan.accounts.len() as u64,
            overwritten: there,
            is_continued,
            rows_by,
            faster: local_infile::would_help(target.flavor, rows_by, row_bytes),
            adapted: plan.adapted(),
            left_out: plan.left_out.clone(),
        };
        Ok(Self { backup, target, plan, control, identity, shown, denied: Vec::new(), options })
    }

    fn load(mut self, watch: &Watch<'_>, cancel: &Cancel) -> Result<LoadReport> {
        let changes = self.shown.adapted.iter().chain(&self.shown.left_out).map(Adaptation::to_string);
        for text in changes.chain(self.shown.faster.clone()) {
            watch.event(Event::Note { text });
        }
        let lease = self.control.become_the_load(self.options)?;
        // Until now others could create objects, and another process could take this load up, or end it.
        self.target.read_again(&mut self.control.session)?;
        let stages = Progress::under_way(&mut self.control.session, &self.identity, &self.plan)?;
        self.shown.is_continued = stages.is_some();
        self.plan.mark_accounts(&mut self.control.session, self.options, stages.as_deref())?;
        self.shown.adapted = self.plan.adapted();
        self.shown.overwritten = in_the_way(&self.plan, &self.target, stages.as_deref(), self.options)?;
        let replacing = readable::replacing(&self.plan, &self.target, stages.as_deref());
        if !replacing.is_empty() {
            watch.phase("read");
            readable::read(&self.backup, &replacing, self.options, (watch, cancel))?;
        }
        // From here on the target is changed.
        watch.phase(CREATE);
        let verify = self.options.verify;
        let progress = Progress::begin(
            &mut self.control,
            lease,
            &self.identity,
            &self.shown.backup,
            &self.plan,
            verify,
        )?;
        if progress.is_continued {
            watch.event(Event::Note { text: "resuming an unfinished load".to_owned() });
        }
        point("load.begun");
        let infile = local_infile::switch_on(&mut self.control, &progress, &mut self.target, self.options)?;
        let made = self.make_without_redo(&progress, watch, cancel);
        let with = (&self.target, self.options);
        let off_again = infile.map_or(Ok(()), |infile| infile.switch_off(&mut self.control, &progress, with));
        let (loaded, tables_verified) = both(made, off_again)?;
        watch.phase("finish");
        let programs = Programs {
            plan: &self.plan,
            target: &self.target,
            options: self.options,
            progress: &progress,
            cancel,
        };
        let ended = programs.at_the_end(&mut self.control, &self.denied)?;
        self.shown.name_refused(ended.left_out, watch);
        self.shown.name_adapted(ended.adapted, watch);
        point("load.ended");
        progress.end(&mut self.control.session)?;
        programs::give_up_roles(&mut self.control.session, &ended.roles)?;
        Ok(LoadReport {
            plan: self.shown,
            rows_loaded: loaded.rows,
            row_bytes_loaded: loaded.bytes,
            tables_verified,
            by_parameters: loaded.are_parameters,
            by_load_data: self.target.has_local_infile && !loaded.are_parameters,
            total_ms: ms(watch.elapsed()),
            phases: watch.phases(),
        })
    }

    /// Makes everything but events and grants, which wait for the end; without the redo log if asked for.
    fn make_without_redo(
        &mut self,
        progress: &Progress,
        watch: &Watch<'_>,
        cancel: &Cancel,
    ) -> Result<(rows::Loaded, u64)> {
        let redo = redo::switch_off(&mut self.control, self.options)?;
        let made = self.make(progress, watch, cancel);
        // Whatever the result, others write there now, under settings of their own.
        let let_go = let_go(&mut self.control, &self.plan, &self.target);
        let made = made.and_then(|made| {
            self.shown.name_adapted(let_go?, watch);
            Ok(made)
        });
        let on_again = redo.map_or(Ok(()), |redo| redo.switch_on(&mut self.control, self.options));
        both(made, on_again)
    }

    fn make(
        &mut self,
        progress: &Progress,
        watch: &Watch<'_>,
        cancel: &Cancel,
    ) -> Result<(rows::Loaded, u64)> {
        let Self { backup, target, plan, control, options, shown, denied, .. } = self;
        let programs = Programs { plan, target, options, progress, cancel };
        shown.name_refused(programs.before_tables(control)?, watch);
        watch.phase("rows");
        let verifying = options.verify.then(|| Verifying::new(backup, plan, cancel)).transpose()?;
        let with = (&*target, *options);
        let mut loaded =
            rows::load(backup, plan, with, progress, verifying.as_ref(), control, (watch, cancel))?;
        shown.name_adapted(std::mem::take(&mut loaded.adapted), watch);
        point("load.rows.done");
        watch.phase("keys");
        control.compute(target, true)?;
        let unlinked = foreign_keys::add(plan, target, options.leave_out, progress, control, cancel)?;
        shown.name_refused(unlinked, watch);
        control.compute(target, false)?;
        watch.phase("programs");
        let after = programs.after_tables(control)?;
        shown.name_refused(after.left_out, watch);
        *denied = after.denied;
        point("load.programs.made");
        let mut verified = 0;
        if let Some(verifying) = verifying {
            watch.phase("verify");
            let mut verdict = verifying.rest(target, options, progress, watch)?;
            shown.name_adapted(std::mem::take(&mut verdict.adapted), watch);
            let differing: Vec<usize> = verdict.differing.iter().map(|(table, _)| *table).collect();
            let computed = std::mem::take(&mut verdict.computed);
            let are_open = |(table, _): &(usize, Adaptation)| (!options.leave_out).then_some(*table);
            let open: Vec<usize> = computed.iter().filter_map(are_open).collect();
            progress.note_verified(&mut control.session, plan, &differing, &open)?;
            point("load.verified");
            if !differing.is_empty() {
                return Err(verdict.into_error(options.overwrite));
            }
            let computed: Vec<Adaptation> = computed.into_iter().map(|(_, what)| what).collect();
            if !open.is_empty() {
                return Err(verify::computed_otherwise(&computed));
            }
            shown.name_refused(computed, watch);
            verified = verdict.verified;
        } else {
            progress.note_done(&mut control.session, plan)?;
        }
        Ok((loaded, verified))
    }
}

/// Returns the result of the load, if everything switched for it is switched back. A failure to do so must
/// not be hidden by the reason why the load has failed.
fn both<T>(made: Result<T>, switched_back: Result<()>) -> Result<T> {
    match (made, switched_back) {
        (Ok(made), switched_back) => switched_back.map(|()| made),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => {
            let what_to_do = left.hint().unwrap_or_default();
            Err(error.also_hinted(format_args!("{left}: {what_to_do}")))
        }
    }
}

impl LoadPlan {
    /// Names what the target has made differently.
    fn name_adapted(&mut self, adapted: Vec<Adaptation>, watch: &Watch<'_>) {
        for adapted in adapted {
            watch.event(Event::Note { text: adapted.to_string() });
            self.adapted.push(adapted);
        }
    }

    /// Names what has turned out to be impossible on the target.
    fn name_refused(&mut self, refused: Vec<Adaptation>, watch: &Watch<'_>) {
        for refused in refused {
            watch.event(Event::Note { text: refused.to_string() });
            self.left_out.push(refused);
        }
    }
}

/// Closes tables that compute by the source's settings. MariaDB keeps tables open between sessions, and
/// computes by the settings of the session that opened them (10.11 and 11.8; MySQL 9.7 does not); later
/// writers must not compute by the source's.
fn let_go(control: &mut Link, plan: &Plan, target: &Target) -> Result<Vec<Adaptation>> {
    const AT_ONCE: usize = 50;
    if target.flavor != Flavor::MariaDb || !plan.computing.is_other {
        return Ok(Vec::new());
    }
    let names: Vec<String> = plan
        .tables
        .iter()
        .filter(|table| computed::is_any(&table.sql))
        .map(|table| table.name.quoted())
        .collect();
    let mut adapted = Vec::new();
    for names in names.chunks(AT_ONCE) {
        let statement = format!("FLUSH LOCAL TABLES {}", names.join(", "));
        match control.exec(statement.as_bytes()) {
            Err(error) if error.code().is_some() => adapted.push(Adaptation {
                object: "computed columns".to_owned(),
                what: format!(
                    "until these tables are closed, other sessions may compute their columns by the source's settings: \
                     FLUSH TABLES {} ({error})",
                    names.join(", ")
                ),
            }),
            done => drop(done?),
        }
    }
    Ok(adapted)
}

/// Existing objects under the load's names. Fails if there are any, unless they are to be overwritten.
fn in_the_way(
    plan: &Plan,
    target: &Target,
    stages: Option<&[Stage]>,
    options: &LoadOptions,
) -> Result<Vec<String>> {
    let there = plan.conflicts(target, stages);
    if there.is_empty() || options.overwrite {
        return Ok(there);
    }
    let word = if there.len() == 1 { "exists" } else { "exist" };
    let text = format!("{} {word} already", plan::named(&there));
    let hint = if stages.is_some() {
        "the unfinished load did not make that: rename or drop it if it is not needed, then run the same command again"
    } else {
        "load under other names (--as), leave them out (--exclude-table), or drop them: --overwrite"
    };
    Err(Error::new(ErrorKind::Usage, text).hinted(hint))
}

/// Privileges that the account needs wherever something is made.
const PRIVILEGES: [&str; 7] = ["CREATE", "DROP", "ALTER", "INDEX", "SELECT", "INSERT", "REFERENCES"];

/// Fails with the missing grants.
fn refuse_missing_privileges(target: &Target, plan: &Plan) -> Result<()> {
    let mut wanted: Vec<&str> = PRIVILEGES.to_vec();
    for (is_wanted, privileges) in [
        (!plan.views.is_empty(), &["CREATE VIEW", "SHOW VIEW"][..]),
        (!plan.routines.is_empty(), &["CREATE ROUTINE", "ALTER ROUTINE"][..]),
        (!plan.triggers.is_empty(), &["TRIGGER"][..]),
        (!plan.events.is_empty(), &["EVENT"][..]),
    ] {
        if is_wanted {
            wanted.extend(privileges);
        }
    }
    let mut statements = Vec::new();
    for schema in plan.schemas.iter().map(|schema| schema.name.as_str()).chain([progress::SCHEMA]) {
        let of_ours = ["CREATE", "DROP", "SELECT", "INSERT", "UPDATE", "DELETE"];
        let wanted = if schema == progress::SCHEMA { &of_ours[..] } else { &wanted[..] };
        statements.extend(target.privileges.missing(wanted, schema));
    }
    if !plan.accounts.is_empty() && !target.privileges.has("CREATE USER") {
        statements.extend(target.privileges.missing(&["CREATE USER"], "*"));
    }
    if statements.is_empty() {
        return Ok(());
    }
    let text = "the account lacks privileges on the target".to_owned();
    Err(Error::new(ErrorKind::Server, text).hinted(statements.join("\n")))
}
