//! Random databases: backed up, loaded, and compared by the servers' own descriptions of
//! each object, and bit by bit.
//!
//! `HOLDFAST_SCHEMAS` sets the number of seeds for each kind of server, `HOLDFAST_SCHEMA_SEED` the first
//! seed. Without either, the same few seeds are tried each time.

use std::{
    collections::BTreeMap,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    time::SystemTime,
};

use holdfast_testkit::{data::names::quoted, schema};
use mysql::prelude::Queryable;

use super::*;

pub(super) mod across;
mod facts;
pub(super) mod rows;

const SEEDS: &str = "HOLDFAST_SCHEMAS";
const SEEDS_DEFAULT: u64 = 2;
/// Tables per seed that another server may refuse to create or fill.
const GIVEN_UP_MAX: usize = 6;
const FIRST_SEED: &str = "HOLDFAST_SCHEMA_SEED";

/// A source, and servers that its backups are loaded into.
struct Round {
    stage: Stage,
    targets: BTreeMap<ServerKind, Server>,
}

impl Round {
    fn new(kind: ServerKind) -> Round {
        Round { stage: Stage::new(kind), targets: BTreeMap::new() }
    }

    /// Returns an empty server.
    fn target(&mut self, kind: ServerKind) -> &Server {
        let target = self.targets.entry(kind).or_insert_with(|| start(kind));
        rows::wipe(target);
        target
    }

    /// Creates the databases of a seed and backs them up.
    /// Returns `None` if the statements made the server fail one of its own assertions.
    fn saved(&mut self, seed: u64) -> Option<u64> {
        rows::wipe(&self.stage.source);
        let made = match schema::create(&self.stage.source, seed) {
            Ok(made) => made,
            Err(error) => {
                let log = self.stage.source.log();
                let failed = log.lines().find(|line| line.contains("Assertion failure"));
                println!("the server has ended itself: {}", failed.unwrap_or_else(|| panic!("{error:#}")));
                return None;
            }
        };
        println!(
            "{} tables, {} rows, {} keys, {} programs; refused: {} statements, {} rows",
            made.tables,
            made.rows,
            made.keys,
            made.programs,
            made.refused.len(),
            made.rows_refused
        );
        if env::var_os("HOLDFAST_SCHEMA_REFUSED").is_some() {
            made.refused.iter().for_each(|it| println!("refused: {it}"));
        }
        assert!(made.tables >= 4 && made.rows >= 100, "{made:#?}");
        Some(self.stage.back_up(&self.stage.options(), &Selection::default()).unwrap().run.backup)
    }

    /// Tests one seed; returns whether there was anything to test.
    fn one(&mut self, seed: u64, other: ServerKind) -> bool {
        let kind = self.stage.source.kind();
        let Some(backup) = self.saved(seed) else { return false };
        self.target(kind);
        let (stage, target) = (&self.stage, &self.targets[&kind]);
        let loaded = load(stage, backup, &LoadOptions { leave_out: true, ..options(target) });
        let report = loaded.unwrap_or_else(|error| {
            println!("{}", shown(&stage.source, &error.to_string()));
            // If the loaded rows differ, that says more.
            rows::assert_equal(&stage.source, target, &str::to_owned);
            panic!("{error}");
        });
        let left_out = crate::load::other_servers::said(&report.plan.left_out);
        assert!(left_out.is_empty(), "{left_out}{}", shown(&stage.source, &left_out));
        let is_account = |object: &str| object.starts_with("account 'root'@");
        assert!(report.plan.adapted.iter().all(|it| is_account(&it.object)), "{:#?}", report.plan.adapted);
        rows::assert_equal(&stage.source, target, &str::to_owned);
        assert_same_objects(&stage.source, target);
        assert_clean(target);

        // The same as a script, loaded by a client.
        self.target(kind);
        let (stage, target) = (&self.stage, &self.targets[&kind]);
        crate::logical::load(target, &stage.script(backup, None));
        rows::assert_equal(&stage.source, target, &str::to_owned);
        assert_same_objects(&stage.source, target);

        self.renamed(backup);
        self.target(other);
        across::check(&self.stage, backup, &self.targets[&other], GIVEN_UP_MAX);
        true
    }

