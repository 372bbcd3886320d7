//! mydumper's directories: the kind of each file by its name, and the `metadata` file, in its old form
//! (`Log:`, `Pos:`) and in the form with sections.

use std::collections::{BTreeMap, BTreeSet};

use super::about::Place;

/// What mydumper says about a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// When the dump began, in the local time of the host that made it.
    pub started_at: Option<String>,
    /// When the dump was complete; `None` if it is not.
    pub finished_at: Option<String>,
    /// The place in the binlog of the server.
    pub place: Place,
    /// The place in the binlog of the server that it replicates from.
    pub primary_place: Place,
    /// Rows of each table, by database and table as their files are named.
    pub rows: BTreeMap<(String, String), u64>,
    /// Files that must exist, described by what they create.
    pub makers: BTreeSet<Maker>,
}

/// Something that a file must create.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Maker {
    /// What the file creates.
    pub kind: Kind,
    /// The database.
    pub database: String,
    /// The table, if there is one.
    pub table: Option<String>,
}

/// The subject of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Section {
    Other,
    Server,
    Primary,
    Database(String),
    Table(String, String),
}

impl Metadata {
    /// Reads the file. Unknown content is skipped, because new versions add to it.
    #[must_use]
    pub fn parse(text: &str) -> Metadata {
        let mut metadata = Metadata::default();
        let mut section = Section::Other;
        let (mut server, mut primary) = (Coordinates::default(), Coordinates::default());
        for line in text.lines() {
            let line = line.trim();
            let said = line.trim_start_matches('#').trim();
            let told = match section {
                Section::Server => Some(&mut server),
                Section::Primary => Some(&mut primary),
                _ => None,
            };
            if told.is_some_and(|told| told.goes_on(said)) {
                continue;
            }
            if let Some(at) = said.strip_prefix("Started dump at:") {
                metadata.started_at = Some(at.trim().to_owned());
            } else if let Some(at) = said.strip_prefix("Finished dump at:") {
                metadata.finished_at = Some(at.trim().to_owned());
            } else if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = section_of(name);
            } else if let Some(command) = line.strip_prefix("SHOW ") {
                section = match command.split_whitespace().next() {
                    Some("MASTER" | "BINARY") => Section::Server,
                    _ => Section::Primary,
                };
            } else if let Some((key, value)) = key_and_value(said) {
                match &section {
                    Section::Server => server.hear(key, value),
                    Section::Primary => primary.hear(key, value),
                    Section::Table(database, table) if key.eq_ignore_ascii_case("rows") => {
                        if let Ok(rows) = value.parse() {
                            metadata.rows.insert((database.clone(), table.clone()), rows);
                        }
                    }
                    Section::Table(database, table) => metadata.require(database, Some(table), key, value),
                    Section::Database(database) => metadata.require(database, None, key, value),
                    Section::Other => {}
                }
            }
            // Each table has a file that creates it, whatever else the section says.
            if let (true, Section::Table(database, table)) = (line.starts_with('['), &section) {
                metadata.makers.insert(Maker {
                    kind: Kind::Table,
                    database: database.clone(),
                    table: Some(table.clone()),
                });
            }
        }
        metadata.place = server.place();
        metadata.primary_place = primary.place();
        metadata
    }

    /// Notes the file that must exist according to a key and its value.
    fn require(&mut self, database: &str, table: Option<&String>, key: &str, value: &str) {
        let kind = match key.to_ascii_lowercase().as_str() {
            "is_view" => Kind::View,
            "is_sequence" => Kind::Sequence,
            "triggers_checksum" => Kind::Triggers,
            "post_checksum" | "events_checksum" => Kind::Programs,
            _ => return,
        };
        if value.is_empty() || value == "0" || value.eq_ignore_ascii_case("NULL") {
            return;
        }
        let (database, table) = (database.to_owned(), table.cloned());
        let maker = |kind| Maker { kind, database: database.clone(), table: table.clone() };
        // Not every version has a stand-in table for a view.
        if matches!(kind, Kind::Sequence | Kind::View) {
            self.makers.remove(&maker(Kind::Table));
        }
        self.makers.insert(maker(kind));
    }
}

