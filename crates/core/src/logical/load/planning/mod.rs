//! Makes a plan: databases, sequences, tables and their keys, each as the target will have it.
//!
//! `programs` plans the objects that have a text of their own, and accounts; `deferred` decides which parts of a
//! table wait for its rows.

mod deferred;
mod programs;

use std::collections::BTreeSet;

use holdfast_formats::Flavor;
use holdfast_repo::{data::reader::Backup, format::item::Item};

use self::deferred::deferred;
use super::{
    LoadOptions, Rename, accept, adapt, computed,
    elements::{ElementKind, TableSql},
    foreign_keys,
    object::{Object, ObjectKind},
    plan::{Adaptation, Plan, PlannedSchema, PlannedSequence, PlannedTable, named},
    target::Target,
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::Cancel,
    logical::{
        catalog::settings::Settings,
        excluded::excluded_of,
        sql::{quoted, tokens},
        stored::{
            contents::{Contents, definition, table_name},
            definition::{Definition, Form, TableDefinition, ZoneDefinition},
        },
    },
    server::{Session, TableName},
};

/// A table with fewer bytes of rows has all of its indexes from the start: building them later takes longer.
const DEFERRED_BYTES_MIN: u64 = 1 << 20;

impl Plan {
    /// Reads what is selected and plans it as it will be on the target.
    pub(super) fn make(
        backup: &Backup,
        target: &Target,
        session: &mut Session,
        options: &LoadOptions,
        cancel: &Cancel,
    ) -> Result<Plan> {
        options.conversions.refuse_unknown(target)?;
        let mut contents = Contents::read(backup, &options.selection, cancel)?;
        refuse_unknown(backup, &mut contents, options)?;
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
                computing: Settings::default(),
                is_of_same_series: false,
            },
            adapter: adapt::Adapter::new(source.as_ref(), target, &options.conversions),
            target,
            options,
            unknown_time_zones: BTreeSet::new(),
            zone: source.as_ref().and_then(|source| source.time_zone.clone()),
            has_computed: false,
            seen: adapt::Seen::default(),
        };
        maker.plan.is_of_same_series = maker.adapter.is_same_series();
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
        let settings = source.as_ref().map(|source| source.settings.clone()).unwrap_or_default();
        maker.plan.computing = Settings::of(&settings, &target.settings, session)?;
        if maker.has_computed {
            for (name, what) in maker.plan.computing.notes.clone() {
                maker.adapted(&format!("setting {name}"), vec![what]);
            }
        }
        maker.foreign_keys();
        maker.programs(contents, source.as_ref());
        let mut plan = maker.plan;
        plan.adapted.sort();
        plan.left_out.sort();
        plan.refuse_own_schemas(target)?;
        plan.refuse_doubles(target)?;
        if !plan.left_out.is_empty() && !options.leave_out {
            let text = format!("the target cannot have: {}", named(&plan.left_out));
            return Err(Error::new(ErrorKind::Usage, text)
                .hinted("name what is wanted (--database, --table), leave it out (--exclude-table), or load without it (--leave-out)"));
        }
        Ok(plan)
    }
}

