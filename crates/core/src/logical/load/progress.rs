//! How far a load is, kept in the target itself: whatever dies, what stands here is what was done.
//!
//! Rows of tables with transactions are committed together with the range of chunks they came from. Everything else is
//! noted when it is done: what was begun and not noted is dropped and made again, which is safe because nothing of it was
//! there when the load began.
//!
//! Each load that takes an unfinished one up raises its epoch. A session commits rows only while the epoch is its own, so
//! one that was believed dead changes nothing any more.

use super::{
    link::Link,
    plan::{Object, ObjectKind, Plan},
};
use crate::{
    error::{Error, ErrorKind, Result},
    logical::objects::{quoted, quoted_text},
    server::{Session, SqlError},
};

/// The database of a load, which is gone when it has ended.
pub(super) const SCHEMA: &str = "holdfast_load";
/// Objects in one statement.
const OBJECTS_PER_STATEMENT: usize = 500;
/// Version of the tables here.
const LAYOUT: u32 = 1;

/// How far an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Stage {
    /// It is not there, or not whole.
    Planned = 0,
    /// A table: it is there, without rows.
    Made = 1,
    /// A table: all of its rows are there.
    Filled = 2,
    /// A table: with its indexes.
    Indexed = 3,
    /// There is nothing more to do. A database: it is others', too.
    Done = 4,
}

impl Stage {
    fn read(number: u8) -> Result<Stage> {
        [Self::Planned, Self::Made, Self::Filled, Self::Indexed, Self::Done]
            .into_iter()
            .find(|stage| *stage as u8 == number)
            .ok_or_else(|| Error::failed(format!("{SCHEMA}.objects has a stage {number}")))
    }
}

/// A load that is under way.
pub(super) struct Progress {
    epoch: u64,
    /// Of the plan's objects, in their order.
    pub(super) stages: Vec<Stage>,
    /// Whether an earlier process has begun it.
    pub(super) is_continued: bool,
}

/// What is known of a load that has not ended.
struct Unfinished {
    identity: String,
    what: String,
    epoch: u64,
}

impl Progress {
    /// What an unfinished load on this server is, if there is one.
    fn unfinished(session: &mut Session) -> Result<Option<Unfinished>> {
        let tables = session.rows(&format!(
            "SELECT table_name AS t FROM information_schema.tables WHERE table_schema = '{SCHEMA}'"
        ))?;
        let names: Vec<&str> = tables.iter().map(|row| row.text("t")).collect::<Result<_, _>>()?;
        if let Some(other) = names.iter().find(|name| !["load", "objects", "ranges"].contains(name)) {
            let text =
                format!("there is a table {SCHEMA}.{other}: a database of this name is ours during a load");
            return Err(Error::failed(text).hinted(format!("give the database {SCHEMA} another name")));
        }
        if !names.contains(&"load") {
            return Ok(None);
        }
        let row =
            session.row(&format!("SELECT identity AS i, what AS w, epoch AS e FROM {SCHEMA}.`load`"))?;
        let read = |row: &crate::server::session::Row| -> Result<Unfinished, SqlError> {
            Ok(Unfinished {
                identity: row.text("i")?.to_owned(),
                what: row.text("w")?.to_owned(),
                epoch: row.number("e")?,
            })
        };
        Ok(row.as_ref().map(read).transpose()?)
    }

    /// Whether this load has begun and not ended. Another unfinished one is refused.
    pub(super) fn is_under_way(session: &mut Session, identity: &str) -> Result<bool> {
        match Self::unfinished(session)? {
            None => Ok(false),
            Some(found) if found.identity == identity => Ok(true),
            Some(found) => Err(Error::failed(format!("an unfinished load is on this server: {}", found.what))
                .hinted(format!(
                    "finish it by the same command; or drop what {SCHEMA}.objects lists, and then the database {SCHEMA}"
                ))),
        }
    }

