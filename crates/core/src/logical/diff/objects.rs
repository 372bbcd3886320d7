//! Pairs the objects of two backups, and tells how their definitions differ.

use std::{cmp::Ordering, iter::Peekable};

use holdfast_repo::{
    data::reader::Backup,
    format::item::{Item, ItemType},
};
use serde::Serialize;

use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        selection::TablePattern,
        stored::{
            contents::definition,
            definition::{Context, Definition, Sql, TableDefinition},
        },
    },
};

/// An object of one backup.
pub(super) struct Object {
    item: Item,
    definition: Definition,
    /// If it is a table: its definition, and its item.
    table: Option<(TableDefinition, Item)>,
}

impl Object {
    fn read(backup: &Backup, item: Item) -> Result<Self> {
        if !matches!(item.item_type, ItemType::Table | ItemType::Definition) {
            return Err(Error::new(ErrorKind::Usage, "this is not a logical backup")
                .hinted("only logical backups hold rows: backup --method logical"));
        }
        let definition = definition(backup, &item)?;
        let table = match &definition {
            Definition::Table(table) if item.item_type == ItemType::Table => {
                Some((table.clone(), item.clone()))
            }
            _ => None,
        };
        Ok(Self { item, definition, table })
    }

    pub(super) fn table(&self) -> Option<&(TableDefinition, Item)> {
        self.table.as_ref()
    }

    /// Whether people would call it a table.
    pub(super) fn is_named_as_table(&self) -> bool {
        matches!(self.definition, Definition::Table(_) | Definition::View(_) | Definition::Sequence(_))
    }

    fn is_wanted(&self, wanted: Option<&TablePattern>) -> bool {
        let Some(wanted) = wanted else { return true };
        match &self.definition {
            Definition::Table(it) => wanted.matches(&it.schema, &it.name),
            Definition::View(it) => wanted.matches(&it.schema, &it.name),
            Definition::Sequence(it) => wanted.matches(&it.schema, &it.name),
            Definition::Trigger(it) => wanted.matches(&it.schema, &it.table),
            _ => false,
        }
    }
}

/// An object as each backup has it; at least one does.
pub(super) struct Paired {
    pub(super) before: Option<Object>,
    pub(super) after: Option<Object>,
}

/// The objects of both, in the order of their paths.
pub(super) fn paired<'b>(
    before: &'b Backup,
    after: &'b Backup,
    wanted: Option<&'b TablePattern>,
) -> impl Iterator<Item = Result<Paired>> + 'b {
    let objects = |backup: &'b Backup| {
        let read = |item| Object::read(backup, item);
        let all = backup.items().map(move |item| item.map_err(Error::from).and_then(read));
        all.filter(move |object| object.as_ref().map_or(true, |object| object.is_wanted(wanted))).peekable()
    };
    let (mut before, mut after) = (objects(before), objects(after));
    std::iter::from_fn(move || next_pair(&mut before, &mut after).transpose())
}

fn next_pair<I: Iterator<Item = Result<Object>>>(
    before: &mut Peekable<I>,
    after: &mut Peekable<I>,
) -> Result<Option<Paired>> {
    let order = match (before.peek(), after.peek()) {
        (None, None) => return Ok(None),
        (Some(Ok(one)), Some(Ok(other))) => one.item.path.cmp(&other.item.path),
        (Some(_), None) | (Some(Err(_)), _) => Ordering::Less,
        (None | Some(Ok(_)), Some(_)) => Ordering::Greater,
    };
    let before = if order.is_le() { before.next().transpose()? } else { None };
    let after = if order.is_ge() { after.next().transpose()? } else { None };
    Ok(Some(Paired { before, after }))
}

/// The name of an object, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectName {
    /// `table`, `view`, `procedure` …
    pub object: String,
    /// `shop.orders`; for an account, a server or a schema, the name alone.
    pub name: String,
}

impl ObjectName {
    fn of(definition: &Definition) -> Self {
        let names = definition.names();
        let name = match definition {
            Definition::Server(_) | Definition::Account(_) => {
                names.last().copied().unwrap_or_default().to_owned()
            }
            _ => [names.first(), names.get(1..).and_then(<[&str]>::last)]
                .into_iter()
                .flatten()
                .copied()
                .collect::<Vec<_>>()
                .join("."),
        };
        Self { object: definition.kind().to_owned(), name }
    }
}

/// An object that came, went, or was redefined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectChange {
    /// Which one.
    #[serde(flatten)]
    pub name: ObjectName,
    /// The statements that make it, as in the first; `None` if it is not there. Bytes that are not text are
    /// replaced.
    pub before: Option<String>,
    /// The statements that make it, as in the second.
    pub after: Option<String>,
}

