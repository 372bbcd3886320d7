//! Recorded facts about a server are correct.

use holdfast_core::{
    doctor::{self, Verdict},
    server::{ServerFacts, TableInventory},
};
use holdfast_formats::Flavor;
use holdfast_testkit::{Server, ServerKind, ServerOptions};

use super::{backup_options, on_each, options, session, start};

/// The facts contain this server's locations and features, and survive storage in a manifest.
#[test]
fn facts() {
    on_each(|server| {
        let facts = ServerFacts::probe(&mut session(server)).unwrap();
        let mariadb = server.kind().is_mariadb();
        assert_eq!(facts.flavor(), if mariadb { Flavor::MariaDb } else { Flavor::MySql });
        assert_eq!(facts.resolved(std::path::Path::new(".")), server.datadir());
        assert_eq!(facts.identity.port, server.port());
        assert_eq!(facts.identity.socket, server.socket());
        assert_eq!(facts.identity.server_uuid.is_some(), !mariadb);
        assert_eq!(facts.system_files().unwrap(), [server.datadir().join("ibdata1")]);
        assert_eq!(facts.undo_dir(), server.datadir());
        assert!(facts.redo_dir().join(if mariadb { "ib_logfile0" } else { "#innodb_redo" }).exists());
        assert_eq!(facts.innodb.page_size, 16384);
        assert_eq!(facts.innodb.redo_size, if mariadb { 96 << 20 } else { 160 << 20 });
        assert!(facts.writes_directly());
        let binlog = facts.binlog.as_ref().unwrap();
        assert_eq!(facts.resolved(&binlog.basename), server.datadir().join("binlog"));
        assert!(facts.resolved(&binlog.index).is_file());
        let can = &facts.capabilities;
        assert_eq!([can.backup_stages, can.lsn_status, can.checkpoint_now], [mariadb; 3]);
        assert_eq!(
            [can.instance_lock, can.log_status, can.redo_consumer, can.sharp_checkpoint],
            [!mariadb; 4]
        );
        assert!(can.redo_enabled && !can.galera && !can.group_member && !can.log_archive);
        assert_eq!(facts.aria_log_dir(), mariadb.then(|| server.datadir().to_owned()));
        facts.refuse_unsupported().unwrap();
        for option in [
            |facts: &mut ServerFacts| facts.innodb.undo_directory = Some("undo".into()),
            |facts: &mut ServerFacts| facts.innodb.data_home_dir = Some("./innodb".into()),
            |facts: &mut ServerFacts| facts.innodb.data_file_path = "system1:12M:autoextend".into(),
            |facts: &mut ServerFacts| {
                facts.innodb.log_group_home_dir = Some(facts.paths.datadir.join("redo"))
            },
        ] {
            let mut unusual = facts.clone();
            option(&mut unusual);
            unusual.refuse_unsupported().unwrap_err();
        }
        for path in [".", "./", "/elsewhere"] {
            let mut usual = facts.clone();
            usual.innodb.undo_directory = Some(path.into());
            usual.refuse_unsupported().unwrap();
        }
        let json = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<ServerFacts>(&json).unwrap(), facts);
        // They are stored in a manifest head of at most 64 KiB.
        assert!(json.len() < 16 << 10, "{} bytes", json.len());
    });
}

/// Tables are found by engine, those covered by a log are distinguished, and those that
/// cannot be saved are reported.
#[test]
fn tables_by_engine() {
    on_each(|server| {
        let mariadb = server.kind().is_mariadb();
        server
            .exec_all([
                "CREATE DATABASE `od``d`",
                "CREATE TABLE `od``d`.`ö` (i INT) ENGINE=MyISAM",
                "CREATE DATABASE d",
                "CREATE TABLE d.csv (i INT NOT NULL) ENGINE=CSV",
                "CREATE TABLE d.inno (i INT) ENGINE=InnoDB PARTITION BY HASH (i) PARTITIONS 3",
                "CREATE TABLE d.mem (i INT) ENGINE=MEMORY",
                "CREATE VIEW d.v AS SELECT * FROM d.inno",
            ])
            .unwrap();
        if mariadb {
            server
                .exec_all([
                    "CREATE TABLE d.aria1 (i INT) ENGINE=Aria TRANSACTIONAL=1",
                    "CREATE TABLE d.aria (i INT) ENGINE=Aria",
                    "CREATE TABLE d.aria0 (i INT) ENGINE=Aria TRANSACTIONAL=0",
                    "CREATE TABLE d.ariad (i INT) ENGINE=Aria ROW_FORMAT=DYNAMIC",
                    "CREATE SEQUENCE d.seq",
                ])
                .unwrap();
        }
        let inventory = TableInventory::read(&mut session(server)).unwrap();
        let find = |schema: &str, table: &str| {
            inventory.others.iter().find(|other| other.name.schema == schema && other.name.table == table)
        };
        assert_eq!(find("od`d", "ö").unwrap().engine, "MyISAM");
        assert_eq!(find("d", "csv").unwrap().engine, "CSV");
        assert!(find("mysql", "general_log").is_some());
        assert!(find("d", "inno").is_none() && find("d", "v").is_none());
        if mariadb {
            let logged = ["aria1", "aria", "aria0", "ariad"].map(|table| find("d", table).unwrap().is_logged);
            assert_eq!(logged, [true, true, false, false]);
            assert!(find("mysql", "db").is_some());
        }
        assert_eq!(inventory.in_memory.len(), 1);
        assert!(inventory.count_by_engine["InnoDB"] >= 1);
        assert_eq!(
            inventory.warnings(),
            ["rows of MEMORY tables are not saved, only their definitions: d.mem"]
        );
        inventory.refuse_unsupported().unwrap();
        let blind = TableInventory::read(&mut session(server)).unwrap();
        assert_eq!(blind, inventory);
    });
}

