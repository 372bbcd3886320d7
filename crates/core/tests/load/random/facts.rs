//! Facts that a server reports about its objects, in terms that both flavors share.

use std::collections::BTreeMap;

use holdfast_testkit::Server;
use mysql::prelude::Queryable;

/// A fact about an object, and words of which a reported adaptation must contain one if the fact changes.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    said: String,
    pub(super) words: Vec<String>,
}

impl PartialEq for Fact {
    fn eq(&self, other: &Fact) -> bool {
        self.said == other.said
    }
}

/// Facts by their subject.
pub(super) type Facts = BTreeMap<String, Fact>;

const OWN: &str = "('mysql', 'sys', 'information_schema', 'performance_schema')";

struct Reader<'a> {
    server: &'a Server,
    found: BTreeMap<String, Facts>,
}

/// All facts by object, with the object names that loads use.
pub(super) fn of(server: &Server) -> BTreeMap<String, Facts> {
    let mut reader = Reader { server, found: BTreeMap::new() };
    reader.databases();
    reader.tables();
    reader.columns();
    reader.indexes();
    reader.foreign_keys();
    reader.partitions();
    reader.programs();
    reader.found
}

type Texts = Vec<Option<String>>;

impl Reader<'_> {
    /// Returns rows of text; `OWN` in the query stands for the server's own databases.
    fn ask(&self, query: &str) -> Vec<Vec<String>> {
        let mut conn = self.server.conn().unwrap();
        conn.query_drop("SET SESSION group_concat_max_len = 1000000").unwrap();
        let rows: Vec<mysql::Row> = conn.query(query.replace("OWN", OWN)).unwrap();
        let texts = |row: mysql::Row| -> Texts { row.unwrap().into_iter().map(text).collect() };
        rows.into_iter()
            .map(texts)
            .map(|row| row.into_iter().map(Option::unwrap_or_default).collect())
            .collect()
    }

    fn note(&mut self, object: String, about: String, said: String, words: &[&str]) {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        self.found.entry(object).or_default().insert(about, Fact { said, words });
    }

    fn databases(&mut self) {
        for row in self.ask(
            "SELECT schema_name, default_collation_name FROM information_schema.schemata WHERE schema_name NOT IN OWN",
        ) {
            self.note(format!("database {}", row[0]), "collation".to_owned(), row[1].clone(), &[&row[1]]);
        }
    }

    fn tables(&mut self) {
        for row in self.ask(
            "SELECT table_schema, table_name, table_type, engine, table_collation, table_comment, create_options
             FROM information_schema.tables WHERE table_schema NOT IN OWN",
        ) {
            let kind = match row[2].as_str() {
                "VIEW" => "view",
                "SEQUENCE" => "sequence",
                _ => "table",
            };
            let object = format!("{kind} {}.{}", row[0], row[1]);
            self.note(object.clone(), "kind".to_owned(), kind.to_owned(), &[]);
            if kind != "table" {
                continue;
            }
            // The flavors write MRG_MyISAM otherwise.
            let engine = row[3].to_lowercase();
            self.note(object.clone(), "engine".to_owned(), engine, &["engine"]);
            self.note(object.clone(), "collation".to_owned(), row[4].clone(), &[&row[4]]);
            self.note(object.clone(), "comment".to_owned(), row[5].clone(), &[]);
            for option in row[6].split_whitespace() {
                let option = option.to_lowercase().replace(['`', '"', '\''], "");
                let name = option.split('=').next().unwrap_or_default().to_owned();
                // Aria's default is recorded only if it was requested, but `SHOW CREATE` always prints it.
                if name != "partitioned" && option != "page_checksum=1" {
                    self.note(object.clone(), format!("option {name}"), option, &[&name, "engine"]);
                }
            }
        }
    }

    fn columns(&mut self) {
        let generated = "COALESCE(generation_expression, '') <> ''";
        // MariaDB prints literals in quotes, and other defaults without.
        let none = if self.server.kind().is_mariadb() { "column_default <> 'NULL'" } else { "TRUE" };
        for row in self.ask(&format!(
            "SELECT c.table_schema, c.table_name, column_name, column_type, collation_name, is_nullable,
             column_default IS NOT NULL AND {none} AND NOT {generated}, extra, column_comment, ordinal_position
             FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
             WHERE c.table_schema NOT IN OWN AND t.table_type <> 'SEQUENCE'"
        )) {
            let view = format!("view {}.{}", row[0], row[1]);
            let is_of_view = self.found.contains_key(&view);
            let object = if is_of_view { view } else { format!("table {}.{}", row[0], row[1]) };
            let name = &row[2];
            self.note(object.clone(), format!("place of {name}"), row[9].clone(), &[]);
            if is_of_view {
                continue;
            }
            let of_column = format!("column {name} ");
            self.note(object.clone(), format!("type of {name}"), column_type(&row[3]), &[&of_column]);
            self.note(object.clone(), format!("collation of {name}"), row[4].clone(), &[&row[4], &of_column]);
            self.note(object.clone(), format!("nulls of {name}"), row[5].clone(), &[&of_column]);
            self.note(object.clone(), format!("default of {name}"), row[6].clone(), &[&of_column]);
            self.note(object.clone(), format!("comment of {name}"), row[8].clone(), &[&of_column]);
            self.note(object, format!("behind {name}"), extra(&row[7]), &[&of_column]);
        }
    }

    fn indexes(&mut self) {
        for row in self.ask(
            "SELECT table_schema, table_name, index_name, MAX(non_unique), MAX(index_type), MAX(index_comment),
             GROUP_CONCAT(CONCAT_WS('/', COALESCE(column_name, '()'), COALESCE(sub_part, ''), COALESCE(collation, '')) ORDER BY seq_in_index)
             FROM information_schema.statistics WHERE table_schema NOT IN OWN GROUP BY 1, 2, 3",
        ) {
            let object = format!("table {}.{}", row[0], row[1]);
            let of_index = format!("index {} ", row[2]);
            let said = row[3..].join(" ");
            self.note(object, format!("index {}", row[2]), said, &[&of_index]);
        }
    }

    fn foreign_keys(&mut self) {
        for row in self.ask(
            "SELECT constraint_schema, table_name, constraint_name, referenced_table_name,
             REPLACE(delete_rule, 'NO ACTION', 'RESTRICT'), REPLACE(update_rule, 'NO ACTION', 'RESTRICT')
             FROM information_schema.referential_constraints WHERE constraint_schema NOT IN OWN",
        ) {
            let object = format!("table {}.{}", row[0], row[1]);
            self.note(
                object,
                format!("foreign key {}", row[2]),
                row[3..].join(" "),
                &[&row[2], "references"],
            );
        }
    }

    fn partitions(&mut self) {
        for row in self.ask(
            "SELECT table_schema, table_name, MAX(partition_method), MAX(subpartition_method), COUNT(*),
             GROUP_CONCAT(CONCAT_WS('/', partition_name, COALESCE(partition_description, ''), partition_comment) ORDER BY partition_ordinal_position, subpartition_ordinal_position)
             FROM information_schema.partitions WHERE table_schema NOT IN OWN AND partition_name IS NOT NULL GROUP BY 1, 2",
        ) {
            let object = format!("table {}.{}", row[0], row[1]);
            self.note(object, "partitions".to_owned(), row[2..].join(" "), &["partition"]);
        }
    }

    fn programs(&mut self) {
        for query in [
            "SELECT LOWER(routine_type), routine_schema, routine_name, routine_comment FROM information_schema.routines WHERE routine_schema NOT IN OWN",
            "SELECT 'trigger', trigger_schema, trigger_name, CONCAT(action_timing, event_manipulation, action_order) FROM information_schema.triggers WHERE trigger_schema NOT IN OWN",
            "SELECT 'event', event_schema, event_name, CONCAT_WS(' ', status, interval_value, interval_field, starts, ends, execute_at, on_completion, event_comment) FROM information_schema.events WHERE event_schema NOT IN OWN",
        ] {
            for row in self.ask(query) {
                self.note(
                    format!("{} {}.{}", row[0], row[1], row[2]),
                    "said".to_owned(),
                    row[3].clone(),
                    &[],
                );
            }
        }
    }
}

fn text(value: mysql::Value) -> Option<String> {
    match value {
        mysql::Value::NULL => None,
        mysql::Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => Some(other.as_sql(true)),
    }
}

/// A type without its display width, which MySQL does not keep.
fn column_type(text: &str) -> String {
    let is_shown_narrow = |word: &str| word.ends_with("int") || word == "year";
    let text = text.replace("geomcollection", "geometrycollection");
    match text.split_once('(') {
        Some((word, rest)) if is_shown_narrow(word) && !text.contains("zerofill") => {
            format!("{word}{}", rest.split_once(')').map_or("", |(_, rest)| rest))
        }
        _ => text,
    }
}

/// A column's extra attributes, in the terms of one flavor.
fn extra(text: &str) -> String {
    let text = text
        .to_uppercase()
        .replace("DEFAULT_GENERATED", "")
        .replace("()", "")
        .replace("PERSISTENT", "STORED");
    let mut words: Vec<&str> = text.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    words.sort_unstable();
    words.join(" ")
}
