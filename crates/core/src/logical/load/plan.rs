//! What a load will make, under which names, and what will differ from the source: decided before anything is
//! touched.
//!
//! This module defines a plan and answers questions about it; [`planning`](super::planning) makes it from a backup
//! and a target.

use std::collections::BTreeSet;

use holdfast_repo::format::{item::Item, rows::RowTotals};
use serde::Serialize;

use super::{
    LoadOptions,
    elements::{Element, ElementKind, TableSql},
    object::{Object, ObjectKind, Stage},
    target::Target,
};
use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        catalog::{accounts, settings::Settings, tables::Table},
        selection::is_own_schema,
        sql::quoted,
        stored::definition::{
            AccountDefinition, ColumnDefinition, Context as MadeUnder, Rows, TableDefinition,
        },
    },
    name_list::first_of,
    server::{Session, TableName},
};

/// How many objects an error names.
const NAMED_MAX: usize = 10;

/// Something that is not on the target as it was in the backup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Adaptation {
    /// The object: `table shop.orders`.
    pub object: String,
    /// What became of it.
    pub what: String,
}

impl std::fmt::Display for Adaptation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, self.what)
    }
}

/// A database.
pub(super) struct PlannedSchema {
    pub(super) object: usize,
    pub(super) name: String,
    pub(super) create: Vec<u8>,
    pub(super) collation: String,
    /// Whether its defaults may be changed while programs are made: it did not exist, or it is overwritten
    /// with the defaults it has.
    pub(super) is_ours: bool,
}

/// A sequence.
pub(super) struct PlannedSequence {
    pub(super) object: usize,
    pub(super) name: TableName,
    pub(super) create: Vec<u8>,
    pub(super) state: String,
}

/// A table.
pub(super) struct PlannedTable {
    pub(super) object: usize,
    pub(super) item: Item,
    /// With the target's names, and without a condition.
    pub(super) definition: TableDefinition,
    pub(super) name: TableName,
    pub(super) sql: TableSql,
    pub(super) totals: RowTotals,
    pub(super) chunks: u64,
    pub(super) is_transactional: bool,
    /// Whether the backup holds only some of its rows.
    pub(super) is_partial: bool,
    /// Whether the target orders text as the source did.
    pub(super) keeps_order: bool,
    /// Whether the target may print a negative zero differently than the source did.
    pub(super) prints_zeros_otherwise: bool,
    /// Whether the target parses JSON documents that it is given as text.
    pub(super) parses_documents: bool,
    /// By column: whether the target stores its text in another character set.
    pub(super) is_converted: Vec<bool>,
    /// Which elements are added after the rows.
    pub(super) deferred: Vec<bool>,
}

impl PlannedTable {
    /// Whether it has rows of its own. If not, they are elsewhere.
    pub(super) fn has_rows(&self) -> bool {
        self.definition.rows != Rows::None
    }

    /// Its columns, each with the character set that its text comes in if the target stores it in another
    /// one.
    pub(super) fn columns(&self) -> impl Iterator<Item = (&ColumnDefinition, Option<&str>)> {
        let columns = self.definition.columns.iter().zip(&self.is_converted);
        columns.map(|(column, is_converted)| (column, column.charset.as_deref().filter(|_| *is_converted)))
    }

    /// `SELECT` of what a backup of the target would read if it had the character sets of the source.
    pub(super) fn select(&self) -> String {
        let expressions: Vec<String> = self
            .columns()
            .map(|(column, charset)| match charset {
                Some(charset) => format!("CONVERT({} USING {charset})", quoted(&column.name)),
                None => Table::expression(column),
            })
            .collect();
        self.as_read().select_as(&expressions)
    }

    /// [`select`](Self::select), with the computed columns that can be compared at the end.
    pub(super) fn select_computed(&self) -> String {
        let computed = self.computed_columns();
        if computed.is_empty() {
            return self.select();
        }
        let stored = self.definition.columns.iter();
        let expressions: Vec<String> = stored.chain(computed).map(Table::expression).collect();
        self.as_read().select_as(&expressions)
    }

    /// The computed columns that can be compared.
    pub(super) fn computed_columns(&self) -> &[ColumnDefinition] {
        self.definition.computed.as_ref().map(|computed| computed.columns.as_slice()).unwrap_or_default()
    }

