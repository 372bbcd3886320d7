//! Full and incremental backups under writes and DDL, on every kind of server.

use super::*;

/// Seeds to use instead of the default ones, separated by commas.
const SEEDS: &str = "HOLDFAST_STORM_SEEDS";

fn seeds(usual: u64) -> Vec<u64> {
    match std::env::var(SEEDS) {
        Ok(seeds) => seeds.split(',').map(|seed| seed.parse().unwrap()).collect(),
        Err(_) => vec![usual],
    }
}

/// Two backups of a busy server, the second based on the first; both restore to exactly their position.
fn full_and_incremental(kind: ServerKind, seed: u64) {
    for seed in seeds(seed) {
        println!("{SEEDS}={seed}");
        let mut options = ServerOptions::default();
        if kind.is_mariadb() {
            // By default, 10.11 has no undo tablespaces to truncate.
            options = options.init_arg("--innodb-undo-tablespaces=3");
        }
        let stage = Stage::new_with(kind, options, 40);
        let [full, second] = stage.two_backups(seed);
        stage.prove(&second);
        stage.prove(&full);
    }
}

#[test]
fn mariadb_10_11_restores_to_the_recorded_position_under_writes_and_ddl() {
    full_and_incremental(ServerKind::MariaDb1011, 1);
}

#[test]
fn mariadb_11_8_restores_to_the_recorded_position_under_writes_and_ddl() {
    full_and_incremental(ServerKind::MariaDb118, 2);
}

#[test]
fn mysql_9_7_restores_to_the_recorded_position_under_writes_and_ddl() {
    full_and_incremental(ServerKind::MySql97, 3);
}

/// Without tables of other engines, MySQL, too, closes imported tables, and no backup is
/// refused because of them.
#[test]
fn mysql_9_7_restores_tables_imported_in_a_storm_of_innodb_alone() {
    for seed in seeds(4) {
        println!("{SEEDS}={seed}");
        let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
        shop::load(&source, shop::ShopOptions { size_mib: 12, ..shop::ShopOptions::default() }).unwrap();
        for table in ["visits", "clicks"] {
            source
                .exec(format!(
                    "CREATE TABLE shop.{table} (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, v VARCHAR(200) NOT NULL, \
                     k INT NOT NULL, KEY (k))"
                ))
                .unwrap();
        }
        let stage = Stage::around(source);
        let [full, second] = stage.two_backups_in(StormOptions {
            imports: true,
            innodb_only: true,
            ..StormOptions::new(2, seed)
        });
        stage.prove(&second);
        stage.prove(&full);
    }
}
