//! What a load will make, under which names, and what of it is not as it was: decided before anything is touched.

use std::collections::BTreeSet;

use holdfast_formats::Flavor;
use holdfast_repo::{item::Item, reader::Backup, rows::RowTotals};
use serde::Serialize;

use super::{
    LoadOptions, accept, adapt, keys,
    progress::Stage,
    target::Target,
    tokens::{ElementKind, TableSql, tokens},
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::Cancel,
    logical::{
        accounts,
        contents::{Contents, definition},
        definition::{
            AccountDefinition, ColumnDefinition, Context as MadeUnder, Definition, Form, Rows,
            ServerDefinition, TableDefinition, ViewDefinition,
        },
        objects::quoted,
        selection::is_own_schema,
        tables::Table,
        uses::{self, Used},
    },
    server::{Session, inventory::TableName},
};

/// A table with fewer bytes of rows has all of its indexes from the beginning: building them later takes longer.
const DEFERRED_BYTES_MIN: u64 = 1 << 20;
/// Things that are named in an error.
const NAMED_MAX: usize = 10;

/// Something that is not on the target as it was in the backup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Adaptation {
    /// What: `table shop.orders`.
    pub object: String,
    /// What became of it.
    pub what: String,
}

impl std::fmt::Display for Adaptation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, self.what)
    }
}

/// What kind of thing an object is; in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Schema,
    Sequence,
    Table,
    Routine,
    View,
    Trigger,
    Event,
    Account,
}

/// Something that is made, by its name on the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) kind: ObjectKind,
    pub(super) schema: String,
    pub(super) name: String,
}

/// A database.
pub(super) struct PlannedSchema {
    pub(super) object: usize,
    pub(super) name: String,
    pub(super) create: Vec<u8>,
    pub(super) collation: String,
    /// Whether its defaults may be changed while programs are made: it was not there, or is overwritten as it is.
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
    /// With the names of the target, and no condition.
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
    /// Whether the target may print a zero below zero otherwise than the source did.
    pub(super) prints_zeros_otherwise: bool,
    /// Whether the target parses documents of JSON that it is given as text.
    pub(super) parses_documents: bool,
    /// By column: whether the target stores its text in another character set.
    pub(super) is_converted: Vec<bool>,
    /// Which elements are added when the rows are in.
    deferred: Vec<bool>,
}

impl PlannedTable {
    /// Whether it has rows of its own: others are elsewhere.
    pub(super) fn has_rows(&self) -> bool {
        self.definition.rows != Rows::None
    }

    /// Its columns, each with the character set that its text comes in where the target stores it in another one.
    pub(super) fn columns(&self) -> impl Iterator<Item = (&ColumnDefinition, Option<&str>)> {
        let columns = self.definition.columns.iter().zip(&self.is_converted);
        columns.map(|(column, is_converted)| (column, column.charset.as_deref().filter(|_| *is_converted)))
    }

    /// `SELECT` of what a backup of the target would read, had it the character sets of the source.
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

    /// As a backup reads it.
    pub(super) fn as_read(&self) -> Table {
        Table {
            definition: self.definition.clone(),
            name: self.name.clone(),
            bytes_estimated: self.totals.bytes,
            rows_estimated: self.totals.rows,
        }
    }

    /// The statement that makes the table without what is added later; its indexes may be wanted now.
    pub(super) fn create(&self, with_indexes: bool) -> Vec<u8> {
        let later = self.later().filter(|element| !with_indexes || element.kind == ElementKind::ForeignKey);
        let later: BTreeSet<&[u8]> = later.map(|element| element.text.as_slice()).collect();
        self.sql.create(&self.name.quoted(), |element| !later.contains(element.text.as_slice()))
    }

    fn later(&self) -> impl Iterator<Item = &super::tokens::Element> {
        self.sql
            .elements
            .iter()
            .zip(&self.deferred)
            .filter(|(_, deferred)| **deferred)
            .map(|(element, _)| element)
    }

    /// Indexes that are added when the rows are in.
    pub(super) fn indexes(&self) -> impl Iterator<Item = &super::tokens::Element> {
        self.later().filter(|element| element.kind.is_secondary())
    }

