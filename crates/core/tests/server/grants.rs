//! An account without sufficient privileges is told what it lacks before anything is done, with
//! the statement that helps.

use holdfast_core::server::{
    BackupStages, HeldSession, InstanceLock, LockLimits, Purpose, RedoConsumer, ServerFacts, Session, Stage,
    TableInventory, TableLock, TableName, check_grants, facts::grants::required,
    locks::stale::other_sessions, status, tables,
};
use holdfast_testkit::Server;

use super::{as_user, on_each, options, session};

fn check(server: &Server, user: &str) -> Result<(), (String, String)> {
    let mut session = Session::open(&as_user(server, user, "pw"), Purpose::Control).unwrap();
    check_grants(&mut session)
        .map_err(|error| (error.to_string(), error.hint().unwrap_or_default().to_owned()))
}

/// Without privileges, everything needed is named; the statement in the hint, executed unchanged, is
/// sufficient for a whole backup. Each single missing privilege is detected too.
#[test]
fn the_hint_is_enough() {
    on_each(|server| {
        server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT)"]).unwrap();
        server.exec("CREATE TABLE d.m (i INT) ENGINE=MyISAM").unwrap();
        server.exec("CREATE USER `o'b`@localhost IDENTIFIED BY 'pw'").unwrap();
        let (message, hint) = check(server, "o'b").unwrap_err();
        let requirements = required(session(server).flavor());
        for requirement in requirements {
            assert!(
                message.contains(&format!("{} ({})", requirement.privilege, requirement.purpose)),
                "{message}"
            );
        }
        assert!(hint.starts_with("GRANT ") && hint.ends_with(" ON *.* TO 'o''b'@'localhost';"), "{hint}");
        server.exec(&hint).unwrap();
        check(server, "o'b").unwrap();
        everything_works(server);
        for requirement in requirements {
            let privilege = requirement.privilege;
            server.exec(format!("REVOKE {privilege} ON *.* FROM `o'b`@localhost")).unwrap();
            let (message, hint) = check(server, "o'b").unwrap_err();
            assert_eq!(hint, format!("GRANT {privilege} ON *.* TO 'o''b'@'localhost';"), "{message}");
            server.exec(&hint).unwrap();
        }
        check(server, "o'b").unwrap();
    });
}

fn everything_works(server: &Server) {
    let options = as_user(server, "o'b", "pw");
    let mut session = Session::open(&options, Purpose::Control).unwrap();
    let facts = ServerFacts::probe(&mut session).unwrap();
    facts.refuse_unsupported().unwrap();
    let table = |table: &str| TableName { schema: "d".into(), table: table.into() };
    let inventory = TableInventory::read(&mut session).unwrap();
    assert!(inventory.others.iter().any(|other| other.name == table("m")));
    other_sessions(&mut session, "").unwrap();
    status::flush_engine_logs(&mut session).unwrap();
    session.exec("FLUSH LOCAL BINARY LOGS").unwrap();
    status::ReplicaChannel::read_all(&mut session).unwrap();
    assert!(!tables::tablespaces(&mut session).unwrap().is_empty());
    let limits = LockLimits::default();
    if server.kind().is_mariadb() {
        status::MariaDbLsns::read(&mut session).unwrap();
        tables::mariadb_tables(&mut session).unwrap();
        let mut purge = TableLock::open(&options, limits).unwrap();
        assert!(purge.can_stop_purge().unwrap());
        let _ = purge.try_stopping_purge(limits.wait_max).unwrap();
        let mut stages = BackupStages::open(&options, limits).unwrap();
        for stage in [Stage::Start, Stage::Flush, Stage::BlockDdl] {
            let _ = stages.enter(stage).unwrap();
        }
        let _ =
            TableLock::open(&options, limits).unwrap().try_export(&[table("t")], limits.wait_max).unwrap();
        let _ = stages.enter(Stage::BlockCommit).unwrap();
        stages.session().with(status::MariaDbPosition::read).unwrap();
    } else {
        assert!(facts.capabilities.redo_consumer);
        let mut consumer = RedoConsumer::register(&options).unwrap();
        let mut lock = InstanceLock::open(&options, limits).unwrap();
        let _ = lock.try_lock().unwrap();
        let _ = lock.try_close_tables(&[table("t")]).unwrap();
        lock.release().unwrap();
        let _ = lock.try_lock().unwrap();
        let _ = lock.try_lock_tables(&[table("m")], None).unwrap();
        let position = lock.session().with(status::LogStatus::read).unwrap();
        tables::mysql_files(&mut session).unwrap();
        status::MySqlRedoStatus::read(&mut session).unwrap();
        consumer.advance(position.checkpoint).unwrap();
    }
}

/// Privileges granted by a role count while the role is active; if it is not, the hint says so.
#[test]
fn roles() {
    on_each(|server| {
        server
            .exec_all([
                "CREATE USER u@localhost IDENTIFIED BY 'pw'",
                "CREATE ROLE r",
                "GRANT r TO u@localhost",
            ])
            .unwrap();
        let list: Vec<&str> =
            required(session(server).flavor()).iter().map(|needed| needed.privilege).collect();
        server.exec(format!("GRANT {} ON *.* TO r", list.join(", "))).unwrap();
        let (_, hint) = check(server, "u").unwrap_err();
        assert!(hint.contains("SET DEFAULT ROLE"), "{hint}");
        let preposition = if server.kind().is_mariadb() { "FOR" } else { "TO" };
        server.exec(format!("SET DEFAULT ROLE r {preposition} u@localhost")).unwrap();
        check(server, "u").unwrap();
    });
}

/// MySQL: a privilege revoked in one schema hides its tables, and is named.
#[test]
fn partial_revokes() {
    on_each(|server| {
        server.exec("CREATE USER u@localhost IDENTIFIED BY 'pw'").unwrap();
        server.exec("GRANT ALL PRIVILEGES ON *.* TO u@localhost").unwrap();
        check(server, "u").unwrap();
        if !server.kind().is_mariadb() {
            server
                .exec_all([
                    "CREATE DATABASE d",
                    "SET GLOBAL partial_revokes = ON",
                    "REVOKE SELECT ON d.* FROM u@localhost",
                ])
                .unwrap();
            let (message, hint) = check(server, "u").unwrap_err();
            assert_eq!(message, "SELECT is revoked from the account 'u'@'localhost' in `d`");
            server.exec(hint).unwrap();
            check(server, "u").unwrap();
        }
    });
}

/// Sessions of other runs are found, whatever account holds them, and those of this run are ignored.
#[test]
fn other_runs_are_found() {
    on_each(|server| {
        let mut ours = session(server);
        assert_eq!(other_sessions(&mut ours, "test-1").unwrap(), []);
        let earlier = holdfast_core::server::ConnectOptions { run: "earlier".to_owned(), ..options(server) };
        let held = HeldSession::open(&earlier, Purpose::Stages).unwrap();
        let found = other_sessions(&mut ours, "test-1").unwrap();
        let [other] = &found[..] else { panic!("{found:?}") };
        assert_eq!(other.connection_id, held.connection_id());
        assert_eq!(other.purpose.as_deref(), Some("stages"));
        if !server.kind().is_mariadb() {
            assert_eq!(other.run.as_deref(), Some("earlier"));
            assert_eq!(other_sessions(&mut ours, "earlier").unwrap().len(), 0);
        }
        assert!(other.to_string().contains("root@"), "{other}");
    });
}