    /// Loads the backup under other names; into MySQL, with `LOAD DATA`.
    fn renamed(&mut self, backup: u64) {
        let (stage, target) = (&self.stage, &self.targets[&self.stage.source.kind()]);
        rows::wipe(target);
        let all = rows::databases(&stage.source);
        let other = |name: &str| format!("new `{}", all.iter().position(|it| it == name).unwrap());
        let rename = |name: &String| Rename::Schema { from: name.clone(), to: other(name) };
        let renames = all.iter().map(rename).collect();
        // Programs that name their databases cannot be renamed.
        let enable_local_infile = target.kind() == ServerKind::MySql97;
        let renames = Renames(renames);
        let chosen = LoadOptions { renames, leave_out: true, enable_local_infile, ..options(target) };
        let report = load(stage, backup, &chosen).unwrap();
        assert_eq!(report.by_load_data, enable_local_infile);
        rows::assert_equal(&stage.source, target, &other);
    }
}

/// The server's descriptions of tables and views that `text` names.
fn shown(server: &Server, text: &str) -> String {
    let mut conn = server.conn().unwrap();
    let query = "SELECT table_schema, table_name FROM information_schema.tables";
    let all: Vec<(String, String)> = conn.query(query).unwrap();
    let is_meant = |(schema, name): &(String, String)| {
        text.contains(&format!("{schema}.{name}")) || text.contains(&format!("'{name}'"))
    };
    let shown = |(schema, name): (String, String)| {
        let query = format!("SHOW CREATE TABLE {}.{}", quoted(&schema), quoted(&name));
        let row: Option<mysql::Row> = conn.query_first(query).unwrap();
        let text = row.and_then(|row| row.get::<Vec<u8>, _>(1)).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    };
    all.into_iter().filter(is_meant).map(shown).collect::<Vec<_>>().join("\n")
}

/// Tests all seeds, each on the servers left by the previous one, and fails with the seeds that failed.
fn seeds(kind: ServerKind, others: [ServerKind; 2]) {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = number(SEEDS).unwrap_or(SEEDS_DEFAULT);
    let first = number(FIRST_SEED).unwrap_or_else(|| match number(SEEDS) {
        Some(_) => SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64,
        None => 1,
    });
    let mut round = Round::new(kind);
    let (mut failed, mut tried) = (Vec::new(), 0);
    for seed in first..first + count {
        println!("{FIRST_SEED}={seed} {SEEDS}=1 {kind}");
        let other = others[(seed % 2) as usize];
        let done = catch_unwind(AssertUnwindSafe(|| round.one(seed, other)));
        tried += u64::from(done.as_ref().is_ok_and(|is_tried| *is_tried));
        if done.is_err() {
            failed.push(seed);
        }
        if !matches!(done, Ok(true)) {
            // What it left behind may affect later seeds.
            round = Round::new(kind);
        }
    }
    println!("{kind}: {tried} of {count} seeds tried");
    assert!(tried + failed.len() as u64 >= count - count / 10, "{kind}: {tried} of {count} seeds were tried");
    assert!(failed.is_empty(), "{kind}: {} of {count} seeds: {failed:?}", failed.len());
}

#[test]
fn random_databases_of_mariadb_10_11() {
    seeds(ServerKind::MariaDb1011, [ServerKind::MySql97, ServerKind::MariaDb118]);
}

#[test]
fn random_databases_of_mariadb_11_8() {
    seeds(ServerKind::MariaDb118, [ServerKind::MySql97, ServerKind::MariaDb1011]);
}

#[test]
fn random_databases_of_mysql_9_7() {
    seeds(ServerKind::MySql97, [ServerKind::MariaDb118, ServerKind::MariaDb1011]);
}