    /// Foreign keys, which are added when all tables are there.
    pub(super) fn foreign_keys(&self) -> impl Iterator<Item = &super::tokens::Element> {
        self.later().filter(|element| element.kind == ElementKind::ForeignKey)
    }
}

/// A view, routine, trigger or event.
pub(super) struct Program {
    pub(super) object: usize,
    /// As it stands in `DROP`.
    pub(super) word: String,
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) create: Vec<u8>,
    pub(super) context: MadeUnder,
    /// Of views: their columns.
    pub(super) columns: Vec<String>,
    /// Of events.
    pub(super) time_zone: Option<String>,
    /// Of triggers.
    pub(super) table: Option<TableName>,
}

/// An account or a role.
pub(super) struct PlannedAccount {
    pub(super) object: usize,
    pub(super) definition: AccountDefinition,
    /// Whether it is made, and gets what it had: what is there is somebody else's, and keeps what it may.
    pub(super) is_ours: bool,
}

/// All of it.
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
    adapted: Vec<Adaptation>,
    pub(super) left_out: Vec<Adaptation>,
}

impl Plan {
    /// Reads what is selected and makes it what it will be on the target.
    pub(super) fn make(
        backup: &Backup,
        target: &Target,
        session: &mut Session,
        options: &LoadOptions,
        cancel: &Cancel,
    ) -> Result<Plan> {
        options.conversions.refuse_unknown(target)?;
        let mut contents = Contents::read(backup, &options.selection, cancel)?;
        refuse_unknown(&contents, options)?;
        let source = contents.server.take();
        let mut maker = Maker {
            plan: Plan {
                objects: Vec::new(),
                schemas: Vec::new(),
                sequences: Vec::new(),
                tables: Vec::new(),
                routines: Vec::new(),
                views: Vec::new(),
                triggers: Vec::new(),
                events: Vec::new(),
                accounts: Vec::new(),
                adapted: Vec::new(),
                left_out: Vec::new(),
            },
            adapter: adapt::Adapter::new(source.as_ref(), target, &options.conversions),
            target,
            options,
            unknown_time_zones: BTreeSet::new(),
            seen: adapt::Seen::default(),
        };
        maker.plan.left_out = accept::sift(&mut contents);
        for event in &contents.events {
            if !Target::knows_time_zone(session, &event.time_zone)? {
                maker.unknown_time_zones.insert(event.time_zone.clone());
            }
        }
        maker.schemas(&contents);
        maker.sequences(&contents);
        for item in std::mem::take(&mut contents.tables) {
            cancel.check()?;
            maker.table(backup, item)?;
        }
        options.conversions.refuse_unused(&maker.seen)?;
        maker.foreign_keys();
        maker.programs(contents, source.as_ref());
        let mut plan = maker.plan;
        plan.adapted.sort();
        plan.left_out.sort();
        plan.refuse_own_schemas(target)?;
        plan.refuse_doubles(target)?;
        if !plan.left_out.is_empty() && !options.leave_out {
            let text = format!("this cannot be on the target: {}", named(&plan.left_out));
            return Err(Error::new(ErrorKind::Usage, text)
                .hinted("name what is wanted (--database, --table), leave it out by --exclude-table, or load without it: --leave-out"));
        }
        Ok(plan)
    }

    /// Nothing is loaded into what is the server's own, or the load's.
    fn refuse_own_schemas(&self, target: &Target) -> Result<()> {
        match self.objects.iter().find(|object| is_own_schema(&target.folded(&object.schema))) {
            Some(object) => Err(Error::new(
                ErrorKind::Usage,
                format!("nothing can be loaded into the database {}", object.schema),
            )),
            None => Ok(()),
        }
    }

    /// Two things of one name, after renaming or because the target does not tell cases apart.
    fn refuse_doubles(&self, target: &Target) -> Result<()> {
        let mut seen = BTreeSet::new();
        let has_no_place = |kind| matches!(kind, ObjectKind::Schema | ObjectKind::Account);
        for object in self.objects.iter().filter(|object| !has_no_place(object.kind)) {
            let is_table = matches!(object.kind, ObjectKind::Table | ObjectKind::View | ObjectKind::Sequence);
            let kind = if is_table { 0 } else { object.kind as u8 };
            if !seen.insert((kind, target.folded(&object.schema), target.folded(&object.name))) {
                let text = format!("two objects would be called {}.{}", object.schema, object.name);
                return Err(Error::new(ErrorKind::Usage, text).hinted("give one another name by --as"));
            }
        }
        Ok(())
    }

