//! Adds foreign keys, once every table they could lead to exists.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    elements::{Element, ElementKind},
    link::Link,
    object::Stage,
    plan::{Adaptation, Plan},
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
pub(super) fn link(
    plan: &Plan,
    (target, leave_out): (&Target, bool),
    progress: &Progress,
    link: &mut Link,
    cancel: &Cancel,
) -> Result<Vec<Adaptation>> {
    let names = |is_partial: bool| -> BTreeSet<TableName> {
        let tables = plan.tables.iter().filter(|table| table.is_partial == is_partial);
        tables.map(|table| folded(target, &table.name)).collect()
    };
    let (loaded, in_part) = (names(false), names(true));
    // Tables that may be made anew, because they were not right: keys that led there may be gone, or lead
    // elsewhere.
    let open: BTreeSet<TableName> = plan
        .tables
        .iter()
        .filter(|table| !matches!(progress.stages[table.object], Stage::Done | Stage::Verified))
        .map(|table| folded(target, &table.name))
        .collect();
    let mut left_out = Vec::new();
    for table in &plan.tables {
        let has_keys = table.foreign_keys().next().is_some();
        let leads_to = |key: &Element| parent(key, &table.name.schema).map(|parent| folded(target, &parent));
        let leads_into = |key: &Element, tables: &BTreeSet<TableName>| {
            leads_to(key).is_some_and(|parent| tables.contains(&parent))
        };
        let is_done = matches!(progress.stages[table.object], Stage::Done | Stage::Verified);
        // A note for each table is only worth it if there is something that must not be done twice.
        if !has_keys || is_done && !table.foreign_keys().any(|key| leads_into(key, &open)) {
            continue;
        }
        cancel.check()?;
        let doing = |error: SqlError| {
            crate::Error::from(error).context(format_args!("add the foreign keys of table {}", table.name))
        };
        progress.fence(&mut link.session)?;
        let there = foreign_keys_there(&mut link.session, &table.name).map_err(doing)?;
        for key in table.foreign_keys() {
            let Some(name) = &key.name else { continue };
            let elsewhere =
                there.get(&name.to_lowercase()).filter(|it| Some(folded(target, it)) != leads_to(key));
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
            None => !there.values().any(|it| Some(folded(target, it)) == leads_to(key)),
        };
        let (in_doubt, missing): (Vec<&Element>, Vec<&Element>) =
            table.foreign_keys().filter(is_missing).partition(|key| leads_into(key, &in_part));
        link.enter(&table.name.schema).map_err(doing)?;
        let begin = format!("ALTER TABLE {} ", table.name.quoted());
        let clause = |key: &Element| [b"ADD ", key.text.as_slice()].concat();
        // Nothing is assumed about a table that may be in use, either.
        let is_other = |parent: &TableName| is_done || !loaded.contains(parent);
        // Text converted to another character set may lead elsewhere.
        let is_converted = table.is_converted.contains(&true);
        let (to_others, among_ours): (Vec<&Element>, Vec<&Element>) = missing
            .into_iter()
            .partition(|key| is_converted || leads_to(key).is_some_and(|parent| is_other(&parent)));
        let add = |link: &mut Link, keys: &[&Element]| -> Result<Result<(), SqlError>> {
            let other = keys.iter().filter_map(|key| leads_to(key)).find(is_other);
            let all: Vec<Vec<u8>> = keys.iter().map(|key| clause(key)).collect();
            let compares = other.is_some() || is_converted;
            if compares {
                link.session.exec("SET SESSION foreign_key_checks = 1")?;
            }
            let statement = [begin.as_bytes(), &all.join(&b", "[..])].concat();
            // Waiting for someone else's table makes others wait behind us.
            let added = match &other {
                Some(_) => link.exec(&statement),
                None => link.exec_patiently(&statement),
            };
            if compares {
                link.session.exec("SET SESSION foreign_key_checks = 0")?;
            }
            Ok(added.map(drop))
        };
        let explained = |keys: &[&Element], error: SqlError| -> Error {
            let is_refused = is_refusal(&error);
            let mut others = keys.iter().filter_map(|key| leads_to(key));
            let other = others.find(|parent| is_other(parent) && !in_part.contains(parent));
            let error = match &other {
                Some(parent) => doing(error).hinted(format!(
                    "they reference {parent}, which existed before the load: correct its rows, then run the same command again"
                )),
                None if is_converted => doing(error).hinted(
                    "text that was the same in its old character set may not be in the new one (--charset): load without \
                     it, or mend the source",
                ),
                None if error.code() == Some(NOT_UNIQUE) => doing(error).hinted(
                    "let the account set restrict_fk_on_non_standard_key (SESSION_VARIABLES_ADMIN), or set it OFF for the \
                     time of the load, then run the same command again",
                ),
                None => doing(error),
            };
            match is_refused {
                true => {
                    error.also_hinted("the same command with --leave-out continues without what is refused")
                }
                false => error,
            }
        };
        // Returns those that the target refuses.
        let add_all = |link: &mut Link, keys: &[&Element]| -> Result<Vec<Adaptation>> {
            let mut refused = Vec::new();
            if keys.is_empty() {
                return Ok(refused);
            }
            let Err(error) = add(link, keys)? else { return Ok(refused) };
            if !leave_out || !is_refusal(&error) {
                return Err(explained(keys, error));
            }
            // One by one, so that none takes another with it.
            for key in keys {
                let Err(error) = add(link, &[key])? else { continue };
                if !is_refusal(&error) {
                    return Err(explained(&[key], error));
                }
                let name = key.name.as_ref().map(|name| format!("the foreign key {name}"));
                refused.push(Adaptation {
                    object: format!("{} of table {}", name.as_deref().unwrap_or("a foreign key"), table.name),
                    what: format!("the target refuses it: {error}"),
                });
            }
            Ok(refused)
        };
        let count_before = left_out.len();
        left_out.extend(add_all(link, &to_others)?);
        let mut by_parent: BTreeMap<Option<TableName>, Vec<&Element>> = BTreeMap::new();
        for key in in_doubt {
            by_parent.entry(leads_to(key)).or_default().push(key);
        }
        for (parent, keys) in by_parent {
            let clauses: Vec<Vec<u8>> = keys.iter().map(|key| clause(key)).collect();
            link.session.exec("SET SESSION foreign_key_checks = 1")?;
            let added = link.exec(&[begin.as_bytes(), &clauses.join(&b", "[..])].concat());
            link.session.exec("SET SESSION foreign_key_checks = 0")?;
            match added {
                Err(error) if error.code().is_some_and(|code| NO_PARENT.contains(&code)) => {
                    let parent = parent.map(|parent| parent.to_string()).unwrap_or_default();
                    left_out.push(Adaptation {
                        object: format!("a foreign key of table {}", table.name),
                        what: format!("some rows reference rows of {parent} that the backup does not hold"),
                    });
                }
                // Refused for what it is, not for its rows.
                Err(error) if is_refusal(&error) => left_out.extend(add_all(link, &keys)?),
                added => drop(added.map_err(doing)?),
            }
        }
        // Rows that led nowhere on the source may do so here, too. Last, because MySQL compares with each
        // existing key.
        left_out.extend(add_all(link, &among_ours)?);
        point("load.table.linked");
        if left_out.len() == count_before && !is_done {
            progress.note(&mut link.session, table.object, Stage::Done)?;
        }
    }
    Ok(left_out)
}
