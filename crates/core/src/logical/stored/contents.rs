//! The contents of a logical backup, as far as they are wanted.

use std::collections::BTreeSet;

use holdfast_repo::{
    data::reader::Backup,
    format::item::{Item, ItemType},
};

use super::{
    definition::{
        AccountDefinition, Definition, EventDefinition, ProgramDefinition, SchemaDefinition,
        SequenceDefinition, ServerDefinition, TriggerDefinition, ViewDefinition,
    },
    uses,
};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::Cancel,
    logical::selection::{ExcludedNames, Selection},
};

/// The contents of a backup; of tables, only their items.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) server: Option<ServerDefinition>,
    pub(crate) accounts: Vec<AccountDefinition>,
    pub(crate) schemas: Vec<SchemaDefinition>,
    pub(crate) sequences: Vec<SequenceDefinition>,
    pub(crate) tables: Vec<Item>,
    pub(crate) routines: Vec<ProgramDefinition>,
    pub(crate) views: Vec<ViewDefinition>,
    pub(crate) triggers: Vec<TriggerDefinition>,
    pub(crate) events: Vec<EventDefinition>,
    /// Names to exclude that the backup does not have.
    pub(crate) unknown: ExcludedNames,
}

impl Contents {
    /// Reads what is selected. A schema is included if anything in it is.
    pub(crate) fn read(backup: &Backup, selection: &Selection, cancel: &Cancel) -> Result<Contents> {
        let mut contents = Contents { unknown: selection.excluded_names(), ..Contents::default() };
        let has = |schema: &str, table: &str| selection.has_table(schema, table);
        let whole = |schema: &str| selection.has_whole(schema);
        for item in backup.items() {
            cancel.check()?;
            let item = item?;
            match item.item_type {
                ItemType::Table => {
                    if let Some((schema, table)) = table_name(&item)? {
                        contents.unknown.found_table(&schema, &table);
                        if has(&schema, &table) {
                            contents.tables.push(item);
                        }
                    }
                }
                ItemType::Definition => match contents.found(definition(backup, &item)?) {
                    Definition::Server(it) => contents.server = Some(it),
                    Definition::Account(it) if selection.has_accounts() => contents.accounts.push(it),
                    Definition::Schema(it) => contents.schemas.push(it),
                    Definition::Sequence(it) if has(&it.schema, &it.name) => contents.sequences.push(it),
                    Definition::Routine(it) if whole(&it.schema) => contents.routines.push(it),
                    Definition::View(it) if has(&it.schema, &it.name) => contents.views.push(it),
                    Definition::Trigger(it) if has(&it.schema, &it.table) => contents.triggers.push(it),
                    Definition::Event(it) if whole(&it.schema) => contents.events.push(it),
                    _ => {}
                },
                _ => {
                    return Err(Error::new(ErrorKind::Usage, "this is not a logical backup")
                        .hinted("only logical backups hold rows: backup --method logical"));
                }
            }
        }
        let mut used = BTreeSet::new();
        for item in &contents.tables {
            used.extend(table_name(item)?.map(|(schema, _)| schema));
        }
        used.extend(contents.views.iter().map(|it| it.schema.clone()));
        used.extend(contents.sequences.iter().map(|it| it.schema.clone()));
        contents.schemas.retain(|it| whole(&it.schema) || used.contains(&it.schema));
        // Packages before their bodies, which is also the alphabetical order of the kinds.
        contents.routines.sort_by(|one, other| (&one.schema, &one.kind).cmp(&(&other.schema, &other.kind)));
        uses::order(&mut contents.views);
        contents.triggers.sort_by(|one, other| {
            (&one.schema, &one.table, &one.when, one.order).cmp(&(
                &other.schema,
                &other.table,
                &other.when,
                other.order,
            ))
        });
        Ok(contents)
    }

    /// Notes that an object exists, whether it is wanted or not.
    fn found(&mut self, definition: Definition) -> Definition {
        match &definition {
            Definition::Schema(it) => self.unknown.found_schema(&it.schema),
            Definition::Sequence(it) => self.unknown.found_table(&it.schema, &it.name),
            Definition::View(it) => self.unknown.found_table(&it.schema, &it.name),
            _ => {}
        }
        definition
    }
}

/// Schema and table, from the path of an item.
pub(crate) fn table_name(item: &Item) -> Result<Option<(String, String)>> {
    let names = item.path.names().context_kind(ErrorKind::Damaged, "understand the name of a table")?;
    let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    Ok(<[String; 2]>::try_from(names).ok().map(|[schema, table]| (schema, table)))
}

/// Reads the stored definition of an object.
pub(crate) fn definition(backup: &Backup, item: &Item) -> Result<Definition> {
    let json = backup.definition(item)?;
    let json = json.ok_or_else(|| Error::failed(format!("{} has no definition", item.path)))?;
    let definition: Definition = serde_json::from_slice(&json)
        .context_kind(ErrorKind::Damaged, format_args!("understand the definition of {}", item.path))?;
    // The definition must be that of the object chosen by its path.
    let names = item.path.names().context_kind(ErrorKind::Damaged, "understand the name of an item")?;
    if !names.iter().map(Vec::as_slice).eq(definition.names().iter().map(|name| name.as_bytes())) {
        let text = format!("{} has the definition of {}", item.path, definition.names().join("/"));
        return Err(Error::damaged(text));
    }
    Ok(definition)
}
