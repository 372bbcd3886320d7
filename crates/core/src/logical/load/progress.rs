//! The progress of a load, kept in the target itself: whatever dies, everything recorded here was done.
//!
//! Rows of tables with transactions are committed together with the range of chunks they came from.
//! Everything else is noted when it is about to be made, once nothing is in its place, and when it is done.
//! Only objects with such a note are dropped and made again: anything else that is in an object's place is
//! not the load's.
//!
//! Each process that takes up an unfinished load raises its epoch. A session commits rows only while the
//! epoch is its own, so a process that was believed dead changes nothing any more.

use super::{
    link::{Lease, Link},
    object::{Object, Stage},
    plan::Plan,
    target::Target,
};
use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        selection::LOAD_SCHEMA,
        sql::{quoted, quoted_text},
    },
    points::point,
    server::{Session, SqlError, code::NO_SUCH_TABLE},
};

/// The database of a load, which is dropped when it has ended.
pub(super) const SCHEMA: &str = LOAD_SCHEMA;
/// Objects per statement.
const OBJECTS_PER_STATEMENT: usize = 500;
/// Version of the tables in this database.
const LAYOUT: u32 = 5;

/// MySQL's errors for an engine that is switched off, and for rows that a group cannot replicate.
const NOT_IN_MEMORY: [u16; 2] = [3161, 3098];

/// Marks the current life of the server in a table in memory, which is empty after a restart. Start times
/// have a resolution of a second, and servers start in less. Where tables in memory are forbidden, as in a
/// group, each try counts as another life.
fn note_life(session: &mut Session) -> Result<(), SqlError> {
    let create = format!("CREATE TABLE IF NOT EXISTS {SCHEMA}.life (one INT NOT NULL) ENGINE = MEMORY");
    let noted =
        session.exec(&create).and_then(|()| session.exec(&format!("INSERT INTO {SCHEMA}.life VALUES (1)")));
    match noted {
        Err(error) if error.code().is_some_and(|code| NOT_IN_MEMORY.contains(&code)) => Ok(()),
        noted => noted,
    }
}

/// Whether the server has not been restarted since [`note_life`].
fn is_same_life(session: &mut Session) -> Result<bool, SqlError> {
    match session.number::<u64>(&format!("SELECT COUNT(*) FROM {SCHEMA}.life")) {
        Err(error) if error.code() == Some(NO_SUCH_TABLE) => Ok(false),
        counted => Ok(counted? > 0),
    }
}

/// Errors for a name that is taken: by a table or view, routine, trigger, event.
pub(super) const EXISTS: [u16; 4] = [1050, 1304, 1359, 1537];

/// An object under one of the load's names that the load has not made.
fn in_the_way(what: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("{what} exists by now, and was not made by this load"))
        .hinted("rename or drop it if it is not needed, then run the same command again")
}

/// A load that is under way.
pub(super) struct Progress {
    lease: Lease,
    epoch: u64,
    /// By object of the plan, in their order.
    pub(super) stages: Vec<Stage>,
    /// Whether an earlier process began it.
    pub(super) is_continued: bool,
}

/// What is known of an unfinished load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    identity: String,
    what: String,
    epoch: u64,
}

impl Unfinished {
    fn refuse_another(&self, identity: &str) -> Result<()> {
        if self.identity == identity { Ok(()) } else { Err(self.refusal()) }
    }

    /// The id of the repository that it loads from.
    pub(crate) fn repository(&self) -> &str {
        self.identity.split(' ').next().unwrap_or_default()
    }

    /// Why no other load can begin.
    pub(crate) fn refusal(&self) -> Error {
        Error::failed(format!("an unfinished load is on this server: {}", self.what)).hinted(format!(
            "finish it by the same command; or drop what {SCHEMA}.objects lists with a stage above 0, \
             as far as it is not needed, and then the database {SCHEMA}"
        ))
    }
}