/// How an object changed; `None` if it did not.
pub(super) fn change(before: Option<&Object>, after: Option<&Object>) -> Option<ObjectChange> {
    let of = |object: Option<&Object>| object.map(|object| lasting(&object.definition));
    let (one, other) = (of(before), of(after));
    if one == other {
        return None;
    }
    let name = ObjectName::of(one.as_ref().or(other.as_ref())?);
    Some(ObjectChange { name, before: one.as_ref().map(text), after: other.as_ref().map(text) })
}

/// A definition without what changes by itself, or is about the backup.
fn lasting(definition: &Definition) -> Definition {
    let mut definition = definition.clone();
    match &mut definition {
        Definition::Table(table) => {
            table.create = without_counter(&table.create);
            table.rows = crate::logical::stored::definition::Rows::Consistent;
            table.computed = None;
        }
        // Not every backup has it.
        Definition::Server(server) => {
            server.time_zone = None;
            server.settings.clear();
        }
        _ => {}
    }
    definition
}

/// Removes `AUTO_INCREMENT=7` from a table's options: it advances with the rows.
fn without_counter(create: &Sql) -> Sql {
    const COUNTER: &[u8] = b" AUTO_INCREMENT=";
    let text = &create.0;
    let find = |text: &[u8], part: &[u8]| text.windows(part.len()).position(|window| window == part);
    // The columns are in parentheses, each on a line of its own that begins with blanks.
    let Some(options) = find(text, b"\n) ") else { return create.clone() };
    let until = find(&text[options..], b" COMMENT='").map_or(text.len(), |at| options + at);
    let Some(at) = find(&text[options..until], COUNTER).map(|at| options + at) else { return create.clone() };
    let end = text[at + COUNTER.len()..].iter().position(|byte| !byte.is_ascii_digit());
    let end = end.map_or(text.len(), |digits| at + COUNTER.len() + digits);
    Sql([&text[..at], &text[end..]].concat())
}

/// A definition as people read it.
fn text(definition: &Definition) -> String {
    let sql = |sql: &Sql| String::from_utf8_lossy(&sql.0).into_owned();
    let under = |context: &Context| {
        let mut line = format!("-- {}, {}", context.charset, context.collation);
        if let Some(sql_mode) = &context.sql_mode {
            line.push_str(&format!(", sql_mode '{sql_mode}'"));
        }
        line
    };
    let lines: Vec<String> = match definition {
        Definition::Server(it) => vec![format!("-- {}", it.version)],
        Definition::Account(it) => {
            let second = it.second_password.iter().map(|hex| format!("-- second password: 0x{hex}"));
            it.create
                .iter()
                .chain(&it.alter)
                .chain(&it.options)
                .map(sql)
                .chain(second)
                .chain(it.grants.iter().map(sql))
                .collect()
        }
        Definition::Schema(it) => vec![sql(&it.create)],
        Definition::Sequence(it) => vec![sql(&it.create), format!("-- ({})", it.state.join(", "))],
        Definition::Table(it) => {
            let defaults =
                it.defaults.iter().map(|(column, literal)| format!("-- {column}: default {literal}"));
            let condition = it.condition.iter().map(|condition| format!("-- rows for which {condition}"));
            [sql(&it.create)].into_iter().chain(defaults).chain(condition).collect()
        }
        Definition::Routine(it) => vec![under(&it.context), sql(&it.create)],
        Definition::View(it) => vec![under(&it.context), sql(&it.create)],
        Definition::Trigger(it) => {
            vec![format!("{}, order {}", under(&it.context), it.order), sql(&it.create)]
        }
        Definition::Event(it) => {
            vec![format!("{}, time zone {}", under(&it.context), it.time_zone), sql(&it.create)]
        }
    };
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter that advances with the rows makes no other definition; the same words elsewhere do.
    #[test]
    fn counters_are_no_difference() {
        let of = |text: &str| {
            let sql = without_counter(&Sql(text.as_bytes().to_vec()));
            String::from_utf8_lossy(&sql.0).into_owned()
        };
        assert_eq!(
            of("CREATE TABLE `t` (\n  `a` int\n) ENGINE=InnoDB AUTO_INCREMENT=17 DEFAULT CHARSET=latin1"),
            "CREATE TABLE `t` (\n  `a` int\n) ENGINE=InnoDB DEFAULT CHARSET=latin1"
        );
        let comment = "CREATE TABLE `t` (\n  `a` int COMMENT ' AUTO_INCREMENT=1'\n) ENGINE=InnoDB COMMENT=' AUTO_INCREMENT=2'";
        assert_eq!(of(comment), comment);
        assert_eq!(of(") AUTO_INCREMENT=1"), ") AUTO_INCREMENT=1");
    }
}
