//! Indexes, constraints, and foreign keys, including self-references and cycles.

use anyhow::Result;

use super::{Maker, column::Column, form::Form, names};
use crate::{data::names::quoted, rng::Rng};

/// A column of a key.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) column: usize,
    pub(super) prefix: Option<u64>,
    is_descending: bool,
}

impl Part {
    pub(super) fn of(number: usize, column: &Column, may_descend: bool, rng: &mut Rng) -> Part {
        let is_cut = column.form.needs_prefix() || rng.percent(20);
        // Characters have up to four bytes, and some engines accept only short keys.
        let prefix = column.form.prefix_max().filter(|_| is_cut).map(|max| rng.between(1, max.min(40)));
        Part { column: number, prefix, is_descending: may_descend && rng.percent(20) }
    }

    fn sql(&self, columns: &[Column]) -> String {
        let mut sql = quoted(&columns[self.column].name);
        if let Some(prefix) = self.prefix {
            sql.push_str(&format!("({prefix})"));
        }
        if self.is_descending {
            sql.push_str(" DESC");
        }
        sql
    }
}

pub(super) fn parts(columns: &[Column], parts: &[Part]) -> String {
    let parts: Vec<String> = parts.iter().map(|part| part.sql(columns)).collect();
    format!("({})", parts.join(", "))
}

/// Columns that refer to the primary key of a table.
#[derive(Clone, Debug)]
pub(super) struct ForeignKey {
    pub(super) columns: Vec<String>,
    pub(super) parent: String,
    pub(super) parent_columns: Vec<String>,
}

const RULES: [&str; 6] = [
    "",
    " ON DELETE CASCADE",
    " ON DELETE SET NULL",
    " ON UPDATE CASCADE ON DELETE RESTRICT",
    " ON DELETE NO ACTION",
    " ON UPDATE SET NULL",
];

impl ForeignKey {
    /// A foreign key to an existing table, or to the table being made; the columns for it are added.
    pub(super) fn random(
        maker: &mut Maker,
        schema: &str,
        name: &str,
        columns: &mut Vec<Column>,
        primary: &[Part],
    ) -> Option<ForeignKey> {
        let is_whole = |primary: &[Part]| !primary.is_empty() && primary.iter().all(|it| it.prefix.is_none());
        let (parent, led_to) = match maker.rng.below(10) {
            0..3 if !maker.tables.is_empty() => {
                let parent = &maker.tables[maker.rng.index(maker.tables.len())];
                if !is_whole(&parent.primary) || parent.engine != "InnoDB" || parent.has_partitions {
                    return None;
                }
                let led_to: Vec<Column> =
                    parent.primary.iter().map(|it| parent.columns[it.column].clone()).collect();
                (parent.quoted(), led_to)
            }
            3 if is_whole(primary) => {
                let led_to = primary.iter().map(|it| columns[it.column].clone()).collect();
                (format!("{}.{}", quoted(schema), quoted(name)), led_to)
            }
            _ => return None,
        };
        Some(ForeignKey::to(maker, parent, &led_to, columns))
    }

    fn to(maker: &mut Maker, parent: String, led_to: &[Column], columns: &mut Vec<Column>) -> ForeignKey {
        let leading: Vec<Column> =
            led_to.iter().map(|column| Column::of_form(maker, column.form.clone(), true)).collect();
        let key = ForeignKey {
            columns: leading.iter().map(|column| column.name.clone()).collect(),
            parent,
            parent_columns: led_to.iter().map(|column| column.name.clone()).collect(),
        };
        columns.extend(leading);
        key
    }

    fn sql(&self, name: &str, rule: &str) -> String {
        let list = |names: &[String]| names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        format!(
            "ADD CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({}){rule}",
            quoted(name),
            list(&self.columns),
            self.parent,
            list(&self.parent_columns)
        )
    }
}

impl Maker {
    /// Adds keys to the existing tables.
    pub(super) fn keys(&mut self) -> Result<()> {
        for number in 0..self.tables.len() {
            for _ in 0..self.rng.below(5) {
                let statement = self.key(number);
                self.add(&statement)?;
            }
            if let Some(foreign) = self.tables[number].foreign.clone() {
                let name = self.names.any(&mut self.rng);
                let rule = self.rng.pick(&RULES);
                self.add(&format!(
                    "ALTER TABLE {} {}",
                    self.tables[number].quoted(),
                    foreign.sql(&name, rule)
                ))?;
            }
        }
        self.circle()
    }

    fn add(&mut self, statement: &str) -> Result<()> {
        if !statement.is_empty() && self.attempt(statement)? {
            self.made.keys += 1;
        }
        Ok(())
    }

