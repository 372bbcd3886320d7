//! The contents of the tables: the expected ones, and those of a server.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::AREAS;
use super::change::{Action, Change, Commit, Step};
use crate::server::Server;

/// All tables by name, and the contents of the journals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    tables: BTreeMap<String, Table>,
    /// The schema, client and number of each transaction that changed rows.
    journal: BTreeSet<(String, u32, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Table {
    /// The default of the extra column, if the column exists.
    extra: Option<i64>,
    rows: BTreeMap<i64, Row>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    n: i64,
    v: String,
    extra: Option<i64>,
}

impl State {
    /// A state with these tables, empty.
    pub(super) fn with_tables(names: impl IntoIterator<Item = String>) -> State {
        let tables = names.into_iter().map(|name| (name, Table::default())).collect();
        State { tables, journal: BTreeSet::new() }
    }

    /// Applies a commit. Fails if it was impossible in this state.
    pub(super) fn apply(&mut self, commit: &Commit) -> Result<()> {
        match &commit.change {
            Change::Rows(steps) => {
                for step in steps {
                    self.table(&step.table)?.step(step)?;
                }
                self.journal.insert((commit.area.to_owned(), commit.client, commit.number));
            }
            Change::Create(name) => {
                ensure!(self.tables.insert(name.clone(), Table::default()).is_none(), "{name} was there");
            }
            Change::Drop(name) => drop(self.tables.remove(name).with_context(|| format!("no {name}"))?),
            Change::Rename(from, to) => {
                let table = self.tables.remove(from).with_context(|| format!("no {from}"))?;
                self.tables.insert(to.clone(), table);
            }
            Change::Truncate(name) => self.table(name)?.rows.clear(),
            Change::AddExtra(name, default) => self.table(name)?.set_extra(Some(*default)),
            Change::DropExtra(name) => self.table(name)?.set_extra(None),
        }
        Ok(())
    }

    fn table(&mut self, name: &str) -> Result<&mut Table> {
        self.tables.get_mut(name).with_context(|| format!("no {name}"))
    }

    /// Reads the state of a server.
    pub(super) fn of(server: &Server) -> Result<State> {
        let mut state = State::default();
        for area in AREAS {
            let tables: Vec<String> = server.query(format!(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = '{area}'"
            ))?;
            for table in tables {
                if table == "journal" {
                    let rows: Vec<(u32, u64)> =
                        server.query(format!("SELECT client, number FROM {area}.journal"))?;
                    state
                        .journal
                        .extend(rows.into_iter().map(|(client, number)| (area.to_owned(), client, number)));
                } else {
                    let name = format!("{area}.{table}");
                    let content = Table::of(server, area, &table).with_context(|| name.clone())?;
                    state.tables.insert(name, content);
                }
            }
        }
        Ok(state)
    }

    pub(super) fn rows(&self) -> usize {
        self.tables.values().map(|table| table.rows.len()).sum::<usize>() + self.journal.len()
    }

    pub(super) fn tables(&self) -> usize {
        self.tables.len() + AREAS.len()
    }

    /// Fails with some of the differences if `found` is not equal.
    pub(super) fn ensure_is(&self, found: &State) -> Result<()> {
        ensure!(self == found, "it differs from the model: {}", self.differences(found).join("; "));
        Ok(())
    }

    fn differences(&self, found: &State) -> Vec<String> {
        const SHOWN: usize = 12;
        let journal = |words: &str, one: &State, other: &State| -> Vec<String> {
            let more: Vec<_> = one.journal.difference(&other.journal).collect();
            let first: Vec<_> = more.iter().take(SHOWN).collect();
            (!more.is_empty())
                .then(|| format!("{} transactions {words}: {first:?}", more.len()))
                .into_iter()
                .collect()
        };
        let mut all = [journal("missing", self, found), journal("too many", found, self)].concat();
        let names: BTreeSet<&String> = self.tables.keys().chain(found.tables.keys()).collect();
        for name in names {
            match (self.tables.get(name), found.tables.get(name)) {
                (Some(wanted), Some(found)) => all.extend(wanted.difference(name, found)),
                (Some(_), None) => all.push(format!("{name} is missing")),
                _ => all.push(format!("{name} is too many")),
            }
        }
        all
    }
}

impl Table {
    fn step(&mut self, step: &Step) -> Result<()> {
        let Step { ids, action, .. } = step;
        let extra = self.extra;
        match action {
            Action::Insert { n, v } => {
                for id in ids.clone() {
                    let row = Row { n: *n, v: v.clone(), extra };
                    ensure!(self.rows.insert(id, row).is_none(), "row {id} of {} was there", step.table);
                }
            }
            Action::Put(n) => {
                for id in ids.clone() {
                    self.rows.entry(id).or_insert(Row { n: 0, v: String::new(), extra }).n = *n;
                }
            }
            Action::Add(n) => self.rows.range_mut(ids.clone()).for_each(|(_, row)| row.n += n),
            Action::SetExtra(value) => {
                ensure!(extra.is_some(), "{} has no such column", step.table);
                self.rows.range_mut(ids.clone()).for_each(|(_, row)| row.extra = Some(*value));
            }
            Action::Delete => {
                let gone: Vec<i64> = self.rows.range(ids.clone()).map(|(id, _)| *id).collect();
                gone.iter().for_each(|id| drop(self.rows.remove(id)));
            }
        }
        Ok(())
    }

    fn set_extra(&mut self, extra: Option<i64>) {
        self.extra = extra;
        self.rows.values_mut().for_each(|row| row.extra = extra);
    }

    fn of(server: &Server, schema: &str, name: &str) -> Result<Table> {
        let default: Vec<String> = server.query(format!(
            "SELECT column_default FROM information_schema.columns
             WHERE table_schema = '{schema}' AND table_name = '{name}' AND column_name = 'extra'"
        ))?;
        let extra = default.first().map(|text| text.parse()).transpose()?;
        let column = if extra.is_some() { "extra" } else { "NULL" };
        let rows: Vec<(i64, i64, String, Option<i64>)> =
            server.query(format!("SELECT id, n, v, {column} FROM {schema}.{name}"))?;
        let rows = rows.into_iter().map(|(id, n, v, extra)| (id, Row { n, v, extra })).collect();
        Ok(Table { extra, rows })
    }

    fn difference(&self, name: &str, found: &Table) -> Option<String> {
        if self == found {
            return None;
        }
        let ids: BTreeSet<&i64> = self.rows.keys().chain(found.rows.keys()).collect();
        let differ: Vec<&i64> =
            ids.into_iter().filter(|id| self.rows.get(id) != found.rows.get(id)).collect();
        let first = differ.first().map(|id| {
            let show = |row: Option<&Row>| row.map(|row| (row.n, row.v.len(), row.extra));
            format!(", {id} is {:?}, not {:?}", show(found.rows.get(id)), show(self.rows.get(id)))
        });
        Some(format!(
            "{name}: {} rows differ{}; its column: {:?}, not {:?}",
            differ.len(),
            first.unwrap_or_default(),
            found.extra,
            self.extra
        ))
    }
}
