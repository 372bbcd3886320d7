//! Tables that the source had outside its data directory, extracted on the source's own host: its files there are
//! not touched, whichever table is wanted.

use super::*;

/// Rows of the table outside that a transaction changes, which is open while the backup is taken.
const CHANGED: u64 = 500;

/// A server with `x.a` outside its data directory and `x.b` inside, and a backup of it that has half of `x.a`
/// changed by a transaction that was open then, and was committed later. The server is killed; returns the file
/// of `x.a`.
fn killed_source(stage: &mut Stage, dir: &Path) -> (RunNo, PathBuf) {
    let server = &mut stage.server;
    let outside = server.outside();
    server
        .exec_all([
            "CREATE DATABASE x".to_owned(),
            format!(
                "CREATE TABLE x.a (i INT PRIMARY KEY, v VARCHAR(50)) DATA DIRECTORY='{}'",
                outside.display()
            ),
            "INSERT INTO x.a WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) \
             SELECT i, 'old' FROM n"
                .to_owned(),
            "CREATE TABLE x.b (i INT PRIMARY KEY)".to_owned(),
            "INSERT INTO x.b VALUES (2)".to_owned(),
        ])
        .unwrap();
    server.restart().unwrap();
    let mut reader = server.conn().unwrap();
    reader.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT").unwrap();
    reader.query_drop("SELECT COUNT(*) FROM x.b").unwrap();
    let mut open = server.conn().unwrap();
    open.query_drop("BEGIN").unwrap();
    open.query_drop(format!("UPDATE x.a SET v = 'PAID' WHERE i <= {CHANGED}")).unwrap();
    if !server.kind().is_mariadb() {
        server.exec("SELECT innodb_redo_log_sharp_checkpoint()").unwrap();
    }
    let run = back_up(stage, dir);
    open.query_drop("COMMIT").unwrap();
    if !stage.server.kind().is_mariadb() {
        stage.server.exec("SELECT innodb_redo_log_sharp_checkpoint()").unwrap();
    }
    stage.server.kill9().unwrap();
    (run, outside.join("x/a.ibd"))
}

fn rows_changed(server: &Server) -> u64 {
    assert_eq!(server.query::<(String, String, String, String)>("CHECK TABLE x.a").unwrap()[0].3, "OK");
    server.value("SELECT COUNT(*) FROM x.a WHERE v = 'PAID'").unwrap()
}

/// The dictionary remembers where a table was: without its file in the data directory, recovery would roll back in
/// the file that the source has, though another table is wanted. Keys keep the server from being confined.
#[test]
fn mysql_9_7_a_table_outside_is_not_touched_when_another_is_extracted() {
    let (kind, keys) = (ServerKind::MySql97, tempfile::tempdir().unwrap());
    let Encryption { server_options, .. } =
        Encryption::new(kind, keys.path(), ServerOptions::default()).unwrap();
    let program = server_options.program.clone().unwrap();
    let mut stage = Stage::with(kind, server_options);
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = killed_source(&mut stage, dir.path());
    let before = fs::read(&file).unwrap();
    let (place, log) = (dir.path().join("work"), log());
    let target = Server::start(kind, ServerOptions::default()).unwrap();
    for table in ["x.b", "x.a"] {
        let mut wanted = options(kind, &place, &[table]);
        wanted.restore.server_binary = Some(program.clone());
        into_server(&stage.repo, Origin::Backup(&log, run), &wanted, (&target, "old")).unwrap();
        assert!(fs::read(&file).unwrap() == before, "{table}: the source's file was written to");
    }
    let changed = |schema| target.value::<u64>(format!("SELECT COUNT(*) FROM {schema}.a WHERE v = 'PAID'"));
    assert_eq!(target.value::<u64>("SELECT COUNT(*) FROM old.b").unwrap(), 1);
    assert_eq!(changed("old").unwrap(), 0);
    stage.server.run().unwrap();
    assert_eq!(rows_changed(&stage.server), CHANGED);
}

/// Encrypted redo names a table where it was, and cannot be rewritten: no table can be extracted, and the refusal
/// says what works.
#[test]
fn mariadb_a_table_outside_with_encrypted_redo_refuses_every_extraction() {
    let (kind, keys) = (ServerKind::MariaDb1011, tempfile::tempdir().unwrap());
    let Encryption { server_options, prepare_options, .. } =
        Encryption::new(kind, keys.path(), ServerOptions::default()).unwrap();
    let mut stage = Stage::with(kind, server_options);
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = killed_source(&mut stage, dir.path());
    let before = fs::read(&file).unwrap();
    let (place, log) = (dir.path().join("work"), log());
    for table in ["x.b", "x.a"] {
        let mut wanted = options(kind, &place, &[table]);
        wanted.restore.prepare_options = prepare_options.clone();
        let extracted =
            extract::run(&stage.repo, Origin::Backup(&log, run), &wanted, &Told, &Cancel::default());
        assert!(fs::read(&file).unwrap() == before, "{table}: the source's file was written to");
        let error = extracted.err().unwrap_or_else(|| panic!("{table} was extracted"));
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        let was = format!("x/a.ibd was at {}", file.display());
        assert!(error.to_string().contains(&was), "{error}");
        assert!(error.hint().unwrap().contains("restore the whole backup"), "{error:?}");
    }
    stage.server.run().unwrap();
    assert_eq!(rows_changed(&stage.server), CHANGED);
}