impl Progress {
    /// The unfinished load on this server, if there is one.
    pub(super) fn unfinished(session: &mut Session) -> Result<Option<Unfinished>> {
        let tables = session.rows(&format!(
            "SELECT table_name AS t FROM information_schema.tables WHERE table_schema = '{SCHEMA}'"
        ))?;
        let names: Vec<&str> = tables.iter().map(|row| row.text("t")).collect::<Result<_, _>>()?;
        if let Some(other) = names.iter().find(|name| !["load", "objects", "ranges", "life"].contains(name)) {
            let text =
                format!("there is a table {SCHEMA}.{other}: a database of this name is ours during a load");
            return Err(Error::failed(text).hinted(format!("give the database {SCHEMA} another name")));
        }
        if !names.contains(&"load") {
            return Ok(None);
        }
        let row = session.row(&format!("SELECT layout AS l, what AS w FROM {SCHEMA}.`load`"))?;
        if let Some(row) = row
            && row.number::<u32>("l")? != LAYOUT
        {
            let text = format!(
                "the unfinished load on this server, {}, was begun by another version of holdfast",
                row.text("w")?
            );
            return Err(Error::failed(text).hinted("finish it with that version"));
        }
        let row =
            session.row(&format!("SELECT identity AS i, what AS w, epoch AS e FROM {SCHEMA}.`load`"))?;
        let read = |row: &crate::server::Row| -> Result<Unfinished, SqlError> {
            Ok(Unfinished {
                identity: row.text("i")?.to_owned(),
                what: row.text("w")?.to_owned(),
                epoch: row.number("e")?,
            })
        };
        Ok(row.as_ref().map(read).transpose()?)
    }

    /// The stages of this load's objects, if it has begun and not ended. Refuses any other unfinished load.
    pub(super) fn under_way(
        session: &mut Session,
        identity: &str,
        plan: &Plan,
    ) -> Result<Option<Vec<Stage>>> {
        match Self::unfinished(session)? {
            None => Ok(None),
            Some(found) => {
                found.refuse_another(identity)?;
                Self::stages(session, plan).map(Some)
            }
        }
    }

    /// Begins a load, or resumes it.
    pub(super) fn begin(
        link: &mut Link,
        lease: Lease,
        identity: &str,
        what: &str,
        plan: &Plan,
        verify: bool,
    ) -> Result<Progress> {
        if let Some(found) = Self::unfinished(&mut link.session)? {
            found.refuse_another(identity)?;
            return Self::go_on(link, lease, &found, plan, verify);
        }
        let session = &mut link.session;
        // Any remains were made by a process that died before it changed anything.
        session.exec(&format!("DROP DATABASE IF EXISTS {SCHEMA}"))?;
        session.exec(&format!("CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"))?;
        session.exec(&format!(
            "CREATE TABLE {SCHEMA}.`load` (one INT NOT NULL PRIMARY KEY, layout INT NOT NULL, \
             identity VARCHAR(500) NOT NULL, what TEXT NOT NULL, epoch BIGINT NOT NULL, \
             local_infile_was_off BOOLEAN NOT NULL) ENGINE = InnoDB"
        ))?;
        session.exec(&format!(
            "CREATE TABLE {SCHEMA}.objects (number INT UNSIGNED NOT NULL PRIMARY KEY, kind VARCHAR(20) NOT NULL, \
             place VARCHAR(64) NOT NULL, name VARCHAR(500) NOT NULL, stage TINYINT UNSIGNED NOT NULL) ENGINE = InnoDB"
        ))?;
        session.exec(&format!(
            "CREATE TABLE {SCHEMA}.ranges (object INT UNSIGNED NOT NULL, first_chunk BIGINT UNSIGNED NOT NULL, \
             end_chunk BIGINT UNSIGNED NOT NULL, PRIMARY KEY (object, first_chunk)) ENGINE = InnoDB"
        ))?;
        note_life(session)?;
        let mut stages = vec![Stage::Planned; plan.objects.len()];
        for schema in plan.schemas.iter().filter(|schema| !schema.is_ours) {
            stages[schema.object] = Stage::Done;
        }
        session.exec("START TRANSACTION")?;
        for (block, objects) in plan.objects.chunks(OBJECTS_PER_STATEMENT).enumerate() {
            let values: Vec<String> = objects
                .iter()
                .enumerate()
                .map(|(place, object)| {
                    let number = block * OBJECTS_PER_STATEMENT + place;
                    format!(
                        "({number}, '{}', {}, {}, {})",
                        object.kind.word(),
                        quoted_text(&object.schema),
                        quoted_text(&object.name),
                        stages[number] as u8
                    )
                })
                .collect();
            session.exec(&format!("INSERT INTO {SCHEMA}.objects VALUES {}", values.join(", ")))?;
        }
        session.exec(&format!(
            "INSERT INTO {SCHEMA}.`load` VALUES (1, {LAYOUT}, {}, {}, 1, FALSE)",
            quoted_text(identity),
            quoted_text(what)
        ))?;
        session.exec("COMMIT")?;
        Ok(Progress { lease, epoch: 1, stages, is_continued: false })
    }

