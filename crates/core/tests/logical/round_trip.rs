//! Every type and every kind of object: backed up, loaded elsewhere, and compared by the
//! descriptions of both servers.

use super::*;

/// The history of tables, which `CHECKSUM TABLE` does not see.
pub(crate) fn histories(server: &Server) -> Vec<(String, u64, Option<String>)> {
    let tables: Vec<(String, String)> = server
        .query("SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'SYSTEM VERSIONED' ORDER BY 1, 2")
        .unwrap();
    let sum = |(schema, table): (String, String)| {
        let (start, end) =
            if table == "versioned_named" { ("since", "till") } else { ("row_start", "row_end") };
        let query = format!(
            "SELECT COUNT(*), CAST(SUM(CRC32(CONCAT_WS(',', t.*, {start}, {end}))) AS CHAR) FROM `{schema}`.`{table}` FOR SYSTEM_TIME ALL t"
        );
        let query = query.replace("t.*", if table == "versioned_parts" { "t.x" } else { "t.id, t.v" });
        let row: (u64, Option<String>) = server.query(query).unwrap().remove(0);
        (table, row.0, row.1)
    };
    tables.into_iter().map(sum).collect()
}

fn round_trip(kind: ServerKind) {
    let stage = Stage::new(kind);
    load_torture(&stage.source);
    let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    assert_eq!(report.view.without_rows, ["torture.merged"]);
    assert!(report.view.inconsistent.is_empty());
    let target = stage.loaded(report.run.backup);
    assert_same_rows(&stage.source, &target);
    assert_same_objects(&stage.source, &target);
    if kind.is_mariadb() {
        let left = histories(&stage.source);
        assert!(left.iter().any(|(_, rows, _)| *rows > 500), "{left:?}");
        assert_eq!(left, histories(&target));
    }
    if !kind.is_mariadb() {
        let rows = "SELECT id, j FROM torture.expression_keys ORDER BY id";
        let of = |server: &Server| server.query::<(i32, Option<String>)>(rows).unwrap();
        assert_eq!(of(&stage.source), of(&target));
    }
    let passwords = "SELECT CONCAT(user, '@', host), HEX(authentication_string) FROM mysql.user WHERE host <> '' ORDER BY 1";
    assert_eq!(stage.source.query::<(String, String)>(passwords).unwrap(), target.query(passwords).unwrap());

    // A second backup recognises the rows, and stores next to nothing.
    let again = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    assert_eq!((again.run.base, again.read.rows), (Some(report.run.backup), report.read.rows));
    assert!(again.run.totals.bytes_stored < report.run.totals.bytes_stored / 10, "{:?}", again.run.totals);

    // One table, into a schema with another name.
    target.exec("CREATE DATABASE elsewhere").unwrap();
    let script =
        [b"USE elsewhere;\n".to_vec(), stage.script(report.run.backup, Some("torture.texts"))].concat();
    load(&target, &script);
    let sum = |table: &str| target.query::<(String, u64)>(format!("CHECKSUM TABLE {table}")).unwrap()[0].1;
    assert_eq!(sum("elsewhere.texts"), sum("torture.texts"));
}

#[test]
fn everything_comes_back_on_mariadb_10_11() {
    round_trip(ServerKind::MariaDb1011);
}

#[test]
fn everything_comes_back_on_mariadb_11_8() {
    round_trip(ServerKind::MariaDb118);
}

#[test]
fn everything_comes_back_on_mysql_9_7() {
    round_trip(ServerKind::MySql97);
}

