//! Logs in the data directory that are written to continuously.

use std::time::Instant;

use super::*;

/// Logs of the server and of its plugins grow and are rotated while their directory is copied.
/// This does not affect the backup, which contains none of them.
#[test]
fn logs_that_grow_in_the_data_directory_are_left() {
    let plain = ServerOptions::default()
        .arg("--general-log=ON")
        .arg("--slow-query-log=ON")
        .arg("--long-query-time=0");
    let audited = [
        "--plugin-load-add=server_audit",
        "--server-audit-logging=ON",
        "--server-audit-file-rotate-size=20000",
        "--server-audit-file-rotations=5",
    ];
    let audited = audited.into_iter().fold(plain.clone(), ServerOptions::arg);
    for (kind, options) in [(ServerKind::MariaDb1011, audited), (ServerKind::MySql97, plain)] {
        let source = Server::start(kind, options).unwrap();
        shop::load(&source, shop::ShopOptions { size_mib: 5, ..shop::ShopOptions::default() }).unwrap();
        let load = WriteLoad::start(&source, 2, 51).unwrap();
        let is_log = |path: &str| path.contains("audit") || path.ends_with(".log");
        let logs = || -> Vec<String> {
            let names = fs::read_dir(source.datadir()).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| is_log(name) && name != "ddl_recovery.log").collect()
        };
        let begin = Instant::now();
        while logs().len() < if kind.is_mariadb() { 4 } else { 2 } {
            assert!(begin.elapsed() < Duration::from_secs(300), "{:?}", logs());
            sleep(Duration::from_millis(20));
        }
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let captured = capture(&source, &sink, dir.path());
        load.stop().unwrap();
        let placed = sink.place(&dir.path().join("data"));
        let kept: Vec<_> = logs().into_iter().filter(|name| placed.contains_key(name)).collect();
        assert!(kept.is_empty(), "{kept:?}");
        assert!(captured.stats.locks.len() < 6, "{:?}", captured.stats.locks);
    }
}