fn section_of(name: &str) -> Section {
    match name {
        "source" | "master" => return Section::Server,
        "replication" => return Section::Primary,
        _ => {}
    }
    let quotes = ['`', '"'];
    let names = quotes.iter().find_map(|quote| {
        let inner = name.strip_prefix(*quote)?.strip_suffix(*quote)?;
        inner.split_once(&format!("{quote}.{quote}"))
    });
    let database =
        || quotes.iter().find_map(|quote| name.strip_prefix(*quote)?.strip_suffix(*quote)).map(str::to_owned);
    match names {
        Some((database, table)) => Section::Table(database.to_owned(), table.to_owned()),
        None => database().map_or(Section::Other, Section::Database),
    }
}

/// `key = value`, or `key: value`; a value may be in quotes.
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let at = line.find(['=', ':'])?;
    let value = line[at + 1..].trim();
    let value = value.strip_prefix('"').map_or(value, |rest| rest.split('"').next().unwrap_or(rest));
    Some((line[..at].trim(), value))
}

/// What was read about a place.
#[derive(Default)]
struct Coordinates {
    file: Option<String>,
    offset: Option<u64>,
    gtids: Option<String>,
}

impl Coordinates {
    /// Takes the next line of a GTID set, if the set so far ends with a comma. Returns whether it did.
    fn goes_on(&mut self, said: &str) -> bool {
        let Some(gtids) = self.gtids.as_mut().filter(|gtids| gtids.ends_with(',')) else { return false };
        gtids.extend(said.chars().filter(|letter| !letter.is_whitespace() && *letter != '"'));
        true
    }

    fn hear(&mut self, key: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        match key.to_ascii_lowercase().as_str() {
            "file"
            | "log"
            | "source_log_file"
            | "master_log_file"
            | "relay_master_log_file"
            | "relay_source_log_file" => self.file = Some(value.to_owned()),
            "position"
            | "pos"
            | "source_log_pos"
            | "master_log_pos"
            | "exec_master_log_pos"
            | "exec_source_log_pos" => self.offset = value.parse().ok(),
            "gtid" | "executed_gtid_set" => {
                self.gtids = Some(value.split_whitespace().collect());
            }
            _ => {}
        }
    }

    fn place(self) -> Place {
        Place { binlog: self.file.zip(self.offset), gtids: self.gtids }
    }
}

/// The kind of a file in such a directory. The order is that of execution: files that others need come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Creates a database.
    Database,
    /// Creates a sequence.
    Sequence,
    /// Creates a table, or a stand-in table for a view.
    Table,
    /// Rows as statements.
    Rows,
    /// Rows that such statements load.
    Content,
    /// Creates triggers.
    Triggers,
    /// Creates routines and events.
    Programs,
    /// Creates a view.
    View,
    /// Describes what other files should contain.
    Note,
}

/// A file of a directory, as its name describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The kind of file.
    pub kind: Kind,
    /// The database, as file names spell it.
    pub database: String,
    /// The table, likewise.
    pub table: Option<String>,
}

