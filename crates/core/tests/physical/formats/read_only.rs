//! Servers that do not allow writes, and servers that write nothing themselves.

use super::*;
use crate::mounts::{in_own_mounts, mount};

/// A read-only server is backed up like any other.
#[test]
fn read_only_servers_are_restored() {
    for (kind, read_only) in
        [(ServerKind::MariaDb1011, "read_only"), (ServerKind::MySql97, "super_read_only")]
    {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        misc::create(&source, misc::MiscOptions::default()).unwrap();
        source.exec(format!("SET GLOBAL {read_only} = ON")).unwrap();
        let stage = Stage::around(source);
        let backup = stage.back_up();
        assert_eq!(stage.source.value::<u8>(format!("SELECT @@{read_only}")).unwrap(), 1);
        let restored = stage.restore_recovered(&backup);
        assert_equal_checksums(&stage.source, &restored.server).unwrap();
    }
}

/// Where the backup sees the data directory, nothing can be written, as in a container that is given it for reading.
#[test]
fn a_data_directory_that_can_only_be_read_is_backed_up() {
    in_own_mounts(
        "physical::formats::read_only::a_data_directory_that_can_only_be_read_is_backed_up",
        || {
            for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
                let source = Server::start(kind, ServerOptions::default()).unwrap();
                misc::create(&source, misc::MiscOptions::default()).unwrap();
                let stage = Stage::around(source);
                let (real, seen) = (stage.source.datadir().to_owned(), stage.dir.path().join("seen"));
                std::fs::create_dir(&seen).unwrap();
                mount(&["--bind", real.to_str().unwrap()], &seen);
                mount(&["-o", "remount,bind,ro"], &seen);
                std::fs::write(seen.join("file"), "").unwrap_err();
                let options = BackupOptions { path_map: vec![(real, seen)], ..stage.options() };
                let backup = backup::run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
                let restored = stage.restore_recovered(&backup);
                assert_equal_checksums(&stage.source, &restored.server).unwrap();
            }
        },
    );
}

/// A server whose InnoDB writes nothing, by option or in rescue mode, is refused by name, and survives the
/// query. (MariaDB 10.11 crashes in that state when it is asked for its tablespaces.)
#[test]
fn servers_that_write_nothing_are_refused() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let mut maker = Server::start(kind, ServerOptions::default()).unwrap();
        maker.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
        maker.stop().unwrap();
        for option in ["innodb_read_only=ON", "innodb_force_recovery=6"] {
            let options = ServerOptions::default().arg(format!("--{option}")).arg("--skip-log-bin");
            let stage = Stage::around(Server::attach(kind, maker.datadir(), options).unwrap());
            let refused = backup::run(&stage.repo, &stage.options(), &Told, &Cancel::default()).unwrap_err();
            let named = option.split('=').next().unwrap();
            assert!(refused.to_string().contains(named) && refused.hint().is_some(), "{kind}: {refused:?}");
            assert_eq!(stage.source.value::<u8>("SELECT 1").unwrap(), 1);
        }
    }
}
