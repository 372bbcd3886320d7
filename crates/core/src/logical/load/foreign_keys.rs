//! Adds foreign keys, once every table they could lead to exists.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    elements::{Element, ElementKind},
    link::Link,
    object::Stage,
    plan::{Adaptation, Plan, PlannedTable},
    programs::is_refusal_of_program as is_refusal,
    progress::Progress,
    target::Target,
};
use crate::{
    error::{Error, Result},
    event::Cancel,
    logical::sql::{Kind, quoted_text, tokens},
    points::point,
    server::{Session, SqlError, TableName, code::NOT_UNIQUE},
};

/// Errors for rows whose parents do not exist.
const NO_PARENT: [u16; 2] = [1216, 1452];

/// Indexes of a table, by name in lower case.
pub(super) fn index_names(session: &mut Session, table: &TableName) -> Result<BTreeSet<String>, SqlError> {
    names(
        session,
        &format!(
            "SELECT LOWER(index_name) FROM information_schema.statistics \
             WHERE table_schema = {} AND table_name = {}",
            quoted_text(&table.schema),
            quoted_text(&table.table)
        ),
    )
}

/// Foreign keys of a table, by name in lower case, and where each leads.
fn foreign_keys_there(
    session: &mut Session,
    table: &TableName,
) -> Result<BTreeMap<String, TableName>, SqlError> {
    let rows = session.rows(&format!(
        "SELECT LOWER(constraint_name) AS n, unique_constraint_schema AS s, referenced_table_name AS t \
         FROM information_schema.referential_constraints WHERE constraint_schema = {} AND table_name = {}",
        quoted_text(&table.schema),
        quoted_text(&table.table)
    ))?;
    let key = |row: &crate::server::Row| -> Result<_, SqlError> {
        let parent = TableName { schema: row.text("s")?.to_owned(), table: row.text("t")?.to_owned() };
        Ok((row.text("n")?.to_owned(), parent))
    };
    rows.iter().map(key).collect()
}

fn names(session: &mut Session, query: &str) -> Result<BTreeSet<String>, SqlError> {
    let rows = session.rows(query)?;
    Ok(rows.iter().filter_map(|row| row.values().first().cloned().flatten()).collect())
}

/// Where a foreign key of a table in `schema` leads; `None` for other elements.
pub(super) fn parent(element: &Element, schema: &str) -> Option<TableName> {
    if element.kind != ElementKind::ForeignKey {
        return None;
    }
    let all = tokens(&element.text);
    let word = all.iter().position(|token| token.is_word("REFERENCES"))?;
    let at = word + all[word..].iter().position(|token| token.kind == Kind::Name)?;
    let first = all[at].name()?;
    Some(match &all[at + 1..] {
        [point, table, ..] if point.is_symbol(b'.') => TableName { schema: first, table: table.name()? },
        _ => TableName { schema: schema.to_owned(), table: first },
    })
}

/// A table's name as the target compares names.
pub(super) fn folded(target: &Target, name: &TableName) -> TableName {
    TableName { schema: target.folded(&name.schema), table: target.folded(&name.table) }
}

/// Adds the foreign keys of all tables. If all tables are the load's, rows are not compared: they are as they
/// were, and verified by themselves. The server compares keys that lead to a table that the load has not
/// made, or only in part. Keys that fail because of such a part are left out, which is wanted where there are
/// parts. Other keys that the target refuses end the load, or are left out if `leave_out` says so.
pub(super) fn add(
    plan: &Plan,
    target: &Target,
    leave_out: bool,
    progress: &Progress,
    link: &mut Link,
    cancel: &Cancel,
) -> Result<Vec<Adaptation>> {
    let keys = ForeignKeys::of(plan, target, leave_out, progress);
    let mut left_out = Vec::new();
    for table in plan.tables.iter().filter(|table| keys.are_due(table)) {
        cancel.check()?;
        progress.fence(&mut link.session)?;
        let missing = keys.missing(table, &mut link.session)?;
        link.enter(&table.name.schema).map_err(|error| adding(table, error))?;
        let refused = keys.add_to(table, &missing, link)?;
        point("load.table.linked");
        if refused.is_empty() && !is_done(progress, table) {
            progress.note(&mut link.session, table.object, Stage::Done)?;
        }
        left_out.extend(refused);
    }
    Ok(left_out)
}

fn adding(table: &PlannedTable, error: SqlError) -> Error {
    Error::from(error).context(format_args!("add the foreign keys of table {}", table.name))
}