    /// Reports that their values are not what they were.
    pub(super) fn computed_otherwise(&self) -> Adaptation {
        let names: Vec<&str> = self.computed_columns().iter().map(|column| column.name.as_str()).collect();
        let word = if names.len() == 1 { "column" } else { "columns" };
        Adaptation {
            object: format!("the values of {word} {} of table {}", names.join(", "), self.name),
            what: "they are computed, and differ from the source's".to_owned(),
        }
    }

    /// The table as a backup reads it.
    pub(super) fn as_read(&self) -> Table {
        Table {
            definition: self.definition.clone(),
            name: self.name.clone(),
            bytes_estimated: self.totals.bytes,
            rows_estimated: self.totals.rows,
            misprinted_defaults: Vec::new(),
        }
    }

    /// The statement that makes the table without what is added later; `with_indexes` includes its indexes
    /// now.
    pub(super) fn create(&self, with_indexes: bool) -> Vec<u8> {
        let later = self.later().filter(|element| !with_indexes || element.kind == ElementKind::ForeignKey);
        let later: BTreeSet<&[u8]> = later.map(|element| element.text.as_slice()).collect();
        self.sql.create(&self.name.quoted(), |element| !later.contains(element.text.as_slice()))
    }

    fn later(&self) -> impl Iterator<Item = &Element> {
        self.sql
            .elements
            .iter()
            .zip(&self.deferred)
            .filter(|(_, deferred)| **deferred)
            .map(|(element, _)| element)
    }

    /// Indexes that are added after the rows.
    pub(super) fn indexes(&self) -> impl Iterator<Item = &Element> {
        self.later().filter(|element| element.kind.is_secondary())
    }

    /// Foreign keys, which are added when all tables exist.
    pub(super) fn foreign_keys(&self) -> impl Iterator<Item = &Element> {
        self.later().filter(|element| element.kind == ElementKind::ForeignKey)
    }
}

/// A view, routine, trigger or event.
pub(super) struct Program {
    pub(super) object: usize,
    /// The word for it in `DROP`.
    pub(super) word: String,
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) create: Vec<u8>,
    pub(super) context: MadeUnder,
    /// For views: their columns.
    pub(super) columns: Vec<String>,
    /// For events.
    pub(super) time_zone: Option<String>,
    /// For triggers.
    pub(super) table: Option<TableName>,
}

/// An account or a role.
pub(super) struct PlannedAccount {
    pub(super) object: usize,
    pub(super) definition: AccountDefinition,
    /// Whether it is made and gets what it had. If not, the account is someone else's, and keeps what it may
    /// do.
    pub(super) is_ours: bool,
    /// Whether it existed already: it keeps its password, whatever else it gets.
    pub(super) is_there: bool,
}

/// Everything that a load will make.
pub(super) struct Plan {
    pub(super) objects: Vec<Object>,
    pub(super) schemas: Vec<PlannedSchema>,
    pub(super) sequences: Vec<PlannedSequence>,
    pub(super) tables: Vec<PlannedTable>,
    pub(super) routines: Vec<Program>,
    pub(super) views: Vec<Program>,
    pub(super) triggers: Vec<Program>,
    pub(super) events: Vec<Program>,
    pub(super) accounts: Vec<PlannedAccount>,
    pub(super) adapted: Vec<Adaptation>,
    pub(super) left_out: Vec<Adaptation>,
    /// The source's settings that rows are written under.
    pub(super) computing: Settings,
    /// Whether the target is of the same series as the source.
    pub(super) is_of_same_series: bool,
}

impl Plan {
    /// Refuses to load into a database of the server's own, or a load's.
    pub(super) fn refuse_own_schemas(&self, target: &Target) -> Result<()> {
        match self.objects.iter().find(|object| is_own_schema(&target.folded(&object.schema))) {
            Some(object) => Err(Error::new(
                ErrorKind::Usage,
                format!("nothing can be loaded into the database {}", object.schema),
            )),
            None => Ok(()),
        }
    }