    /// Begins a load, or goes on with it.
    pub(super) fn begin(link: &mut Link, identity: &str, what: &str, plan: &Plan) -> Result<Progress> {
        if let Some(found) = Self::unfinished(&mut link.session)? {
            return Self::go_on(link, &found, plan);
        }
        let session = &mut link.session;
        // What there is of it was made by one that died before it had changed anything.
        session.exec(&format!("DROP DATABASE IF EXISTS {SCHEMA}"))?;
        session.exec(&format!("CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"))?;
        session.exec(&format!(
            "CREATE TABLE {SCHEMA}.`load` (one INT NOT NULL PRIMARY KEY, layout INT NOT NULL, \
             identity VARCHAR(500) NOT NULL, what TEXT NOT NULL, epoch BIGINT NOT NULL) ENGINE = InnoDB"
        ))?;
        session.exec(&format!(
            "CREATE TABLE {SCHEMA}.objects (number INT UNSIGNED NOT NULL PRIMARY KEY, kind VARCHAR(20) NOT NULL, \
             place VARCHAR(64) NOT NULL, name VARCHAR(300) NOT NULL, stage TINYINT UNSIGNED NOT NULL) ENGINE = InnoDB"
        ))?;
        session.exec(&format!(
            "CREATE TABLE {SCHEMA}.ranges (object INT UNSIGNED NOT NULL, first_chunk BIGINT UNSIGNED NOT NULL, \
             end_chunk BIGINT UNSIGNED NOT NULL, PRIMARY KEY (object, first_chunk)) ENGINE = InnoDB"
        ))?;
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
            "INSERT INTO {SCHEMA}.`load` VALUES (1, {LAYOUT}, {}, {}, 1)",
            quoted_text(identity),
            quoted_text(what)
        ))?;
        session.exec("COMMIT")?;
        Ok(Progress { epoch: 1, stages, is_continued: false })
    }

    fn go_on(link: &mut Link, found: &Unfinished, plan: &Plan) -> Result<Progress> {
        let session = &mut link.session;
        let epoch = found.epoch + 1;
        // Waits for whoever is about to commit in the epoch before.
        session.exec(&format!("UPDATE {SCHEMA}.`load` SET epoch = {epoch}"))?;
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
            stages.push(Stage::read(row.number("s")?)?);
        }
        if stages.len() != plan.objects.len() || rows.len() != plan.objects.len() {
            return Err(Error::failed("the unfinished load was of other objects")
                .hinted("finish it with the version of holdfast that has begun it"));
        }
        Ok(Progress { epoch, stages, is_continued: true })
    }

    /// Notes how far an object is.
    pub(super) fn note(&self, session: &mut Session, object: usize, stage: Stage) -> Result<()> {
        session.exec("START TRANSACTION")?;
        self.note_in_transaction(session, object, stage)?;
        Ok(session.exec("COMMIT")?)
    }

    /// The same in the transaction that is open.
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

    /// Notes, in the transaction that is open, that the rows of these chunks are in.
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

    /// Fails where another process has taken this load up; where not, none can before the transaction ends.
    pub(super) fn fence(&self, session: &mut Session) -> Result<()> {
        let query = format!("SELECT epoch FROM {SCHEMA}.`load` WHERE one = 1 LOCK IN SHARE MODE");
        let epoch: u64 = session.number(&query)?;
        if epoch == self.epoch {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Active, "another process has taken this load up"))
    }

    /// Chunks of a table that are in, in order.
    pub(super) fn ranges(&self, session: &mut Session, object: usize) -> Result<Vec<(u64, u64)>> {
        let rows = session.rows(&format!(
            "SELECT first_chunk AS f, end_chunk AS e FROM {SCHEMA}.ranges WHERE object = {object} ORDER BY 1"
        ))?;
        let pair = |row: &crate::server::session::Row| Ok((row.number("f")?, row.number("e")?));
        Ok(rows.iter().map(pair).collect::<Result<_, SqlError>>()?)
    }

    /// Forgets what was said of a table's rows: it is begun anew.
    pub(super) fn forget_ranges(&self, session: &mut Session, object: usize) -> Result<()> {
        Ok(session.exec(&format!("DELETE FROM {SCHEMA}.ranges WHERE object = {object}"))?)
    }

    /// The load has ended.
    pub(super) fn end(&self, session: &mut Session) -> Result<()> {
        self.fence(session)?;
        Ok(session.exec(&format!("DROP DATABASE {}", quoted(SCHEMA)))?)
    }
}

impl ObjectKind {
    fn word(self) -> &'static str {
        match self {
            Self::Schema => "schema",
            Self::Sequence => "sequence",
            Self::Table => "table",
            Self::Routine => "routine",
            Self::View => "view",
            Self::Trigger => "trigger",
            Self::Event => "event",
        }
    }
}
