//! Sources on which something was changed after the backup, and what statements and numbers of the archive then
//! mean.

use std::ops::ControlFlow;

use holdfast_core::binlog::Search;

use super::{
    astray::{ids, insert, recovered, stage},
    *,
};

const PASSWORD: &str = "not for the eyes of others";

/// A replay needs plugins that the source had loaded: it says which, and how to have them. What is quoted of the
/// statement does not have its password.
#[test]
fn mariadb_10_11_a_plugin_that_the_source_had() {
    let kind = ServerKind::MariaDb1011;
    let (stage, dir) = stage(kind, &["--plugin-load-add=auth_ed25519"]);
    stage.once();
    back_up(&stage, dir.path());
    stage
        .server
        .exec(format!("CREATE USER e@localhost IDENTIFIED VIA ed25519 USING PASSWORD('{PASSWORD}')"))
        .unwrap();
    insert(&stage.server, 0..2);
    stage.once();
    let error = recover(&stage.repo, kind, &dir.path().join("never"), Until::End).unwrap_err();
    let (text, hint) = (error.to_string(), error.hint().unwrap_or_default());
    assert!(text.contains("ed25519"), "{text}");
    assert!(hint.contains("--prepare-option=--plugin-load-add=auth_ed25519"), "{hint}");
    assert!(text.contains("CREATE USER") && !text.contains(PASSWORD), "{text}");

    let target = dir.path().join("target");
    let options = RestoreOptions {
        server_binary: Some(kind.server_program().unwrap()),
        prepare_options: vec!["--plugin-load-add=auth_ed25519".to_owned()],
        ..RestoreOptions::new(&target)
    };
    let recovery = recovery::choose(&stage.repo, &source(), None, Until::End).unwrap();
    recovery.run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    let copy = Server::attach(kind, &target, ServerOptions::default().arg("--plugin-load-add=auth_ed25519"))
        .unwrap();
    let plugin: String = copy.value("SELECT plugin FROM mysql.user WHERE user = 'e'").unwrap();
    assert_eq!((plugin, ids(&copy)), ("ed25519".to_owned(), vec![0, 1]));
}

/// The source stops giving GTIDs after the backup: transactions of both kinds are replayed.
#[test]
fn mysql_9_7_transactions_that_have_no_gtids_any_more() {
    let (stage, dir) = stage(ServerKind::MySql97, &[]);
    insert(&stage.server, 0..2);
    stage.once();
    back_up(&stage, dir.path());
    insert(&stage.server, 2..4);
    let set = |mode: &str| stage.server.exec(format!("SET GLOBAL gtid_mode = {mode}")).unwrap();
    set("ON_PERMISSIVE");
    set("OFF_PERMISSIVE");
    insert(&stage.server, 4..6);
    // Once it is off, the server sends no transaction that has one.
    stage.once();
    set("OFF");
    stage.server.exec("SET GLOBAL enforce_gtid_consistency = OFF").unwrap();
    insert(&stage.server, 6..8);
    stage.once();
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..8).collect::<Vec<_>>());
}

/// A GTID that the archive has twice does not name a moment.
#[test]
fn mariadb_10_11_a_gtid_that_comes_twice() {
    let kind = ServerKind::MariaDb1011;
    let (stage, dir) = stage(kind, &["--gtid-strict-mode=OFF"]);
    stage.once();
    back_up(&stage, dir.path());
    let insert_as = |number: u32, id: u32| {
        let set = format!("SET SESSION gtid_seq_no = {number}");
        stage.server.exec_all([set, format!("INSERT INTO a.t VALUES ({id})")]).unwrap();
    };
    insert_as(100, 0);
    insert(&stage.server, 1..3);
    let between = pause();
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    insert_as(100, 3);
    insert(&stage.server, 4..6);
    stage.once();
    let gtid = || "0-1-100".parse().unwrap();
    let target = dir.path().join("never");
    for until in [Until::Gtid(gtid()), Until::BeforeGtid(gtid())] {
        let error = recover(&stage.repo, kind, &target, until).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("more than once") && text.matches("committed at").count() == 2, "{text}");
        assert!(error.hint().is_some_and(|hint| hint.contains("--at")), "{error:?}");
    }
    assert!(!target.exists());
    assert_eq!(recovered(&stage, dir.path(), Until::Time(between)), [0, 1, 2]);
    let other = Until::Gtid("0-1-101".parse().unwrap());
    assert_eq!(recovered(&stage, dir.path(), other), [0, 1]);
}

/// A password is found in the archive by those who know it, and not shown.
#[test]
fn mariadb_10_11_statements_with_passwords() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage.server.exec(format!("CREATE USER e@localhost IDENTIFIED BY '{PASSWORD}'")).unwrap();
    stage.once();
    let mut created = Vec::new();
    let search = Search { text: Some(PASSWORD.to_owned()), ..Search::default() };
    stage
        .archive()
        .summaries(&search, &mut |summary| {
            created.extend(summary.statements);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    assert!(created.len() == 1 && !created[0].contains(PASSWORD), "{created:?}");
}