/// The statement that adds keys to a table, all of them or none.
fn statement(table: &PlannedTable, keys: &[&Element]) -> Vec<u8> {
    let clauses: Vec<Vec<u8>> = keys.iter().map(|key| [b"ADD ", key.text.as_slice()].concat()).collect();
    [format!("ALTER TABLE {} ", table.name.quoted()).as_bytes(), &clauses.join(&b", "[..])].concat()
}

/// What decides how the foreign keys of a load are added.
struct ForeignKeys<'a> {
    target: &'a Target,
    leave_out: bool,
    progress: &'a Progress,
    /// Tables that the load has made with all of their rows.
    loaded: BTreeSet<TableName>,
    /// Tables of whose rows the backup has only some.
    in_part: BTreeSet<TableName>,
    /// Tables that may be made anew, because they were not right: keys that led there may be gone, or lead
    /// elsewhere.
    open: BTreeSet<TableName>,
}

impl<'a> ForeignKeys<'a> {
    fn of(plan: &Plan, target: &'a Target, leave_out: bool, progress: &'a Progress) -> Self {
        let names = |is_among: &dyn Fn(&PlannedTable) -> bool| -> BTreeSet<TableName> {
            let tables = plan.tables.iter().filter(|table| is_among(table));
            tables.map(|table| folded(target, &table.name)).collect()
        };
        Self {
            target,
            leave_out,
            progress,
            loaded: names(&|table| !table.is_partial),
            in_part: names(&|table| table.is_partial),
            open: names(&|table| !is_done(progress, table)),
        }
    }

    /// Whether a table has keys that may be missing. A note for each table is only worth it if there is something
    /// that must not be done twice.
    fn are_due(&self, table: &PlannedTable) -> bool {
        let mut keys = table.foreign_keys().peekable();
        keys.peek().is_some()
            && (!is_done(self.progress, table) || keys.any(|key| self.leads_into(table, key, &self.open)))
    }

    /// The table that a key references.
    fn parent(&self, table: &PlannedTable, key: &Element) -> Option<TableName> {
        parent(key, &table.name.schema).map(|parent| folded(self.target, &parent))
    }

    fn leads_into(&self, table: &PlannedTable, key: &Element, tables: &BTreeSet<TableName>) -> bool {
        self.parent(table, key).is_some_and(|parent| tables.contains(&parent))
    }