    /// Refuses two objects of one name, after renaming or because the target does not distinguish case.
    pub(super) fn refuse_doubles(&self, target: &Target) -> Result<()> {
        let mut seen = BTreeSet::new();
        let has_no_place = |kind| matches!(kind, ObjectKind::Schema | ObjectKind::Account);
        for object in self.objects.iter().filter(|object| !has_no_place(object.kind)) {
            let is_table = matches!(object.kind, ObjectKind::Table | ObjectKind::View | ObjectKind::Sequence);
            let kind = if is_table { 0 } else { object.kind as u8 };
            if !seen.insert((kind, target.folded(&object.schema), target.folded(&object.name))) {
                let text = format!("two objects would be called {}.{}", object.schema, object.name);
                return Err(Error::new(ErrorKind::Usage, text).hinted("rename one of them with --as"));
            }
        }
        Ok(())
    }

    /// The triggers of a table, by object number.
    pub(super) fn triggers_of(&self, table: &TableName) -> impl Iterator<Item = usize> {
        let is_its = |trigger: &&Program| trigger.table.as_ref() == Some(table);
        self.triggers.iter().filter(is_its).map(|trigger| trigger.object)
    }

    /// Marks which accounts the load makes, and which existed before.
    pub(super) fn mark_accounts(
        &mut self,
        session: &mut Session,
        options: &LoadOptions,
        stages: Option<&[Stage]>,
    ) -> Result<()> {
        if self.accounts.is_empty() {
            return Ok(());
        }
        let there = accounts::names(session).map_err(|error| {
            let is_denied = error.is_denied();
            let error = Error::from(error).context("see which accounts exist");
            match is_denied {
                true => error.hinted(
                    "GRANT SELECT ON mysql.* TO the account; or leave accounts out: --without-accounts",
                ),
                false => error,
            }
        })?;
        for account in &mut self.accounts {
            let is_begun = stages.is_some_and(|stages| stages[account.object] != Stage::Planned);
            account.is_there = !is_begun && there.contains(&account.definition.account);
            // Rights on what is overwritten are lost with it. Everybody's role is nobody's account: it exists
            // always.
            let is_everybodys = account.definition.account == accounts::PUBLIC;
            account.is_ours = options.overwrite || !account.is_there || is_everybodys;
        }
        Ok(())
    }

    /// Everything that is not as it was in the backup, including accounts that existed.
    pub(super) fn adapted(&self) -> Vec<Adaptation> {
        let gets = |it: &PlannedAccount| {
            it.definition.account != accounts::PUBLIC || !it.definition.grants.is_empty()
        };
        let there = self.accounts.iter().filter(|it| it.is_there && gets(it)).map(|account| {
            let what = match account.is_ours {
                true if account.definition.account == accounts::PUBLIC => {
                    "it exists already, keeps its privileges, and also gets those of the source"
                }
                true => {
                    "it exists already, keeps its password and privileges, and also gets those of the source"
                }
                false => "it exists already, and keeps its password and privileges",
            };
            let object = format!("account {}", account.definition.account);
            Adaptation { object, what: what.to_owned() }
        });
        let mut adapted: Vec<Adaptation> = self.adapted.iter().cloned().chain(there).collect();
        adapted.sort();
        adapted
    }

    /// Existing objects that would be in the way. For a resumed load, only those it has not begun to make.
    pub(super) fn conflicts(&self, target: &Target, stages: Option<&[Stage]>) -> Vec<String> {
        let mut found = Vec::new();
        for (number, Object { kind, schema, name }) in self.objects.iter().enumerate() {
            let stage = stages.and_then(|stages| stages.get(number));
            if stage.is_some_and(|stage| *stage != Stage::Planned) {
                continue;
            }
            let is_there = match kind {
                ObjectKind::Schema | ObjectKind::Account => false,
                ObjectKind::Table | ObjectKind::View | ObjectKind::Sequence => {
                    target.existing(schema, name).is_some()
                }
                ObjectKind::Routine => {
                    name.split_once(' ').is_some_and(|(kind, name)| target.has_program(kind, schema, name))
                }
                ObjectKind::Trigger => target.has_program("trigger", schema, name),
                ObjectKind::Event => target.has_program("event", schema, name),
            };
            if is_there {
                found.push(format!("{schema}.{name}"));
            }
        }
        found
    }
}

/// Lists the first few of many names.
pub(super) fn named<T: std::fmt::Display>(all: &[T]) -> String {
    first_of(all, NAMED_MAX)
}