    /// Adds references back from parents to children, so that tables form cycles.
    fn circle(&mut self) -> Result<()> {
        for number in 0..self.tables.len() {
            let child = self.tables[number].clone();
            let is_led_to = |parent: &str| child.foreign.as_ref().is_some_and(|it| it.parent == parent);
            let Some(parent) = self.tables.iter().position(|it| is_led_to(&it.quoted())) else { continue };
            let is_whole = !child.primary.is_empty() && child.primary.iter().all(|it| it.prefix.is_none());
            if parent == number || !is_whole || child.has_partitions || !self.rng.percent(60) {
                continue;
            }
            let led_to: Vec<Column> =
                child.primary.iter().map(|it| child.columns[it.column].clone()).collect();
            let mut columns = Vec::new();
            let key = ForeignKey::to(self, child.quoted(), &led_to, &mut columns);
            let added: Vec<String> = columns.iter().map(|it| format!("ADD COLUMN {}", it.sql(0))).collect();
            let name = self.names.any(&mut self.rng);
            let table = self.tables[parent].quoted();
            if self.attempt(&format!("ALTER TABLE {table} {}, {}", added.join(", "), key.sql(&name, "")))? {
                self.tables[parent].columns.extend(columns);
                self.made.keys += 1;
            }
        }
        Ok(())
    }

    /// A statement that adds a key; empty if the table has no suitable columns.
    fn key(&mut self, number: usize) -> String {
        let table = &self.tables[number];
        let rng = &mut self.rng;
        let name = quoted(&self.names.any(rng));
        let alter = format!("ALTER TABLE {}", table.quoted());
        let of = |fit: &dyn Fn(&Form) -> bool, rng: &mut Rng| {
            let fit: Vec<usize> =
                (0..table.columns.len()).filter(|at| fit(&table.columns[*at].form)).collect();
            (!fit.is_empty()).then(|| fit[rng.index(fit.len())])
        };
        match rng.below(12) {
            0 => {
                let Some(at) = of(&|form| matches!(form, Form::Text { .. }), rng) else {
                    return String::new();
                };
                format!("{alter} ADD FULLTEXT KEY {name} ({})", quoted(&table.columns[at].name))
            }
            1 => {
                let Some(at) = of(&|form| matches!(form, Form::Geometry(_)), rng) else {
                    return String::new();
                };
                format!("{alter} ADD SPATIAL KEY {name} ({})", quoted(&table.columns[at].name))
            }
            2 | 3 => {
                let at = rng.index(table.columns.len());
                let column = quoted(&table.columns[at].name);
                let condition = match &table.columns[at].form {
                    Form::Integer { .. } => format!("{column} <> 5"),
                    Form::Text { .. } => format!("{column} NOT LIKE 'x\\\\_%' OR CHAR_LENGTH({column}) < 9"),
                    _ => format!("{column} IS NULL OR OCTET_LENGTH({column}) >= 0"),
                };
                let enforced = if !self.is_mariadb && rng.percent(20) { " NOT ENFORCED" } else { "" };
                format!("{alter} ADD CONSTRAINT {name} CHECK ({condition}){enforced}")
            }
            4 if !self.is_mariadb => {
                let at = rng.index(table.columns.len());
                let column = quoted(&table.columns[at].name);
                let expression = match &table.columns[at].form {
                    Form::Integer { .. } => format!("({column} % 10)"),
                    Form::Text { .. } => format!("(LOWER(LEFT({column}, 9)))"),
                    Form::Json => format!("(CAST({column} -> '$.a' AS UNSIGNED ARRAY))"),
                    _ => return String::new(),
                };
                format!("{alter} ADD KEY {name} ({expression})")
            }
            _ => {
                let mut chosen: Vec<Part> = Vec::new();
                for _ in 0..rng.between(1, 3) {
                    let Some(at) = of(&|form| form.is_indexable(), rng) else { return String::new() };
                    if chosen.iter().all(|part| part.column != at) {
                        chosen.push(Part::of(at, &table.columns[at], true, rng));
                    }
                }
                let word = if rng.percent(25) { "UNIQUE KEY" } else { "KEY" };
                let mut options = String::new();
                if rng.percent(15) {
                    options.push_str(&format!(" COMMENT {}", names::remark(rng, 200)));
                }
                if rng.percent(8) {
                    options.push_str(if self.is_mariadb { " IGNORED" } else { " INVISIBLE" });
                }
                if rng.percent(8) {
                    options.push_str(" USING BTREE");
                }
                format!("{alter} ADD {word} {name} {}{options}", parts(&table.columns, &chosen))
            }
        }
    }
}
