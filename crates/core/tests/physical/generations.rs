//! Backups of restored servers.

use super::*;

/// A restore leaves files of its own in the data directory. They are no part of the next backup, which could not be
/// restored with them.
#[test]
fn a_restored_server_can_be_backed_up_and_restored() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let first = Stage::new(kind, 5);
        let (restored, _) = first.restore(first.back_up().backup);
        std::fs::write(restored.server.datadir().join("mysql/left.partial"), b"x").unwrap();
        let second = Stage::with_repo(restored.server, Arc::clone(&first.repo), TempDir::new().unwrap());
        let (again, _) = second.restore(second.back_up().backup);
        assert_equal_checksums(&first.source, &again.server).unwrap();
    }
}