/// Only selected objects are backed up; a selection that does not exist is refused.
#[test]
fn selections_and_filters() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE DATABASE other",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, at DATE)",
            "INSERT INTO shop.orders VALUES (1, '2025-01-01'), (2, '2026-01-01'), (3, '2026-05-01')",
            "CREATE TABLE shop.tmp_1 (id INT)",
            "CREATE TABLE other.t (id INT)",
            "CREATE PROCEDURE shop.p () SELECT 1",
            "CREATE USER somebody",
        ])
        .unwrap();
    let selection = Selection {
        schemas: vec!["sh?p".parse().unwrap()],
        tables_excluded: vec!["*.tmp_*".parse().unwrap()],
        filters: vec!["shop.orders=at >= '2026-01-01' OR FALSE".parse().unwrap()],
        ..Selection::default()
    };
    let report = stage.back_up(&stage.options(), &selection).unwrap();
    assert_eq!((report.read.tables, report.read.rows), (1, 2));
    let script = String::from_utf8(stage.script(report.run.backup, None)).unwrap();
    assert!(
        script.contains("PROCEDURE `p`") && !script.contains("somebody") && !script.contains("tmp_1"),
        "{script}"
    );
    let target = stage.loaded(report.run.backup);
    assert_eq!(target.query::<i32>("SELECT id FROM shop.orders ORDER BY id").unwrap(), [2, 3]);

    let unknown = Selection { tables: vec!["shop.ordres".parse().unwrap()], ..Selection::default() };
    let error = stage.back_up(&stage.options(), &unknown).unwrap_err();
    assert!(error.to_string().contains("shop.ordres"), "{error}");
    assert_eq!(stage.backups(), 1);
}

/// What no logical backup holds is named, if the backup is of the whole server.
#[test]
fn what_is_omitted_is_named() {
    for kind in ServerKind::all_kinds() {
        let stage = Stage::new(kind);
        stage
            .source
            .exec_all([
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (id INT PRIMARY KEY)",
                "CREATE SERVER far FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'far.example', PASSWORD 'hidden')",
            ])
            .unwrap();
        let mut expected = vec!["foreign server far"];
        if !kind.is_mariadb() {
            stage.source.exec("CREATE TABLESPACE wide ADD DATAFILE 'wide.ibd'").unwrap();
            let system = "GEOGCS[\"Ours\", DATUM[\"Ours\", SPHEROID[\"Ours\", 6378137, 298]], PRIMEM[\"Ours\", 0], \
                          UNIT[\"degree\", 0.017], AXIS[\"Lat\", NORTH], AXIS[\"Lon\", EAST]]";
            let create = "CREATE SPATIAL REFERENCE SYSTEM 4120000 NAME 'Ours'";
            stage.source.exec(format!("{create} DEFINITION '{system}'")).unwrap();
            expected.extend(["general tablespace wide", "spatial reference system 4120000"]);
        }
        let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
        assert_eq!(report.view.omitted, expected, "{kind}");
        let part = Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() };
        let report = stage.back_up(&stage.options(), &part).unwrap();
        assert_eq!(report.view.omitted, Vec::<String>::new(), "{kind}");
    }
}

/// A script makes the same of time stamps on a server with another opinion of them, and leaves it its opinion.
#[test]
fn time_stamps_stay_what_they_are() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118, ServerKind::MySql97] {
        let stage = Stage::new(kind);
        stage
            .source
            .exec_all([
                "CREATE DATABASE shop",
                "CREATE TABLE shop.orders (id INT PRIMARY KEY, at TIMESTAMP NOT NULL, paid TIMESTAMP(3) NOT NULL, sent TIMESTAMP NULL)",
            ])
            .unwrap();
        let selection = Selection { without_accounts: true, ..Selection::default() };
        let backup = stage.back_up(&stage.options(), &selection).unwrap().run.backup;
        let target = start_with(kind, &["--explicit-defaults-for-timestamp=OFF"]);
        let script = stage.script(backup, None);
        load(&target, &[&script[..], b"CREATE TABLE shop.later (at TIMESTAMP);\n"].concat());
        let created = |server: &Server, table: &str| {
            server.query::<(String, String)>(format!("SHOW CREATE TABLE shop.{table}")).unwrap().remove(0).1
        };
        assert_eq!(created(&stage.source, "orders"), created(&target, "orders"));
        assert!(created(&target, "later").contains("ON UPDATE"), "the script changes its client's session");
    }
}