/// Refuses names that match nothing: a mistyped name must not become a load without it.
fn refuse_unknown(backup: &Backup, contents: &mut Contents, options: &LoadOptions) -> Result<()> {
    let schemas: Vec<String> = contents.schemas.iter().map(|it| it.schema.clone()).collect();
    let mut tables = Vec::new();
    for item in &contents.tables {
        tables.extend(table_name(item)?);
    }
    tables.extend(contents.views.iter().map(|it| (it.schema.clone(), it.name.clone())));
    tables.extend(contents.sequences.iter().map(|it| (it.schema.clone(), it.name.clone())));
    options.selection.refuse_unknown(&schemas, &tables).map_err(|error| error.context("in the backup"))?;
    // What is spared by name must be: --overwrite would drop it.
    if let Some(excluded) = excluded_of(backup.head()) {
        contents.unknown.retain(|schema| !excluded.has_schema(schema), |table| !excluded.has_table(table));
    }
    if let Some(unknown) = contents.unknown.unknown() {
        let text = format!("in the backup: of what is to be left out, {unknown}");
        return Err(Error::new(ErrorKind::Usage, text).hinted("names are case-sensitive"));
    }
    for rename in &options.renames.0 {
        let is_known = match rename {
            Rename::Schema { from, .. } => schemas.contains(from),
            Rename::Table { from, .. } => tables.contains(from),
        };
        if !is_known {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("--as {rename}: the backup, as selected, has no such object"),
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
    /// The source's time zone.
    zone: Option<ZoneDefinition>,
    /// Whether a table has computed columns.
    has_computed: bool,
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
        for schema in &contents.schemas {
            let name = self.options.renames.schema(&schema.schema).to_owned();
            let label = format!("database {name}");
            self.seen.collation(&schema.collation);
            let (options, collation, notes) = self.adapter.schema(schema);
            // One that is there keeps its own.
            if self.add_schema(name, &options, collation) {
                self.adapted(&label, notes);
            }
        }
        // Tables may go to databases that the backup does not have.
        let targets: Vec<String> = self
            .options
            .renames
            .0
            .iter()
            .filter_map(|rename| match rename {
                Rename::Table { to, .. } => Some(to.0.clone()),
                Rename::Schema { .. } => None,
            })
            .collect();
        for name in targets {
            if !self.plan.schemas.iter().any(|schema| schema.name == name) {
                self.add_schema(name, b"", String::new());
            }
        }
    }

    /// Returns whether the load makes it.
    fn add_schema(&mut self, name: String, options: &[u8], collation: String) -> bool {
        let object = self.object(ObjectKind::Schema, &name, "");
        let create =
            [format!("CREATE DATABASE IF NOT EXISTS {} ", quoted(&name)).as_bytes(), options].concat();
        let is_ours = match self.target.schemas.get(&self.target.folded(&name)) {
            None => true,
            Some(there) => self.options.overwrite && *there == collation,
        };
        self.plan.schemas.push(PlannedSchema { object, name, create, collation, is_ours });
        is_ours
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

    /// Names the values that will not be what they were.
    fn computed(&mut self, table: &str, sql: &TableSql) {
        const UTC: [&str; 3] = ["UTC", "+00:00", "Etc/UTC"];
        let is_utc = |zone: &str| UTC.iter().any(|utc| utc.eq_ignore_ascii_case(zone));
        let (zone, whose) = match &self.zone {
            Some(zone) if zone.server != "SYSTEM" && is_utc(&zone.server) => return,
            Some(zone) if zone.server == "SYSTEM" && is_utc(&zone.host) => return,
            // An abbreviation names no zone: it depends on the season in which the server was started.
            Some(zone) if zone.server == "SYSTEM" => {
                (format!("the source's was that of its host, which it calls {}", zone.host), "ZONE")
            }
            Some(zone) => (format!("the source's was {}", zone.server), zone.server.as_str()),
            None => ("the source's is not known".to_owned(), "ZONE"),
        };
        let after =
            format!("after the load, SET time_zone = '{whose}' and ALTER TABLE .. FORCE, ALGORITHM = COPY");
        for what in computed::by_zone(sql) {
            self.leave_out(
                &format!("the values of {what} of {table}"),
                format!("they are computed from time stamps in the zone of the session, here UTC, and {zone}: {after}"),
            );
        }
    }

    fn table(&mut self, backup: &Backup, item: Item) -> Result<()> {
        let Definition::Table(mut definition) = definition(backup, &item)? else {
            return Err(Error::damaged(format!("{} is defined as something else", item.path)));
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
        self.computed(&label, &sql);
        self.has_computed |= computed::is_any(&sql);
        let mut notes = self.renamed(&mut sql, &definition, &schema, is_renamed);
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
        let is_converted: Vec<bool> =
            columns.map(|column| self.options.conversions.concern(column)).collect();
        if !self.compares_computed(&sql, &definition, &is_converted) {
            definition.computed = None;
        }
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

    /// Gives a table's definition the target's names. Returns what else that changes.
    fn renamed(
        &self,
        sql: &mut TableSql,
        definition: &TableDefinition,
        schema: &str,
        is_renamed: bool,
    ) -> Vec<String> {
        let mut notes = Vec::new();
        if names_directories(&sql.tail) {
            notes.push("its files are in no directory of their own".to_owned());
        }
        if is_renamed {
            // Such names are unique in the whole database.
            for element in &mut sql.elements {
                let is_named = matches!(element.kind, ElementKind::ForeignKey | ElementKind::Check);
                if is_named && adapt::drop_name(element) {
                    notes.push("constraints get names from the server".to_owned());
                }
            }
            notes.dedup();
        }
        for element in sql.elements.iter_mut().filter(|element| element.kind == ElementKind::ForeignKey) {
            adapt::rename_reference(element, &definition.schema, schema, &self.options.renames);
        }
        notes
    }

    /// Whether the values of a table's computed columns can be compared with the source's.
    fn compares_computed(&self, sql: &TableSql, definition: &TableDefinition, is_converted: &[bool]) -> bool {
        let Some(computed) = &definition.computed else { return false };
        let has_all = computed.columns.iter().all(|column| {
            let is_it = |name: &String| name.to_lowercase() == column.name.to_lowercase();
            sql.elements
                .iter()
                .any(|it| it.kind == ElementKind::Column && it.name.as_ref().is_some_and(is_it))
        });
        // Other values may be computed from text in another character set, which the plan names.
        let is_any_converted = is_converted.contains(&true)
            || computed.columns.iter().any(|column| self.options.conversions.concern(column));
        // One of the servers may print a negative zero as zero.
        let prints_otherwise = !self.adapter.is_same_series()
            && computed.columns.iter().any(|column| column.form == Form::Float);
        has_all && !is_any_converted && !prints_otherwise
    }

    /// Leaves out foreign keys that lead to nothing: they would refuse all rows, or hold for none.
    fn foreign_keys(&mut self) {
        let loaded: BTreeSet<TableName> =
            self.plan.tables.iter().map(|table| foreign_keys::folded(self.target, &table.name)).collect();
        let target = self.target;
        for (child, parent) in &target.references {
            let is_loaded = |name| loaded.contains(&foreign_keys::folded(target, name));
            // A parent that the load has made is not replaced by itself.
            let is_replaced =
                self.options.overwrite || target.existing(&parent.schema, &parent.table).is_none();
            if is_replaced && is_loaded(parent) && !is_loaded(child) {
                let what = format!(
                    "it references {parent}, whose rows will be replaced without being checked against it"
                );
                self.leave_out(&format!("a foreign key of table {child}, which is not loaded"), what);
            }
        }
        for table in &mut self.plan.tables {
            let mut kept = Vec::with_capacity(table.sql.elements.len());
            for (element, deferred) in
                std::mem::take(&mut table.sql.elements).into_iter().zip(&table.deferred)
            {
                let parent = foreign_keys::parent(&element, &table.name.schema);
                let is_there = parent.as_ref().is_none_or(|parent| {
                    loaded.contains(&foreign_keys::folded(target, parent))
                        || target.existing(&parent.schema, &parent.table).is_some()
                });
                if is_there {
                    kept.push((element, *deferred));
                } else if let Some(parent) = parent {
                    let what = format!("it references {parent}, which neither exists nor is loaded");
                    let object = format!("a foreign key of table {}", table.name);
                    self.plan.left_out.push(Adaptation { object, what });
                }
            }
            (table.sql.elements, table.deferred) = kept.into_iter().unzip();
        }
    }
}

/// Whether a table, or a part of it, was in a directory of its own.
fn names_directories(tail: &[u8]) -> bool {
    let tail = accept::executed(tail);
    tokens(&tail).iter().any(|token| token.is_word("DIRECTORY"))
}

/// A statement printed by `SHOW CREATE`, with another name in place of the first one in it.
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