    /// The triggers of a table, as objects.
    pub(super) fn triggers_of(&self, table: &TableName) -> impl Iterator<Item = usize> {
        let is_its = |trigger: &&Program| trigger.table.as_ref() == Some(table);
        self.triggers.iter().filter(is_its).map(|trigger| trigger.object)
    }

    /// Tells accounts that are the load's from those that are there already.
    pub(super) fn settle_accounts(
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
            let error = Error::from(error).context("see which accounts are there");
            match is_denied {
                true => error.hinted(
                    "GRANT SELECT ON mysql.* TO the account; or leave accounts out: --without-accounts",
                ),
                false => error,
            }
        })?;
        for account in &mut self.accounts {
            let is_begun = stages.is_some_and(|stages| stages[account.object] != Stage::Planned);
            account.is_ours = options.overwrite || is_begun || !there.contains(&account.definition.account);
        }
        Ok(())
    }

    /// What is not as it was in the backup, accounts that are there among it.
    pub(super) fn adapted(&self) -> Vec<Adaptation> {
        let there = self.accounts.iter().filter(|account| !account.is_ours).map(|account| Adaptation {
            object: format!("account {}", account.definition.account),
            what: "it is there, and keeps its password and what it may".to_owned(),
        });
        let mut adapted: Vec<Adaptation> = self.adapted.iter().cloned().chain(there).collect();
        adapted.sort();
        adapted
    }

    /// What is there already and would be in the way. Of a load that goes on, only what it has not begun to make.
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

/// The first few of many names.
pub(super) fn named<T: std::fmt::Display>(all: &[T]) -> String {
    let mut text = all.iter().take(NAMED_MAX).map(T::to_string).collect::<Vec<_>>().join(", ");
    if all.len() > NAMED_MAX {
        text.push_str(&format!(", and {} more", all.len() - NAMED_MAX));
    }
    text
}

/// A name that is mistyped must not become a load without it.
fn refuse_unknown(contents: &Contents, options: &LoadOptions) -> Result<()> {
    let schemas: Vec<String> = contents.schemas.iter().map(|it| it.schema.clone()).collect();
    let mut tables = Vec::new();
    for item in &contents.tables {
        tables.extend(crate::logical::contents::table_name(item)?);
    }
    tables.extend(contents.views.iter().map(|it| (it.schema.clone(), it.name.clone())));
    tables.extend(contents.sequences.iter().map(|it| (it.schema.clone(), it.name.clone())));
    options.selection.refuse_unknown(&schemas, &tables).map_err(|error| error.context("in the backup"))?;
    for rename in &options.renames.0 {
        let is_known = match rename {
            super::Rename::Schema { from, .. } => schemas.contains(from),
            super::Rename::Table { from, .. } => tables.contains(from),
        };
        if !is_known {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("the backup, as selected, has nothing for --as {rename}"),
            ));
        }
    }
    Ok(())
}

struct Maker<'a> {
    plan: Plan,
    adapter: adapt::Adapter<'a>,
    target: &'a Target,
    options: &'a LoadOptions,
    unknown_time_zones: BTreeSet<String>,
    seen: adapt::Seen,
}