    /// Keys that the table does not have yet. Fails if one leads elsewhere by now.
    fn missing<'t>(&self, table: &'t PlannedTable, session: &mut Session) -> Result<Vec<&'t Element>> {
        let there = foreign_keys_there(session, &table.name).map_err(|error| adding(table, error))?;
        let leads_to =
            |key: &Element, there: &TableName| Some(folded(self.target, there)) == self.parent(table, key);
        for key in table.foreign_keys() {
            let Some(name) = &key.name else { continue };
            let elsewhere = there.get(&name.to_lowercase()).filter(|there| !leads_to(key, there));
            if let Some(elsewhere) = elsewhere {
                let text =
                    format!("the foreign key {name} of table {} references {elsewhere} by now", table.name);
                return Err(Error::failed(text)
                    .hinted("drop it, then run the same command again, which makes it again"));
            }
        }
        // Unnamed keys that lead to one parent are added all at once or not at all.
        let is_missing = |key: &&Element| match &key.name {
            Some(name) => !there.contains_key(&name.to_lowercase()),
            None => !there.values().any(|there| leads_to(key, there)),
        };
        Ok(table.foreign_keys().filter(is_missing).collect())
    }

    /// Adds keys to a table. Returns those that are left out.
    fn add_to(&self, table: &PlannedTable, keys: &[&Element], link: &mut Link) -> Result<Vec<Adaptation>> {
        let (in_doubt, others): (Vec<&Element>, Vec<&Element>) =
            keys.iter().copied().partition(|key| self.leads_into(table, key, &self.in_part));
        let (compared, uncompared): (Vec<&Element>, Vec<&Element>) =
            others.into_iter().partition(|key| self.is_compared(table, key));
        let mut left_out = self.add_all(table, &compared, link)?;
        let mut by_parent: BTreeMap<Option<TableName>, Vec<&Element>> = BTreeMap::new();
        for key in in_doubt {
            by_parent.entry(self.parent(table, key)).or_default().push(key);
        }
        for (parent, keys) in by_parent {
            left_out.extend(self.add_in_doubt(table, parent, &keys, link)?);
        }
        // Rows that led nowhere on the source may do so here, too. Last, because MySQL compares with each
        // existing key.
        left_out.extend(self.add_all(table, &uncompared, link)?);
        Ok(left_out)
    }

    /// Whether the target has to compare the rows of both tables.
    fn is_compared(&self, table: &PlannedTable, key: &Element) -> bool {
        is_converted(table) || self.parent(table, key).is_some_and(|parent| self.is_other(table, &parent))
    }

    /// Whether a parent is not of the load. Nothing is assumed about a table that may be in use, either.
    fn is_other(&self, table: &PlannedTable, parent: &TableName) -> bool {
        is_done(self.progress, table) || !self.loaded.contains(parent)
    }

    /// Adds keys at once; if the target refuses them, and they may be left out, one by one, so that none takes
    /// another with it. Returns those that it refuses.
    fn add_all(&self, table: &PlannedTable, keys: &[&Element], link: &mut Link) -> Result<Vec<Adaptation>> {
        let mut refused = Vec::new();
        if keys.is_empty() {
            return Ok(refused);
        }
        let Err(error) = self.try_to_add(table, keys, link)? else { return Ok(refused) };
        if !self.leave_out || !is_refusal(&error) {
            return Err(self.explained(table, keys, error));
        }
        for key in keys {
            let Err(error) = self.try_to_add(table, &[key], link)? else { continue };
            if !is_refusal(&error) {
                return Err(self.explained(table, &[key], error));
            }
            let name = key.name.as_ref().map(|name| format!("the foreign key {name}"));
            refused.push(Adaptation {
                object: format!("{} of table {}", name.as_deref().unwrap_or("a foreign key"), table.name),
                what: format!("the target refuses it: {error}"),
            });
        }
        Ok(refused)
    }

    fn try_to_add(
        &self,
        table: &PlannedTable,
        keys: &[&Element],
        link: &mut Link,
    ) -> Result<Result<(), SqlError>> {
        let is_other =
            keys.iter().filter_map(|key| self.parent(table, key)).any(|it| self.is_other(table, &it));
        let is_compared = is_other || is_converted(table);
        if is_compared {
            link.session.exec("SET SESSION foreign_key_checks = 1")?;
        }
        let statement = statement(table, keys);
        // Waiting for someone else's table makes others wait behind us.
        let added = match is_other {
            true => link.exec(&statement),
            false => link.exec_patiently(&statement),
        };
        if is_compared {
            link.session.exec("SET SESSION foreign_key_checks = 0")?;
        }
        Ok(added.map(drop))
    }

    /// Adds keys that lead to a table of which the backup has only some rows. Returns those that are left out.
    fn add_in_doubt(
        &self,
        table: &PlannedTable,
        parent: Option<TableName>,
        keys: &[&Element],
        link: &mut Link,
    ) -> Result<Vec<Adaptation>> {
        link.session.exec("SET SESSION foreign_key_checks = 1")?;
        let added = link.exec(&statement(table, keys));
        link.session.exec("SET SESSION foreign_key_checks = 0")?;
        match added {
            Ok(_) => Ok(Vec::new()),
            Err(error) if error.code().is_some_and(|code| NO_PARENT.contains(&code)) => {
                let parent = parent.map(|parent| parent.to_string()).unwrap_or_default();
                Ok(vec![Adaptation {
                    object: format!("a foreign key of table {}", table.name),
                    what: format!("some rows reference rows of {parent} that the backup does not hold"),
                }])
            }
            // Refused for what it is, not for its rows.
            Err(error) if is_refusal(&error) => self.add_all(table, keys, link),
            Err(error) => Err(adding(table, error)),
        }
    }

    /// Why keys were not added, and what to do.
    fn explained(&self, table: &PlannedTable, keys: &[&Element], error: SqlError) -> Error {
        let is_refused = is_refusal(&error);
        let mut parents = keys.iter().filter_map(|key| self.parent(table, key));
        let other = parents.find(|parent| self.is_other(table, parent) && !self.in_part.contains(parent));
        let code = error.code();
        let error = adding(table, error);
        let error = match &other {
            Some(parent) => error.hinted(format!(
                "they reference {parent}, which existed before the load: correct its rows, then run the same command again"
            )),
            None if is_converted(table) => error.hinted(
                "text that was the same in its old character set may not be in the new one (--charset): load without \
                 it, or mend the source",
            ),
            None if code == Some(NOT_UNIQUE) => error.hinted(
                "let the account set restrict_fk_on_non_standard_key (SESSION_VARIABLES_ADMIN), or set it OFF for the \
                 time of the load, then run the same command again",
            ),
            None => error,
        };
        match is_refused {
            true => error.also_hinted("the same command with --leave-out continues without what is refused"),
            false => error,
        }
    }
}

fn is_done(progress: &Progress, table: &PlannedTable) -> bool {
    matches!(progress.stages[table.object], Stage::Done | Stage::Verified)
}

/// Whether text of the table is converted to another character set, and may lead elsewhere.
fn is_converted(table: &PlannedTable) -> bool {
    table.is_converted.contains(&true)
}
