//! Into a server of another series or flavor: what is not there as it was is named, and what is there has its rows.

use std::collections::BTreeSet;

use mysql::Value;

use super::{facts::Facts, rows::Name, *};

/// Why rows of one server may not be those of another. Nothing names them beforehand: the load fails, and says this.
const REASONS: [&str; 3] = [
    // Collations by which other texts are equal.
    "Duplicate entry",
    "the server has changed a value for column",
    "has changed a value",
];
/// Tables that are given up before this says too much.
const GIVEN_UP_MAX: usize = 3;

/// Loads a backup, and again without the tables whose rows the target cannot hold.
pub(super) fn check(stage: &Stage, mut backup: u64, target: &Server) {
    for _ in 0..=GIVEN_UP_MAX {
        match load(stage, backup, &LoadOptions { leave_out: true, ..options(target) }) {
            Ok(report) => return compare(&stage.source, target, &report),
            Err(error) => {
                let text = error.to_string();
                let table = rows::tables(&stage.source)
                    .into_keys()
                    .find(|(schema, name)| text.contains(&format!("{schema}.{name}")));
                let (schema, name) = table.unwrap_or_else(|| panic!("{text}"));
                assert!(REASONS.iter().any(|reason| text.contains(reason)), "{text}");
                println!("given up: {text}");
                let mut conn = stage.source.conn().unwrap();
                conn.query_drop("SET SESSION foreign_key_checks = 0").unwrap();
                conn.query_drop(format!("DROP TABLE {}.{}", quoted(&schema), quoted(&name))).unwrap();
                rows::wipe(target);
                backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
            }
        }
    }
    panic!("more than {GIVEN_UP_MAX} tables have rows that {} does not hold", target.kind());
}

fn compare(source: &Server, target: &Server, report: &LoadReport) {
    let plan = &report.plan;
    let named = |object: &str, word: &str| {
        let mut all = plan.adapted.iter().chain(&plan.left_out);
        // Of a table's keys it is said where they lead.
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
        "{} into {}: {unnamed:#?}\nadapted:\n{}left out:\n{}",
        source.kind(),
        target.kind(),
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
    println!("{compared} tables compared, {} adaptations, {} left out", plan.adapted.len(), plan.left_out.len());
    assert!(compared > 0);
}

/// What is said otherwise of an object and not named.
fn differences(
    object: &str,
    theirs: &Facts,
    ours: &Facts,
    named: &dyn Fn(&str, &str) -> bool,
) -> Vec<String> {
    let keys: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let is_named = |fact: &str| {
        let Some(had) = theirs.get(fact) else { return false };
        had.words.iter().any(|word| named(object, word))
    };
    let differs = |fact: &&&String| theirs.get(**fact) != ours.get(**fact) && !is_named(fact);
    let line =
        |fact: &String| format!("{object}: {fact}: {:?}, now {:?}", theirs.get(fact), ours.get(fact));
    keys.iter().filter(differs).map(|fact| line(fact)).collect()
}

/// Compares rows by what both servers say; documents by what they mean.
fn same_rows(source: &Server, target: &Server, name: &Name, kind: &str) {
    let (theirs, ours) = (rows::columns(source, name), rows::columns(target, name));
    let is_json: Vec<bool> = theirs
        .iter()
        .zip(&ours)
        .flat_map(|(one, other)| {
            let is_json = one.data_type == "json" || other.data_type == "json";
            vec![is_json; if one.is_of_members() { 2 } else { 1 }]
        })
        .collect();
    let shown = |value: (&Value, Option<&bool>)| match value {
        (Value::Bytes(text), Some(true)) => document(text),
        (value, _) => rows::shown(value),
    };
    let all = |server: &Server, columns: &[rows::Column]| {
        let rows = rows::rows(&mut rows::plain_conn(server), name, columns, kind);
        let of_row = |row: &Vec<Value>| {
            let values = row.iter().enumerate().map(|(at, value)| shown((value, is_json.get(at))));
            values.collect::<Vec<_>>().join(", ")
        };
        let mut rows: Vec<String> = rows.iter().map(of_row).collect();
        rows.sort();
        rows
    };
    rows::assert_same(name, &all(source, &theirs), &all(target, &ours));
}

/// A document without what does not count: spaces, the order of members, how numbers are written.
fn document(text: &[u8]) -> String {
    match serde_json::from_slice::<serde_json::Value>(text) {
        Ok(value) => value.to_string(),
        Err(_) => format!("no JSON: {}", text.escape_ascii()),
    }
}