    fn go_on(
        link: &mut Link,
        lease: Lease,
        found: &Unfinished,
        plan: &Plan,
        verify: bool,
    ) -> Result<Progress> {
        let session = &mut link.session;
        let epoch = found.epoch + 1;
        // Waits for any session that is about to commit in the epoch before.
        session.exec(&format!("UPDATE {SCHEMA}.`load` SET epoch = {epoch} WHERE one = 1"))?;
        let stages = Self::stages(session, plan)?;
        let mut progress = Progress { lease, epoch, stages, is_continued: true };
        if !is_same_life(session)? {
            progress.doubt(session, plan, verify)?;
            note_life(session)?;
        }
        Ok(progress)
    }

    /// The server was restarted, and may have lost rows of tables without transactions. The load makes these
    /// tables anew. Those it was done with may be in use: they are read again, or left to their users.
    fn doubt(&mut self, session: &mut Session, plan: &Plan, verify: bool) -> Result<()> {
        session.exec("START TRANSACTION")?;
        for table in plan.tables.iter().filter(|table| !table.is_transactional && table.has_rows()) {
            let stage = match self.stages[table.object] {
                Stage::Made | Stage::Filled | Stage::Indexed => Stage::Begun,
                Stage::Done | Stage::Verified if verify => Stage::Done,
                Stage::Done | Stage::Verified => Stage::Planned,
                stage @ (Stage::Planned | Stage::Begun) => stage,
            };
            let mut changed = vec![(table.object, stage)];
            // They are dropped with the table.
            if matches!(stage, Stage::Begun | Stage::Planned) {
                let open = plan.triggers_of(&table.name).filter(|it| self.stages[*it] != Stage::Planned);
                changed.extend(open.map(|trigger| (trigger, stage)));
            }
            for (object, stage) in changed {
                self.note_in_transaction(session, object, stage)?;
                self.stages[object] = stage;
            }
        }
        Ok(session.exec("COMMIT")?)
    }

    /// The stages of the objects of an unfinished load, which must be those of the plan.
    fn stages(session: &mut Session, plan: &Plan) -> Result<Vec<Stage>> {
        let rows = session.rows(&format!(
            "SELECT kind AS k, place AS p, name AS n, stage AS s FROM {SCHEMA}.objects ORDER BY number"
        ))?;
        let mut stages = Vec::with_capacity(rows.len());
        for (position, row) in rows.iter().enumerate() {
            let object = plan.objects.get(position);
            let is_same = |object: &Object| -> Result<bool, SqlError> {
                Ok(row.text("k")? == object.kind.word()
                    && row.text("p")? == object.schema
                    && row.text("n")? == object.name)
            };
            if !object.map(is_same).transpose()?.unwrap_or(false) {
                break;
            }
            let number = row.number("s")?;
            let unknown = || Error::failed(format!("{SCHEMA}.objects has a stage {number}"));
            stages.push(Stage::of(number).ok_or_else(unknown)?);
        }
        if stages.len() != plan.objects.len() || rows.len() != plan.objects.len() {
            return Err(Error::failed("the unfinished load was of other objects")
                .hinted("finish it with the version of holdfast that has begun it"));
        }
        Ok(stages)
    }

