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

/// What is special about the pages of a table.
const PACKED: &str = "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8";

/// Compressed tables that change between two backups, when the second begins, and at its end: they are partitioned,
/// renamed in a chain, emptied and filled again, dropped and made again. Both backups have the tables as they were.
fn compressed_tables_that_change_are_restored(kind: ServerKind) {
    let stage = Stage::around(Server::start(kind, ServerOptions::default()).unwrap());
    let source = &stage.source;
    source.exec("CREATE DATABASE c").unwrap();
    let sparse = if kind.is_mariadb() { "PAGE_COMPRESSED=1" } else { "COMPRESSION='zlib'" };
    let formats = [("packed", PACKED), ("sparse", sparse)];
    let make = |name: &str, format: &str| {
        source
            .exec(format!(
                "CREATE TABLE c.{name} (id INT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, v VARCHAR(200) NOT NULL, KEY (k))
                 ENGINE=InnoDB {format}"
            ))
            .unwrap();
    };
    make("numbers", PACKED);
    source.exec("INSERT INTO c.numbers (k, v) VALUES (1, SHA2(1, 256))").unwrap();
    for bits in 0..9 {
        source
            .exec(format!(
                "INSERT INTO c.numbers (k, v) SELECT k + {0}, SHA2(k + {0}, 256) FROM c.numbers",
                1 << bits
            ))
            .unwrap();
    }
    let fill = |name: &str, value: &str| {
        source
            .exec(format!("INSERT INTO c.{name} (k, v) SELECT k, CONCAT('{value} ', v) FROM c.numbers"))
            .unwrap();
    };
    for (name, format) in formats {
        for table in ["parted", "first", "second", "emptied", "remade"] {
            for moment in ["between", "copy", "stop"] {
                make(&format!("{name}_{table}_{moment}"), format);
                fill(&format!("{name}_{table}_{moment}"), table);
            }
        }
    }
    let change = |moment: &str| {
        for (name, format) in formats {
            let [parted, first, second, emptied, remade, other, third] =
                ["parted", "first", "second", "emptied", "remade", "other", "third"]
                    .map(|table| format!("{name}_{table}_{moment}"));
            source
                .exec_all([
                    format!("ALTER TABLE c.{parted} PARTITION BY HASH (id) PARTITIONS 3"),
                    format!("UPDATE c.{parted} SET k = k + 7, v = CONCAT('new ', k) WHERE id % 5 = 0"),
                    format!("RENAME TABLE c.{first} TO c.{other}, c.{second} TO c.{first}, c.{other} TO c.{second}"),
                    format!("RENAME TABLE c.{second} TO c.{third}"),
                    format!("UPDATE c.{first} SET k = k + 7 WHERE id % 7 = 0"),
                    format!("DELETE FROM c.{third} WHERE id % 3 = 0"),
                    format!("TRUNCATE TABLE c.{emptied}"),
                    format!("DROP TABLE c.{remade}"),
                ])
                .unwrap();
            fill(&emptied, "again");
            make(&remade, format);
            fill(&remade, "again");
        }
    };
    let full = stage.back_up();
    change("between");
    let second = backup::run(&stage.repo, &stage.options(), &AtPhases(change), &Cancel::default()).unwrap();
    assert_eq!(second.run.base, Some(full.run.backup));
    assert!(second.run.totals.bytes_reused > 0, "{:?}", second.run.totals);
    for backup in [&second, &full] {
        let restored = stage.restore_recovered(backup);
        let parts = "SELECT COUNT(*) FROM information_schema.partitions \
                     WHERE table_schema = 'c' AND partition_name IS NOT NULL";
        let parts: u64 = restored.server.value(parts).unwrap();
        assert_eq!(parts, if backup.run.backup == full.run.backup { 0 } else { 2 * 3 * 3 });
        stage.catch_up(backup, &restored);
    }
}

#[test]
fn mariadb_10_11_compressed_tables_that_change_are_restored() {
    compressed_tables_that_change_are_restored(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_compressed_tables_that_change_are_restored() {
    compressed_tables_that_change_are_restored(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_compressed_tables_that_change_are_restored() {
    compressed_tables_that_change_are_restored(ServerKind::MySql97);
}