impl Maker<'_> {
    fn object(&mut self, kind: ObjectKind, schema: &str, name: &str) -> usize {
        self.plan.objects.push(Object { kind, schema: schema.to_owned(), name: name.to_owned() });
        self.plan.objects.len() - 1
    }

    fn adapted(&mut self, object: &str, what: Vec<String>) {
        let all = what.into_iter().map(|what| Adaptation { object: object.to_owned(), what });
        self.plan.adapted.extend(all);
    }

    fn leave_out(&mut self, object: &str, what: impl Into<String>) {
        self.plan.left_out.push(Adaptation { object: object.to_owned(), what: what.into() });
    }

    fn schemas(&mut self, contents: &Contents) {
        // Tables may go to databases that the backup does not have.
        for schema in &contents.schemas {
            let name = self.options.renames.schema(&schema.schema).to_owned();
            let label = format!("database {name}");
            self.seen.collation(&schema.collation);
            let (options, collation, notes) = self.adapter.schema(schema);
            self.adapted(&label, notes);
            self.add_schema(name, &options, collation);
        }
        let targets: Vec<String> = self
            .options
            .renames
            .0
            .iter()
            .filter_map(|rename| match rename {
                super::Rename::Table { to, .. } => Some(to.0.clone()),
                super::Rename::Schema { .. } => None,
            })
            .collect();
        for name in targets {
            if !self.plan.schemas.iter().any(|schema| schema.name == name) {
                self.add_schema(name, b"", String::new());
            }
        }
    }

    fn add_schema(&mut self, name: String, options: &[u8], collation: String) {
        let object = self.object(ObjectKind::Schema, &name, "");
        let create =
            [format!("CREATE DATABASE IF NOT EXISTS {} ", quoted(&name)).as_bytes(), options].concat();
        let is_ours = match self.target.schemas.get(&self.target.folded(&name)) {
            None => true,
            Some(there) => self.options.overwrite && *there == collation,
        };
        self.plan.schemas.push(PlannedSchema { object, name, create, collation, is_ours });
    }

    fn sequences(&mut self, contents: &Contents) {
        for sequence in &contents.sequences {
            let (schema, name) = self.options.renames.table(&sequence.schema, &sequence.name);
            let label = format!("sequence {schema}.{name}");
            if let Some(why) = self.adapter.refuses_sequences() {
                self.leave_out(&label, why);
                continue;
            }
            let object = self.object(ObjectKind::Sequence, &schema, &name);
            let name = TableName { schema, table: name };
            let Some(create) = with_name(&sequence.create.0, &name) else {
                self.leave_out(&label, "its definition is not understood");
                continue;
            };
            let state = sequence.state.join(", ");
            self.plan.sequences.push(PlannedSequence { object, name, create, state });
        }
    }

    fn table(&mut self, backup: &Backup, item: Item) -> Result<()> {
        let Definition::Table(mut definition) = definition(backup, &item)? else {
            return Err(Error::new(
                ErrorKind::Damaged,
                format!("{} is defined as something else", item.path),
            ));
        };
        let renames = &self.options.renames;
        let (schema, name) = renames.table(&definition.schema, &definition.name);
        let is_renamed = name != definition.name;
        let label = format!("table {schema}.{name}");
        if !accept::is_table(&definition) {
            self.leave_out(&label, accept::STRANGE);
            return Ok(());
        }
        if let Some(condition) = &definition.condition {
            self.leave_out(
                &format!("rows of {label}"),
                format!("the backup holds only those for which {condition}"),
            );
        }
        self.seen.table(&definition);
        let create = renames.in_statement(&definition.create.0);
        let Some(mut sql) = TableSql::parse(&create) else {
            self.leave_out(&label, "its definition is not understood");
            return Ok(());
        };
        let mut notes = Vec::new();
        if names_directories(&sql.tail) {
            notes.push("its files are in no directory of their own".to_owned());
        }
        if is_renamed {
            // Such names are of the whole database.
            for element in &mut sql.elements {
                let is_named = matches!(element.kind, ElementKind::ForeignKey | ElementKind::Check);
                if is_named && adapt::drop_name(element) {
                    notes.push("constraints get names from the server".to_owned());
                }
            }
            notes.dedup();
        }
        for element in sql.elements.iter_mut().filter(|element| element.kind == ElementKind::ForeignKey) {
            adapt::rename_reference(element, &definition.schema, &schema, renames);
        }
        let keeps_order = match self.adapter.table(&mut sql, &mut definition) {
            Ok(adapted) => {
                notes.extend(adapted.notes);
                adapted.keeps_order
            }
            Err(why) => {
                self.leave_out(&label, why);
                return Ok(());
            }
        };
        self.adapted(&label, notes);
        let object = self.object(ObjectKind::Table, &schema, &name);
        let reader =
            backup.table(&item).ok_or_else(|| Error::failed(format!("{} holds no rows", item.path)))?;
        let (totals, chunks) = (reader.totals(), reader.chunk_count());
        definition.schema.clone_from(&schema);
        definition.name.clone_from(&name);
        let is_partial = definition.condition.take().is_some();
        let is_transactional = definition.engine.eq_ignore_ascii_case("InnoDB");
        let deferred = deferred(&sql, &definition, is_transactional && totals.bytes >= DEFERRED_BYTES_MIN);
        let columns = definition.columns.iter();
        let is_converted = columns.map(|column| self.options.conversions.concern(column)).collect();
        let name = TableName { schema, table: name };
        let prints_zeros_otherwise = !self.adapter.is_same_series()
            && definition.columns.iter().any(|column| column.form == Form::Float);
        let parses_documents = self.target.flavor == Flavor::MySql
            && definition.columns.iter().any(|column| column.form == Form::Json);
        if parses_documents && !self.options.verify {
            let what = "the server parses its JSON again: numbers within it that are decimals become doubles (--no-verify)";
            self.adapted(&label, vec![what.to_owned()]);
        }
        self.plan.tables.push(PlannedTable {
            object,
            item,
            definition,
            name,
            sql,
            totals,
            chunks,
            is_transactional,
            is_partial,
            keeps_order,
            prints_zeros_otherwise,
            parses_documents,
            is_converted,
            deferred,
        });
        Ok(())
    }

    /// A key that leads to nothing is none: it would refuse all rows, or hold for none.
    fn foreign_keys(&mut self) {
        let loaded: BTreeSet<TableName> =
            self.plan.tables.iter().map(|table| keys::folded(self.target, &table.name)).collect();
        let target = self.target;
        for (child, parent) in &target.references {
            let is_loaded = |name| loaded.contains(&keys::folded(target, name));
            // One that a load has made is not replaced by itself.
            let is_replaced =
                self.options.overwrite || target.existing(&parent.schema, &parent.table).is_none();
            if is_replaced && is_loaded(parent) && !is_loaded(child) {
                let what = format!("it leads to {parent}, whose rows will be others; nothing compares them");
                self.leave_out(&format!("a foreign key of table {child}, which is not loaded"), what);
            }
        }
        for table in &mut self.plan.tables {
            let mut kept = Vec::with_capacity(table.sql.elements.len());
            for (element, deferred) in
                std::mem::take(&mut table.sql.elements).into_iter().zip(&table.deferred)
            {
                let parent = keys::parent(&element, &table.name.schema);
                let is_there = parent.as_ref().is_none_or(|parent| {
                    loaded.contains(&keys::folded(target, parent))
                        || target.existing(&parent.schema, &parent.table).is_some()
                });
                if is_there {
                    kept.push((element, *deferred));
                } else if let Some(parent) = parent {
                    let what = format!("it leads to {parent}, which is neither there nor loaded");
                    let object = format!("a foreign key of table {}", table.name);
                    self.plan.left_out.push(Adaptation { object, what });
                }
            }
            (table.sql.elements, table.deferred) = kept.into_iter().unzip();
        }
    }

    fn programs(&mut self, contents: Contents, source: Option<&ServerDefinition>) {
        let renames = self.options.renames.clone();
        for routine in contents.routines {
            let schema = renames.schema(&routine.schema).to_owned();
            let kind = Definition::Routine(routine.clone()).kind();
            let program = Program {
                object: 0,
                word: routine.kind.clone(),
                schema,
                name: routine.name,
                create: routine.create.0,
                context: routine.context,
                columns: Vec::new(),
                time_zone: None,
                table: None,
            };
            let label = format!("{kind} {}", program.name);
            if let Some(program) = self.program(program, ObjectKind::Routine, label) {
                self.plan.routines.push(program);
            }
        }
        let mut views = contents.views;
        self.sift_views(&mut views);
        for view in views {
            let (schema, name) = renames.table(&view.schema, &view.name);
            let program = Program {
                object: 0,
                word: "VIEW".to_owned(),
                create: renames.in_statement(&view.create.0),
                context: view.context,
                columns: view.columns,
                time_zone: None,
                table: None,
                schema,
                name: name.clone(),
            };
            if let Some(program) = self.program(program, ObjectKind::View, name) {
                self.plan.views.push(program);
            }
        }
        for trigger in contents.triggers {
            let (schema, table) = renames.table(&trigger.schema, &trigger.table);
            let label = format!("trigger {schema}.{}", trigger.name);
            if !self.plan.tables.iter().any(|it| it.name.schema == schema && it.name.table == table) {
                self.leave_out(&label, "its table is not loaded");
                continue;
            }
            if renames.has_table(&trigger.schema, &trigger.table) {
                self.leave_out(&label, "its text names a table that has another name now");
                continue;
            }
            let program = Program {
                object: 0,
                word: "TRIGGER".to_owned(),
                name: trigger.name.clone(),
                create: trigger.create.0,
                context: trigger.context,
                columns: Vec::new(),
                time_zone: None,
                table: Some(TableName { schema: schema.clone(), table }),
                schema,
            };
            if let Some(program) = self.program(program, ObjectKind::Trigger, trigger.name) {
                self.plan.triggers.push(program);
            }
        }
        for event in contents.events {
            let schema = renames.schema(&event.schema).to_owned();
            if self.unknown_time_zones.contains(&event.time_zone) {
                let what = format!(
                    "the target does not know its time zone {} (mysql_tzinfo_to_sql loads them)",
                    event.time_zone
                );
                self.leave_out(&format!("event {schema}.{}", event.name), what);
                continue;
            }
            let program = Program {
                object: 0,
                word: "EVENT".to_owned(),
                schema,
                name: event.name.clone(),
                create: event.create.0,
                context: event.context,
                columns: Vec::new(),
                time_zone: Some(event.time_zone),
                table: None,
            };
            if let Some(program) = self.program(program, ObjectKind::Event, event.name) {
                self.plan.events.push(program);
            }
        }
        if !contents.accounts.is_empty() {
            let why = if renames.is_empty() {
                self.adapter.refuses_accounts(source)
            } else {
                Some("they name databases that have other names now".to_owned())
            };
            match why {
                Some(why) => self.leave_out("accounts (--without-accounts)", why),
                None => contents.accounts.into_iter().for_each(|account| self.account(account)),
            }
        }
    }

    fn account(&mut self, definition: AccountDefinition) {
        let object = self.object(ObjectKind::Account, "", &definition.account);
        self.plan.accounts.push(PlannedAccount { object, definition, is_ours: false });
    }

    /// Takes out views that could not be used here: over what could not be used on the source, or is neither there nor
    /// loaded. Those that others use come before them.
    fn sift_views(&mut self, views: &mut Vec<ViewDefinition>) {
        let renames = self.options.renames.clone();
        let target = self.target;
        let folded = |schema: &str, name: &str| (target.folded(schema), target.folded(name));
        let schemas: BTreeSet<String> =
            self.plan.schemas.iter().map(|schema| target.folded(&schema.name)).collect();
        let mut loaded: BTreeSet<(String, String)> = BTreeSet::new();
        loaded.extend(self.plan.tables.iter().map(|it| folded(&it.name.schema, &it.name.table)));
        loaded.extend(self.plan.sequences.iter().map(|it| folded(&it.name.schema, &it.name.table)));
        let routines: BTreeSet<(String, String)> = self
            .plan
            .routines
            .iter()
            .map(|routine| (target.folded(&routine.schema), routine.name.to_lowercase()))
            .collect();
        views.retain(|view| {
            let (schema, name) = renames.table(&view.schema, &view.name);
            let label = format!("view {schema}.{name}");
            if view.columns.is_empty() {
                self.leave_out(&label, "it could not be used when it was saved");
                return false;
            }
            let is_there = |used: &Used| {
                let database = target.folded(&used.schema);
                // Of the server's own databases, and of what may be no database, nothing is known.
                if is_own_schema(&database)
                    || !schemas.contains(&database) && !target.schemas.contains_key(&database)
                {
                    return true;
                }
                let place = folded(&used.schema, &used.name);
                place == folded(&schema, &name)
                    || loaded.contains(&place)
                    || routines.contains(&(database, used.name.to_lowercase()))
                    || target.existing(&used.schema, &used.name).is_some()
                    || ["function", "package"]
                        .iter()
                        .any(|kind| target.has_program(kind, &used.schema, &used.name))
            };
            if uses::aliases(&view.create.0).iter().any(|alias| renames.concerns(alias)) {
                self.leave_out(
                    &label,
                    "something else in its text is called as a database that has another name now",
                );
                return false;
            }
            let create = renames.in_statement(&view.create.0);
            if let Some(used) = uses::used(&create).iter().find(|used| !is_there(used)) {
                let what =
                    format!("it uses {}.{}, which is neither there nor loaded", used.schema, used.name);
                self.leave_out(&label, what);
                return false;
            }
            loaded.insert(folded(&schema, &name));
            true
        });
    }

    /// Programs are made under the default collation of their database; one that was there keeps its own.
    fn other_collation(&self, program: &Program) -> Option<String> {
        let schema = self.plan.schemas.iter().find(|schema| schema.name == program.schema)?;
        let there = self.target.schemas.get(&self.target.folded(&schema.name))?;
        let had = &program.context.schema_collation;
        let is_other = !schema.is_ours && *there != schema.collation && !had.is_empty() && there != had;
        is_other.then(|| {
            format!("it is made under {there}, the default of the database that is there, not {had}")
        })
    }

    fn program(&mut self, mut program: Program, kind: ObjectKind, name: String) -> Option<Program> {
        let label = format!("{} {}.{}", program.word.to_lowercase(), program.schema, program.name);
        if kind != ObjectKind::View && self.options.renames.may_be_meant_in(&program.create) {
            self.leave_out(&label, "its text names a database in which something has another name now");
            return None;
        }
        match self.adapter.program(&mut program, kind) {
            Ok(mut notes) => {
                notes.extend(self.other_collation(&program));
                self.adapted(&label, notes);
            }
            Err(why) => {
                self.leave_out(&label, why);
                return None;
            }
        }
        program.object = self.object(kind, &program.schema, &name);
        Some(program)
    }
}