    /// Records the stage of an object.
    pub(super) fn note(&self, session: &mut Session, object: usize, stage: Stage) -> Result<()> {
        session.exec("START TRANSACTION")?;
        self.note_in_transaction(session, object, stage)?;
        Ok(session.exec("COMMIT")?)
    }

    /// Makes an object, noted beforehand. `make` is told whether to drop what exists: the remains of an
    /// earlier try, or what is to be overwritten. Refuses anything else in its place.
    pub(super) fn make(
        &self,
        link: &mut Link,
        (target, object): (&Target, usize),
        overwrite: bool,
        plan: &Plan,
        make: impl FnOnce(&mut Link, bool) -> Result<(), SqlError>,
    ) -> Result<()> {
        let is_ours = self.stages[object] != Stage::Planned;
        let Object { kind, schema, name } = &plan.objects[object];
        if !is_ours && !overwrite && target.is_there_by_now(&mut link.session, *kind, schema, name)? {
            return Err(in_the_way(&format!("{schema}.{name}")));
        }
        if !is_ours {
            self.note(&mut link.session, object, Stage::Begun)?;
        }
        point("load.object.noted");
        let made = make(link, is_ours || overwrite);
        if let Err(error) = &made
            && error.code().is_some_and(|code| EXISTS.contains(&code))
        {
            // Another session was faster.
            return Err(self.leave_to_others(&mut link.session, object, plan)?);
        }
        if let Err(error) = &made
            && error.code().is_some()
            && matches!(target.is_there_by_now(&mut link.session, *kind, schema, name), Ok(false))
        {
            // The server takes it in no form of ours: whatever is made in its place is not ours.
            self.note(&mut link.session, object, Stage::Planned)?;
        }
        Ok(made?)
    }

    /// Notes that what is in an object's place is not the load's, and not for the next try to drop. Returns the
    /// error that says so.
    pub(super) fn leave_to_others(&self, session: &mut Session, object: usize, plan: &Plan) -> Result<Error> {
        self.note(session, object, Stage::Planned)?;
        let Object { schema, name, .. } = &plan.objects[object];
        Ok(in_the_way(&format!("{schema}.{name}")))
    }

    /// As [`note`](Self::note), in the open transaction.
    pub(super) fn note_in_transaction(
        &self,
        session: &mut Session,
        object: usize,
        stage: Stage,
    ) -> Result<()> {
        self.fence(session)?;
        let stage = stage as u8;
        Ok(session.exec(&format!("UPDATE {SCHEMA}.objects SET stage = {stage} WHERE number = {object}"))?)
    }

    /// Records, in the open transaction, that the rows of these chunks are in.
    pub(super) fn note_range(
        &self,
        session: &mut Session,
        object: usize,
        first: u64,
        end: u64,
    ) -> Result<()> {
        self.fence(session)?;
        session.exec(&format!("INSERT INTO {SCHEMA}.ranges VALUES ({object}, {first}, {end})"))?;
        Ok(())
    }

    /// The error for a process whose load another has taken up.
    pub(super) fn taken_up(&self) -> Error {
        Error::new(ErrorKind::Active, "another process has taken over this load")
    }

    /// Fails if another process has taken this load up. If not, none can before the transaction ends.
    pub(super) fn fence(&self, session: &mut Session) -> Result<()> {
        self.lease.keep()?;
        let query = format!("SELECT epoch FROM {SCHEMA}.`load` WHERE one = 1 LOCK IN SHARE MODE");
        let epoch: u64 = session.number(&query)?;
        if epoch == self.epoch {
            return Ok(());
        }
        Err(self.taken_up())
    }

