//! Positions and lists match the server's state.

use std::cell::RefCell;

use holdfast_core::server::{
    ServerFacts,
    status::{
        LogStatus, MariaDbLsns, MariaDbPosition, MySqlRedoStatus, ReplicaChannel, flush_engine_logs,
        log_bytes_written, mysql_durable_end, mysql_position, refuse_gaps,
    },
    tables::{mariadb_tables, mysql_files, tablespaces},
};

use holdfast_formats::Lsn;

use super::{on_each, session};

/// LSNs and positions are consistent and advance with writes.
#[test]
fn positions() {
    on_each(|server| {
        server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT)"]).unwrap();
        let mut session = session(server);
        session.exec("FLUSH LOCAL BINARY LOGS").unwrap();
        flush_engine_logs(&mut session).unwrap();
        let written = log_bytes_written(&mut session).unwrap();
        if server.kind().is_mariadb() {
            let before = MariaDbLsns::read(&mut session).unwrap();
            let from = MariaDbPosition::read(&mut session).unwrap();
            server.exec("INSERT INTO d.t VALUES (1)").unwrap();
            let after = MariaDbLsns::read(&mut session).unwrap();
            let to = MariaDbPosition::read(&mut session).unwrap();
            assert!(before.last_checkpoint <= before.flushed && before.flushed <= before.current);
            assert!(before.current < after.current);
            let (from, to) = (from.binlog.unwrap(), to.binlog.unwrap());
            assert!(to.file == "binlog.000002" && from.file == to.file && from.offset < to.offset);
            session.exec("SET GLOBAL innodb_log_checkpoint_now = 1").unwrap();
            assert!(
                MariaDbLsns::read(&mut session).unwrap().last_checkpoint >= after.flushed.min(after.current)
            );
        } else {
            let before = LogStatus::read(&mut session).unwrap();
            server.exec("INSERT INTO d.t VALUES (1)").unwrap();
            let after = LogStatus::read(&mut session).unwrap();
            assert!(before.lsn < after.lsn && before.checkpoint <= before.lsn);
            assert!(after.gtid_executed.contains(&after.server_uuid));
            assert!(before.binlog.unwrap().offset < after.binlog.as_ref().unwrap().offset);
            assert!(mysql_durable_end(&mut session).unwrap() >= after.lsn);
            let redo = MySqlRedoStatus::read(&mut session).unwrap();
            assert!(redo.is_enabled && redo.uuid != 0, "{redo:?}");
            assert!(redo.checkpoint <= redo.flushed && redo.flushed <= redo.current, "{redo:?}");
            assert!(redo.flushed > Lsn(0));
        }
        flush_engine_logs(&mut session).unwrap();
        assert!(log_bytes_written(&mut session).unwrap() > written);
        assert_eq!(ReplicaChannel::read_all(&mut session).unwrap(), []);
    });
}

/// A configured channel is read with its primary and its position.
#[test]
fn channels() {
    on_each(|server| {
        let change = if server.kind().is_mariadb() {
            "CHANGE MASTER 'c1' TO MASTER_HOST='nowhere.invalid', MASTER_PORT=1234, MASTER_LOG_FILE='b.000007', \
             MASTER_LOG_POS=99, MASTER_USE_GTID=no"
        } else {
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='nowhere.invalid', SOURCE_PORT=1234, \
             SOURCE_LOG_FILE='b.000007', SOURCE_LOG_POS=99, SOURCE_AUTO_POSITION=0 FOR CHANNEL 'c1'"
        };
        server.exec(change).unwrap();
        let mut session = session(server);
        let channels = ReplicaChannel::read_all(&mut session).unwrap();
        let [channel] = &channels[..] else { panic!("{channels:?}") };
        assert_eq!(
            (channel.name.as_str(), channel.host.as_str(), channel.port),
            ("c1", "nowhere.invalid", 1234)
        );
        assert_eq!((channel.executed.file.as_str(), channel.executed.offset), ("b.000007", 99));
        assert!(!channel.is_applying && !channel.by_gtid);
        refuse_gaps(&ServerFacts::probe(&mut session).unwrap(), &channels).unwrap();
        if !server.kind().is_mariadb() {
            let session = RefCell::new(session);
            let found = mysql_position(
                || LogStatus::read(&mut session.borrow_mut()),
                || ReplicaChannel::read_all(&mut session.borrow_mut()),
            );
            assert_eq!(found.unwrap().unmoved, channels);
        }
    });
}

/// InnoDB's tablespaces are listed with data that distinguishes a rebuilt table from the old one.
#[test]
fn spaces() {
    on_each(|server| {
        server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT PRIMARY KEY)"]).unwrap();
        let mut session = session(server);
        let find = |session: &mut _| {
            let spaces = tablespaces(session).unwrap();
            spaces.into_values().find(|space| space.name == "d/t").unwrap()
        };
        let before = find(&mut session);
        server.exec("ALTER TABLE d.t FORCE").unwrap();
        let after = find(&mut session);
        assert_ne!(before.space, after.space);
        if server.kind().is_mariadb() {
            assert_eq!(after.file.as_deref(), Some("./d/t.ibd"));
            let mut ids = || mariadb_tables(&mut session).unwrap().remove(&after.space).unwrap();
            let before = ids();
            server.exec("ALTER TABLE d.t DISCARD TABLESPACE").unwrap();
            let after = ids();
            assert!(after.len() == 1 && after != before, "DISCARD gives another id: {before:?} {after:?}");
        } else {
            assert_eq!(after.state.as_deref(), Some("normal"));
            assert!(after.indexes.len() == 1 && after.new_indexes_since(&before).count() == 1, "{after:?}");
            assert!(find(&mut session).new_indexes_since(&after).next().is_none(), "{after:?}");
            server.exec("ALTER TABLE d.t ADD KEY later (i)").unwrap();
            assert!(find(&mut session).new_indexes_since(&after).next().is_some());
            let files = mysql_files(&mut session).unwrap();
            assert!(files.iter().any(|file| file.space == after.space && file.path == "./d/t.ibd"));
            assert!(files.iter().filter(|file| file.is_undo).count() >= 2);
            for file in files {
                assert!(server.datadir().join(&file.path).is_file(), "{file:?}");
            }
        }
    });
}