/// Whether a table, or a part of it, was in a directory of its own.
fn names_directories(tail: &[u8]) -> bool {
    let tail = accept::executed(tail);
    tokens(&tail).iter().any(|token| token.is_word("DIRECTORY"))
}

/// Which elements are added when the rows are in.
fn deferred(sql: &TableSql, definition: &TableDefinition, is_large: bool) -> Vec<bool> {
    let mut deferred: Vec<bool> =
        sql.elements.iter().map(|element| element.kind == ElementKind::ForeignKey).collect();
    // Past and periods have rules of their own for changes of the table.
    if !is_large || definition.has_history || sql.has(ElementKind::Period) {
        return deferred;
    }
    let counter = sql
        .elements
        .iter()
        .find(|element| element.kind == ElementKind::Column && element.has_word("AUTO_INCREMENT"));
    let counter = counter.and_then(|element| element.name.clone());
    let is_needed = |element: &super::tokens::Element| {
        let is_clustered =
            definition.key.as_ref().is_some_and(|key| element.name.as_ref() == Some(&key.index));
        is_clustered || counter.is_some() && element.first_column() == counter
    };
    // What is needed and what stands before it: their order is to stay what it is. A primary key is no secondary index.
    let has_primary_counter = sql.elements.iter().any(|element| {
        element.kind == ElementKind::Primary && (counter.is_none() || element.first_column() == counter)
    });
    let last_needed = sql
        .elements
        .iter()
        .rposition(|element| element.kind.is_secondary() && is_needed(element) && !has_primary_counter);
    for (position, element) in sql.elements.iter().enumerate() {
        let is_behind = last_needed.is_none_or(|last| position > last);
        // An index of full texts is built on its own terms, and adds a hidden column.
        deferred[position] |=
            element.kind.is_secondary() && element.kind != ElementKind::Fulltext && is_behind;
    }
    deferred
}

/// A statement that `SHOW CREATE` gave, with another name: the first in it.
fn with_name(sql: &[u8], name: &TableName) -> Option<Vec<u8>> {
    let all = tokens(sql);
    let at = all.iter().position(|token| token.name().is_some())?;
    let qualified =
        matches!(&all[at..], [_, point, table, ..] if point.is_symbol(b'.') && table.name().is_some());
    let rest = if qualified { at + 3 } else { at + 1 };
    let mut out: Vec<u8> = all[..at].iter().flat_map(|token| token.bytes).copied().collect();
    out.extend_from_slice(name.quoted().as_bytes());
    out.extend(all[rest..].iter().flat_map(|token| token.bytes));
    Some(out)
}