/// The files of a table can be anywhere if its engine is not loaded or is unknown: the table is named.
#[test]
fn tables_that_the_server_cannot_open_are_refused() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        let server = start(kind);
        let refusal = || {
            let inventory = TableInventory::read(&mut session(&server)).unwrap();
            let error = inventory.refuse_unsupported().unwrap_err();
            assert!(error.hint().is_some());
            error.to_string()
        };
        server
            .exec_all([
                "INSTALL SONAME 'ha_sphinx'",
                "CREATE DATABASE d",
                "CREATE TABLE d.away (id INT UNSIGNED NOT NULL, weight INT NOT NULL, query VARCHAR(100) NOT NULL, KEY (query)) ENGINE=SPHINX",
                "FLUSH TABLES",
                "UNINSTALL SONAME 'ha_sphinx'",
            ])
            .unwrap();
        let message = refusal();
        assert!(message.contains("SPHINX") && message.contains("d.away"), "{message}");
        std::fs::remove_file(server.datadir().join("d/away.frm")).unwrap();
        std::fs::write(server.datadir().join("d/broken.frm"), "no definition").unwrap();
        let message = refusal();
        assert!(message.contains("d.broken"), "{message}");
    }
}

/// Everything that would break a backup is refused by name, with advice.
#[test]
fn refusals() {
    on_each(|server| {
        let facts = ServerFacts::probe(&mut session(server)).unwrap();
        let refused = |name: &str, change: &dyn Fn(&mut ServerFacts)| {
            let mut facts = facts.clone();
            change(&mut facts);
            let error = facts.refuse_unsupported().unwrap_err();
            assert!(error.to_string().contains(name) && error.hint().is_some(), "{error:?}");
        };
        refused("wsrep_on", &|facts| facts.capabilities.galera = true);
        refused("replication group", &|facts| facts.capabilities.group_member = true);
        refused("innodb_log_archive", &|facts| facts.capabilities.log_archive = true);
        refused("innodb_redo_log_enabled", &|facts| facts.capabilities.redo_enabled = false);
        refused("innodb_force_recovery", &|facts| facts.innodb.force_recovery = 3);
        refused("innodb_read_only", &|facts| facts.innodb.read_only = true);
        refused("raw device", &|facts| facts.innodb.data_file_path = "/dev/sdb:3Graw".to_owned());
        refused("binlog_storage_engine", &|facts| {
            facts.binlog.as_mut().unwrap().storage_engine = Some("innodb".to_owned());
        });
        if server.kind().is_mariadb() {
            refused("BACKUP STAGE", &|facts| facts.capabilities.backup_stages = false);
            refused("Innodb_lsn", &|facts| facts.capabilities.lsn_status = false);
        } else {
            refused("LOCK INSTANCE", &|facts| facts.capabilities.instance_lock = false);
            refused("log_status", &|facts| facts.capabilities.log_status = false);
            server.exec("ALTER INSTANCE DISABLE INNODB REDO_LOG").unwrap();
            let facts = ServerFacts::probe(&mut session(server)).unwrap();
            assert!(!facts.capabilities.redo_enabled);
        }
    });
}

/// A series that no test starts is named, and not refused: here, a server that says that it is of one.
#[test]
fn a_series_that_was_never_tested_is_warned_of() {
    let told = |version: Option<&str>| {
        let said = version.into_iter().map(|version| format!("--version={version}"));
        let server =
            Server::start(ServerKind::MariaDb1011, said.fold(ServerOptions::default(), ServerOptions::arg));
        let server = server.unwrap();
        let findings = doctor::server(&backup_options(options(&server)), None);
        assert!(findings.iter().all(|it| it.verdict != Verdict::Problem), "{findings:#?}");
        findings
            .iter()
            .any(|it| it.verdict == Verdict::Notice && it.text.contains("was not tested with servers"))
    };
    assert!(!told(None));
    assert!(told(Some("11.4.2-MariaDB")));
}