impl FileName {
    /// Reads a name, which may end with the name of its compression. `None` if mydumper makes no such file.
    #[must_use]
    pub fn parse(name: &str) -> Option<FileName> {
        const ENDS: [(&str, Kind); 8] = [
            ("-schema-create.sql", Kind::Database),
            ("-schema-post.sql", Kind::Programs),
            ("-schema-triggers.sql", Kind::Triggers),
            ("-schema-sequence.sql", Kind::Sequence),
            ("-schema-view.sql", Kind::View),
            ("-schema.sql", Kind::Table),
            ("-checksum", Kind::Note),
            ("-metadata", Kind::Note),
        ];
        let name = [".gz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let of = |kind: Kind, stem: &str| {
            let (database, table) = match stem.split_once('.') {
                Some((database, table)) => (database, Some(table.to_owned())),
                None => (stem, None),
            };
            let needs_table =
                matches!(kind, Kind::Sequence | Kind::View | Kind::Table | Kind::Rows | Kind::Content);
            let is_whole = !database.is_empty() && table.as_deref() != Some("");
            (is_whole && (table.is_some() || !needs_table)).then(|| FileName {
                kind,
                database: database.to_owned(),
                table,
            })
        };
        if let Some((stem, kind)) = ENDS.iter().find_map(|(end, kind)| Some((name.strip_suffix(end)?, *kind)))
        {
            return of(kind, stem);
        }
        let (stem, kind) = match (name.strip_suffix(".sql"), name.strip_suffix(".dat")) {
            (Some(stem), _) => (stem, Kind::Rows),
            (_, Some(stem)) => (stem, Kind::Content),
            _ => return None,
        };
        // The numbers of parts come after the table's name.
        let mut stem = stem;
        while let Some((rest, number)) = stem.rsplit_once('.')
            && rest.contains('.')
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            stem = rest;
        }
        of(kind, stem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both forms, and a dump that is not finished.
    #[test]
    fn forms() {
        let new = Metadata::parse(
            "# Started dump at: 2026-11-22 02:28:51\n[config]\nquote-character = BACKTICK\n\n[source]\n\
             # executed_gtid_set = \"0-1-137\"\n# SOURCE_LOG_FILE = \"binlog.000001\"\n# SOURCE_LOG_POS = 384782\n\n\
             [`shop`.`mydumper_0`]\nreal_table_name=odd\nrows = 7\n[config]\n# Finished dump at: 2026-11-22 02:28:52\n",
        );
        assert_eq!(new.finished_at.as_deref(), Some("2026-11-22 02:28:52"));
        assert_eq!(new.place.binlog, Some(("binlog.000001".to_owned(), 384_782)));
        assert_eq!(new.place.gtids.as_deref(), Some("0-1-137"));
        assert_eq!(new.rows[&("shop".to_owned(), "mydumper_0".to_owned())], 7);
        let old = Metadata::parse(
            "Started dump at: 2019-01-01 10:00:00\nSHOW MASTER STATUS:\n\tLog: binlog.000003\n\tPos: 107\n\tGTID:0-1-5\n\n\
             SHOW SLAVE STATUS:\n\tHost: 10.0.0.1\n\tLog: other.000001\n\tPos: 4\n\tGTID:\n\nFinished dump at: 2019-01-01 10:00:09\n",
        );
        assert_eq!(old.place.binlog, Some(("binlog.000003".to_owned(), 107)));
        assert_eq!(old.place.gtids.as_deref(), Some("0-1-5"));
        assert_eq!(old.primary_place.binlog, Some(("other.000001".to_owned(), 4)));
        assert_eq!(old.finished_at.as_deref(), Some("2019-01-01 10:00:09"));
        let lines = Metadata::parse(
            "SHOW MASTER STATUS:\n\tLog: b.1\n\tPos: 4\n\tGTID:a:1-5,\nb:1-3,\nc:9\n\nFinished dump at: 2019-01-01 10:00:09\n",
        );
        assert_eq!(lines.place.gtids.as_deref(), Some("a:1-5,b:1-3,c:9"));
        assert!(lines.finished_at.is_some());
        assert_eq!(Metadata::parse("Started dump at: 2019-01-01 10:00:00\n").finished_at, None);
    }

    /// Files are of the kind that their names say.
    #[test]
    fn files() {
        for (name, kind, database, table) in [
            ("shop-schema-create.sql", Kind::Database, "shop", None),
            ("shop-schema-post.sql.gz", Kind::Programs, "shop", None),
            ("shop-schema-triggers.sql", Kind::Triggers, "shop", None),
            ("shop.orders-schema-triggers.sql", Kind::Triggers, "shop", Some("orders")),
            ("shop.orders-schema.sql.zst", Kind::Table, "shop", Some("orders")),
            ("shop.orders-schema-view.sql", Kind::View, "shop", Some("orders")),
            ("shop.orders.sql", Kind::Rows, "shop", Some("orders")),
            ("shop.orders.00000.sql.zst", Kind::Rows, "shop", Some("orders")),
            ("shop.orders.00000.00012.sql", Kind::Rows, "shop", Some("orders")),
            ("shop.7.00000.sql", Kind::Rows, "shop", Some("7")),
            ("shop.orders.00000.dat", Kind::Content, "shop", Some("orders")),
            ("shop.orders-metadata", Kind::Note, "shop", Some("orders")),
        ] {
            let wanted = FileName { kind, database: database.to_owned(), table: table.map(str::to_owned) };
            assert_eq!(FileName::parse(name), Some(wanted), "{name}");
        }
        for name in ["metadata", "README", "a.sql", ".sql", "-schema.sql", "shop.-schema.sql"] {
            assert_eq!(FileName::parse(name), None, "{name}");
        }
    }
}
