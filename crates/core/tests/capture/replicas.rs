//! Capture of a server that is itself a replica.

use super::*;

/// Options without GTIDs: the applier's position is only in its tables, and in the
/// position that a backup records.
fn without_gtids() -> ServerOptions {
    ServerOptions::default().arg("--gtid-mode=OFF").arg("--enforce-gtid-consistency=OFF")
}

/// The applier of the restored data continues at the recorded position in the primary's binlog.
#[test]
fn mysql_the_place_of_a_replica_is_that_of_its_data() {
    let primary = Server::start(ServerKind::MySql97, without_gtids()).unwrap();
    let options = without_gtids().arg("--replica-parallel-workers=0");
    let source = Server::start(ServerKind::MySql97, options.clone()).unwrap();
    let begin = Position::File { name: "binlog.000001".to_owned(), offset: 4 };
    replica::follow(&primary, &source, &begin).unwrap();
    shop::load(&primary, shop::ShopOptions { size_mib: 5, ..shop::ShopOptions::default() }).unwrap();
    let load = WriteLoad::start_paced(&primary, 2, 21, Some(100)).unwrap();
    let mut places = BTreeSet::new();
    for count in 0.. {
        if count >= 4 && places.len() > 1 {
            break;
        }
        assert!(count < 60, "the applier stood still: {places:?}");
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let captured = capture(&source, &sink, dir.path());
        // Not recorded if the applier did not pause for as long as the query took.
        let channel = captured.position.replica_of.first().unwrap();
        let Some(executed) = &channel.executed else { continue };
        assert_eq!(channel.port, primary.port());
        let target = dir.path().join("data");
        sink.place(&target);
        lay_out_redo(&target, &captured.redo);
        let copy = Server::attach(source.kind(), target, options.clone()).unwrap();
        // Appliers update one of the tables now and then, and the other with each transaction.
        let held: Vec<(String, u64)> = copy
            .query(
                "SELECT master_log_name, master_log_pos FROM mysql.slave_relay_log_info \
                 UNION SELECT master_log_name, master_log_pos FROM mysql.slave_worker_info ORDER BY 1 DESC, 2 DESC LIMIT 1",
            )
            .unwrap();
        assert_eq!(held, [(executed.file.clone(), executed.offset)]);
        places.extend(held);
    }
    load.stop().unwrap();
}

/// Without GTIDs, nobody can tell which transactions an applier has left for later.
/// A stopped applier has left none.
#[test]
fn mysql_a_replica_whose_applier_leaves_gaps_is_refused() {
    let options =
        without_gtids().arg("--replica-parallel-workers=4").arg("--replica-preserve-commit-order=OFF");
    let source = Server::start(ServerKind::MySql97, options).unwrap();
    let applier = |what: &str| source.exec(format!("{what} REPLICA SQL_THREAD")).unwrap();
    source.exec("CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'nowhere.invalid'").unwrap();
    let refused = |listener: &dyn Listener| {
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let error = try_to_capture(&source, &sink, dir.path(), listener, Vec::new()).err()?;
        assert!(error.to_string().contains("without preserving commit order"), "{error}");
        Some(error)
    };
    assert!(refused(&Told).is_none());
    let started_meanwhile = races::AtPhase { phase: "stop", action: || applier("START") };
    assert!(refused(&started_meanwhile).is_some());
    assert!(refused(&Told).is_some());
    applier("STOP");
    assert!(refused(&Told).is_none());
}
