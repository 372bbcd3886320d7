//! Loads into servers of another series or flavor: changed or missing objects are reported, and existing ones
//! have their rows.

use std::collections::BTreeSet;

use mysql::Value;

use super::{facts::Facts, rows::Name, *};

/// Loads a backup, and again without tables that the target has refused, of which there may be
/// `given_up_max`.
pub(in crate::load) fn check(stage: &Stage, mut backup: u64, target: &Server, given_up_max: usize) {
    for _ in 0..=given_up_max {
        match load(stage, backup, &LoadOptions { leave_out: true, ..options(target) }) {
            Ok(report) => return compare(&stage.source, target, &report),
            Err(error) => {
                // A server may refuse a definition, or consider different texts equal: the error says so, and
                // names the table.
                let text = error.to_string();
                let is_named = |(schema, name): &Name| text.contains(&format!("{schema}.{name}"));
                let table = rows::tables(&stage.source).into_keys().find(is_named);
                let (schema, name) = table.unwrap_or_else(|| panic!("{text}"));
                println!("given up: {text}\n{}", shown(&stage.source, &text));
                let mut conn = stage.source.conn().unwrap();
                conn.query_drop("SET SESSION foreign_key_checks = 0").unwrap();
                conn.query_drop(format!("DROP TABLE {}.{}", quoted(&schema), quoted(&name))).unwrap();
                rows::wipe(target);
                backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
            }
        }
    }
    panic!("{} refuses more than {given_up_max} tables", target.kind());
}

/// Compares all objects and rows of two servers; what differs must be in the report of the load.
pub(in crate::load) fn compare(source: &Server, target: &Server, report: &LoadReport) {
    let plan = &report.plan;
    let named = |object: &str, word: &str| {
        let mut all = plan.adapted.iter().chain(&plan.left_out);
        // The object of a report about a key ends with the name of its table.
        all.any(|it| it.object.ends_with(object) && it.what.to_lowercase().contains(&word.to_lowercase()))
    };
    let is_left_out = |object: &str| plan.left_out.iter().any(|it| it.object == object);
    let (theirs, ours) = (facts::of(source), facts::of(target));
    let mut unnamed = Vec::new();
    for (object, facts) in &theirs {
        match ours.get(object) {
            None if is_left_out(object) => {}
            None => unnamed.push(format!("{object} is not there")),
            Some(there) => unnamed.extend(differences(object, facts, there, &named)),
        }
    }
    unnamed.extend(ours.keys().filter(|it| !theirs.contains_key(*it)).map(|it| format!("{it} is new")));
    let said = super::super::other_servers::said;
    assert!(
        unnamed.is_empty(),
        "{} into {}: {unnamed:#?}\n{}\n{}\nadapted:\n{}left out:\n{}",
        source.kind(),
        target.kind(),
        shown(source, &unnamed.concat()),
        shown(target, &unnamed.concat()),
        said(&plan.adapted),
        said(&plan.left_out)
    );
    let there = rows::tables(target);
    let mut compared = 0;
    for (name, kind) in rows::tables(source) {
        if there.contains_key(&name) {
            same_rows(source, target, &name, &kind);
            compared += 1;
        }
    }
    println!(
        "{compared} tables compared, {} adaptations, {} left out",
        plan.adapted.len(),
        plan.left_out.len()
    );
    assert!(compared > 0);
}

/// Facts about an object that differ and are not reported.
fn differences(
    object: &str,
    theirs: &Facts,
    ours: &Facts,
    named: &dyn Fn(&str, &str) -> bool,
) -> Vec<String> {
    let keys: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let is_named = |fact: &str| {
        let Some(had) = theirs.get(fact) else {
            // A server creates an index for a foreign key if it cannot use an existing one.
            let key = fact.strip_prefix("index ").map(|name| format!("foreign key {name}"));
            return key.is_some_and(|key| theirs.contains_key(&key));
        };
        had.words.iter().any(|word| named(object, word))
    };
    let differs = |fact: &&&String| theirs.get(**fact) != ours.get(**fact) && !is_named(fact);
    let line = |fact: &String| format!("{object}: {fact}: {:?}, now {:?}", theirs.get(fact), ours.get(fact));
    keys.iter().filter(differs).map(|fact| line(fact)).collect()
}

/// Compares rows by their text on both servers, and documents by their meaning.
fn same_rows(source: &Server, target: &Server, name: &Name, kind: &str) {
    let (mut theirs, mut ours) = (rows::columns(source, name), rows::columns(target, name));
    // MySQL does not turn an invalid value into a date.
    let is_kept = |column: &rows::Column| !(column.is_computed && column.data_type == "date");
    theirs.retain(is_kept);
    ours.retain(is_kept);
    let is_json: Vec<bool> = theirs
        .iter()
        .zip(&ours)
        .flat_map(|(one, other)| {
            let is_json = one.data_type == "json" || other.data_type == "json";
            vec![is_json; if one.is_of_members() { 2 } else { 1 }]
        })
        .collect();
    // This server prints no sign for a zero, so a backup of it has none.
    let is_unsigned = [source, target].iter().any(|it| it.kind() == ServerKind::MariaDb1011);
    let shown = |value: (&Value, Option<&bool>)| match value {
        (Value::Float(0.0) | Value::Double(0.0), _) if is_unsigned => "0".to_owned(),
        (Value::Bytes(text), Some(true)) => document(text),
        (value, _) => rows::shown(value),
    };
    let all = |server: &Server, columns: &[rows::Column]| {
        let rows = rows::rows(&mut rows::plain_conn(server), name, columns, kind);
        let of_row = |row: &Vec<Value>| {
            let values = row.iter().enumerate().map(|(at, value)| shown((value, is_json.get(at))));
            // MariaDB drops the sign of a zero since 11.8.9, however it is written.
            rows::unsigned_zeros(&values.collect::<Vec<_>>().join(", "))
        };
        let mut rows: Vec<String> = rows.iter().map(of_row).collect();
        rows.sort();
        rows
    };
    rows::assert_same(name, &all(source, &theirs), &all(target, &ours));
}

/// A normalized document, without irrelevant differences: spaces, the order of members,
/// the notation of numbers.
fn document(text: &[u8]) -> String {
    match serde_json::from_slice::<serde_json::Value>(text) {
        Ok(value) => value.to_string(),
        Err(_) => format!("no JSON: {}", text.escape_ascii()),
    }
}
