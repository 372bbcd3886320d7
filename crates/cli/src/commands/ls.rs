//! `ls`: lists the files in a backup as `ls -l` would, with the tables that they hold.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{Error, Result};
use holdfast_formats::table_name::TableFile;
use holdfast_repo::{
    Act,
    data::reader::Backup,
    format::item::{FileRole, Item, ItemMap, ItemType},
};
use serde::Serialize;

use super::{Context, repository, select};
use crate::{
    args::{inspect::LsArgs, units::ByteSize},
    exit::Exit,
    output::{Render, text},
};

/// One line.
#[derive(Serialize)]
struct Entry {
    path: String,
    #[serde(rename = "type")]
    item_type: &'static str,
    role: Option<&'static str>,
    mode: String,
    size_bytes: u64,
    page_size: usize,
    space_id: Option<u32>,
    /// Where the file was, if outside the data directory.
    outside: Option<String>,
    database: Option<String>,
    table: Option<String>,
    partition: Option<String>,
    /// Rows of a table in a logical backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    /// The object that a definition in a logical backup belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(skip)]
    holds: String,
}

impl Entry {
    fn new(item: &Item) -> Self {
        if item.item_type.is_logical() {
            return Self::of_object(item);
        }
        let path = String::from_utf8_lossy(item.path.as_bytes()).into_owned();
        let table = TableFile::from_path(&path).filter(|_| item.role.is_of_table());
        let role = role(item);
        Self {
            item_type: match item.item_type {
                ItemType::File => "file",
                ItemType::Directory => "directory",
                ItemType::CapturedRedo => "redo",
                ItemType::Table => "table",
                ItemType::Definition => "definition",
            },
            role,
            mode: format!("{:04o}", item.mode),
            size_bytes: item.size_bytes,
            page_size: item.page_size.bytes(),
            space_id: item.tablespace.map(|tablespace| tablespace.space.0),
            outside: item.outside.as_deref().map(|path| String::from_utf8_lossy(path).into_owned()),
            holds: table.as_ref().map(ToString::to_string).or(role.map(str::to_owned)).unwrap_or_default(),
            partition: table.as_ref().and_then(|table| table.partition.as_ref()).map(|part| {
                match &part.subpartition {
                    Some(sub) => format!("{}/{sub}", part.name),
                    None => part.name.clone(),
                }
            }),
            database: table.as_ref().map(|table| table.database.clone()),
            table: table.map(|table| table.table),
            rows: None,
            object: None,
            path,
        }
    }
}

/// Objects of a logical backup.
impl Entry {
    fn of_object(item: &Item) -> Self {
        let names = item.path.names().unwrap_or_default();
        let name = |place: usize| names.get(place).map(|name| String::from_utf8_lossy(name).into_owned());
        let is_table = item.item_type == ItemType::Table;
        let (rows, holds) = match &item.map {
            ItemMap::Table(map) => (Some(map.totals.rows), text::count(map.totals.rows, "row")),
            ItemMap::Definition(definition) => (None, definition.kind.clone()),
            _ => (None, String::new()),
        };
        Self {
            path: String::from_utf8_lossy(item.path.as_bytes()).into_owned(),
            item_type: if is_table { "table" } else { "definition" },
            role: None,
            mode: String::new(),
            size_bytes: item.size_bytes,
            page_size: 0,
            space_id: None,
            outside: None,
            database: name(0),
            table: is_table.then(|| name(1)).flatten(),
            partition: None,
            rows,
            object: (!is_table).then(|| holds.clone()),
            holds,
        }
    }
}

fn role(item: &Item) -> Option<&'static str> {
    if item.item_type == ItemType::CapturedRedo {
        return Some("captured redo");
    }
    match item.role {
        FileRole::Other => None,
        FileRole::Tablespace => Some("tablespace"),
        FileRole::UndoTablespace => Some("undo tablespace"),
        FileRole::SystemTablespace => Some("system tablespace"),
        FileRole::AriaLog => Some("Aria log"),
        FileRole::AriaControl => Some("Aria control"),
        FileRole::AriaTable => Some("Aria table"),
        FileRole::Binlog => Some("binlog"),
        FileRole::TableFile => Some("table file"),
    }
}

/// `-rw-r-----`.
fn mode_letters(item_type: &str, mode: &str) -> String {
    let bits = u16::from_str_radix(mode, 8).unwrap_or_default();
    let letters = (0..9).rev().zip("rwxrwxrwx".chars());
    let mut text = String::from(if item_type == "directory" { "d" } else { "-" });
    text.extend(letters.map(|(bit, letter)| if bits >> bit & 1 == 1 { letter } else { '-' }));
    text
}

impl Render for Entry {
    fn render(&self, out: &mut String) -> fmt::Result {
        let path = text::one_line(&self.path);
        let size =
            if self.item_type == "directory" { String::new() } else { ByteSize(self.size_bytes).to_string() };
        match self.item_type {
            "table" | "definition" => write!(out, "{:<10} {size:>9}  {path}", self.item_type)?,
            _ => write!(out, "{} {size:>9}  {path}", mode_letters(self.item_type, &self.mode))?,
        }
        if !self.holds.is_empty() {
            write!(out, "  ({})", text::one_line(&self.holds))?;
        }
        if let Some(outside) = &self.outside {
            write!(out, "  at {}", text::one_line(outside))?;
        }
        writeln!(out)
    }
}

/// The totals.
#[derive(Serialize)]
struct Total {
    id: String,
    items: u64,
    size_bytes: u64,
}

impl Render for Total {
    fn render(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "{}, {}", text::count(self.items, "item"), ByteSize(self.size_bytes))
    }
}

pub(super) fn run(args: &LsArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Read, "to list files")?);
    let chosen = select::backup(context, &repo, &args.id, args.name.name.as_ref())?;
    let backup = Backup::open(&repo, &chosen.history, chosen.run)?;
    let below =
        args.path.as_deref().map(|path| path.trim_start_matches("./").trim_end_matches('/').as_bytes());
    let is_wanted = |path: &[u8]| {
        below.is_none_or(|below| {
            below.is_empty()
                || path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
    };
    let mut total = Total { id: format!("{}{}", chosen.log(), chosen.run), items: 0, size_bytes: 0 };
    for item in backup.items() {
        context.cancel.check()?;
        let item = item?;
        if is_wanted(item.path.as_bytes()) {
            total.items += 1;
            total.size_bytes += item.size_bytes;
            context.output.item(&Entry::new(&item));
        }
    }
    match &args.path {
        Some(path) if total.items == 0 => Err(Error::failed(format!("{} does not contain {path}", total.id))),
        _ => {
            context.output.result(Exit::Done, &total);
            Ok(Exit::Done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line for each file, whatever a table is called: on the server, anybody with a database chooses that.
    #[test]
    fn a_table_with_a_strange_name_is_one_line() {
        const NAME: &str = "shop/t\x1b[2J\nbackup db1/physical #9 completed OK";
        let entry = Entry {
            path: NAME.to_owned(),
            item_type: "table",
            role: None,
            mode: String::new(),
            size_bytes: 1,
            page_size: 0,
            space_id: None,
            outside: Some(NAME.to_owned()),
            database: None,
            table: None,
            partition: None,
            rows: None,
            object: None,
            holds: NAME.to_owned(),
        };
        let mut out = String::new();
        entry.render(&mut out).unwrap();
        assert_eq!(out.lines().count(), 1, "{out}");
        assert!(!out.trim_end().contains(char::is_control), "{out}");
        assert!(serde_json::to_string(&entry).unwrap().contains("[2J\\nbackup"), "JSON has the name itself");
    }
}