    /// Whether this load has switched `local_infile` on, and not yet off again.
    pub(super) fn has_local_infile_on(&self, session: &mut Session) -> Result<bool> {
        let query = format!("SELECT local_infile_was_off FROM {SCHEMA}.`load` WHERE one = 1");
        Ok(session.number::<u8>(&query)? != 0)
    }

    /// Switches `local_infile` on or off. It is noted before it is on, and until it is off. Returns `false`
    /// if another process has taken this load up, which now has to see to it.
    pub(super) fn set_local_infile(&self, session: &mut Session, is_on: bool) -> Result<bool, SqlError> {
        session.exec("START TRANSACTION")?;
        // From here on no process can take the load up before the transaction ends.
        let query = format!("SELECT epoch FROM {SCHEMA}.`load` WHERE one = 1 FOR UPDATE");
        if session.number::<u64>(&query)? != self.epoch {
            session.exec("ROLLBACK")?;
            return Ok(false);
        }
        session.exec(&format!("UPDATE {SCHEMA}.`load` SET local_infile_was_off = {is_on} WHERE one = 1"))?;
        if is_on {
            session.exec("COMMIT")?;
            session.exec("SET GLOBAL local_infile = ON")?;
        } else {
            // A process that takes a load up may lack the right to switch it off, when another process has
            // already done so.
            let is_off = session.number::<u8>("SELECT @@GLOBAL.local_infile")? == 0;
            if !is_off && let Err(error) = session.exec("SET GLOBAL local_infile = OFF") {
                // Another try must not wait for this row.
                drop(session.exec("ROLLBACK"));
                return Err(error);
            }
            session.exec("COMMIT")?;
        }
        Ok(true)
    }

    /// The ranges of chunks of a table that are in, in order.
    pub(super) fn ranges(&self, session: &mut Session, object: usize) -> Result<Vec<(u64, u64)>> {
        let rows = session.rows(&format!(
            "SELECT first_chunk AS f, end_chunk AS e FROM {SCHEMA}.ranges WHERE object = {object} ORDER BY 1"
        ))?;
        let pair = |row: &crate::server::Row| Ok((row.number("f")?, row.number("e")?));
        Ok(rows.iter().map(pair).collect::<Result<_, SqlError>>()?)
    }

    /// Forgets which rows of a table are in: it is begun anew.
    pub(super) fn forget_ranges(&self, session: &mut Session, object: usize) -> Result<()> {
        Ok(session.exec(&format!("DELETE FROM {SCHEMA}.ranges WHERE object = {object}"))?)
    }

    /// Records that the load is done with its tables, which are not read again.
    pub(super) fn note_done(&self, session: &mut Session, plan: &Plan) -> Result<()> {
        session.exec("START TRANSACTION")?;
        for table in plan.tables.iter().filter(|table| self.stages[table.object] != Stage::Verified) {
            self.note_in_transaction(session, table.object, Stage::Done)?;
        }
        Ok(session.exec("COMMIT")?)
    }

    /// Records the result of reading tables again. Tables that differ are no longer the load's, nor are the
    /// triggers that go with them.
    pub(super) fn note_verified(
        &self,
        session: &mut Session,
        plan: &Plan,
        differing: &[usize],
        open: &[usize],
    ) -> Result<()> {
        session.exec("START TRANSACTION")?;
        for (number, table) in plan.tables.iter().enumerate() {
            if open.contains(&number) && !differing.contains(&number) {
                continue;
            }
            if !differing.contains(&number) {
                self.note_in_transaction(session, table.object, Stage::Verified)?;
                continue;
            }
            self.forget_ranges(session, table.object)?;
            self.note_in_transaction(session, table.object, Stage::Planned)?;
            for trigger in plan.triggers_of(&table.name) {
                self.note_in_transaction(session, trigger, Stage::Planned)?;
            }
        }
        Ok(session.exec("COMMIT")?)
    }

    /// Ends the load.
    pub(super) fn end(&self, session: &mut Session) -> Result<()> {
        self.fence(session)?;
        Ok(session.exec(&format!("DROP DATABASE {}", quoted(SCHEMA)))?)
    }
}
