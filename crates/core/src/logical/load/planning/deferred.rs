//! Decides which parts of a table wait until its rows are in.

use super::super::elements::{Element, ElementKind, TableSql};
use crate::logical::stored::definition::TableDefinition;

/// Which elements are added after the rows.
pub(super) fn deferred(sql: &TableSql, definition: &TableDefinition, is_large: bool) -> Vec<bool> {
    let mut deferred: Vec<bool> =
        sql.elements.iter().map(|element| element.kind == ElementKind::ForeignKey).collect();
    // History and periods have rules of their own for changes of the table.
    if !is_large || definition.has_history || sql.has(ElementKind::Period) {
        return deferred;
    }
    let counter = sql
        .elements
        .iter()
        .find(|element| element.kind == ElementKind::Column && element.has_word("AUTO_INCREMENT"));
    let counter = counter.and_then(|element| element.name.clone());
    let is_needed = |element: &Element| {
        let is_clustered =
            definition.key.as_ref().is_some_and(|key| element.name.as_ref() == Some(&key.index));
        is_clustered || counter.is_some() && element.first_column() == counter
    };
    // Needed indexes and those before them stay, to keep their order. A primary key is no secondary index.
    let has_primary_counter = sql.elements.iter().any(|element| {
        element.kind == ElementKind::Primary && (counter.is_none() || element.first_column() == counter)
    });
    let last_needed = sql
        .elements
        .iter()
        .rposition(|element| element.kind.is_secondary() && is_needed(element) && !has_primary_counter);
    for (position, element) in sql.elements.iter().enumerate() {
        let is_after = last_needed.is_none_or(|last| position > last);
        deferred[position] |= element.kind.is_secondary() && is_after;
    }
    deferred
}
