//! Backups of restored servers.

use holdfast_core::ErrorKind;
use holdfast_repo::{format::manifest::Head, log::history::History};

use super::*;

/// A restored server is a different server, and takes over the name only on request. The restore's own files
/// in its data directory are not part of its backup, which could not be restored with them.
#[test]
fn a_restored_server_can_be_backed_up_and_restored() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let first = Stage::new(kind, 5);
        let (restored, _) = first.restore(first.back_up().run.backup);
        std::fs::write(restored.server.datadir().join("mysql/left.partial"), b"x").unwrap();
        let second = Stage::with_repo(restored.server, Arc::clone(&first.repo), TempDir::new().unwrap());
        let back_up = |options| backup::run(&second.repo, &options, &Told, &Cancel::default());
        let refused = back_up(second.options()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
        assert!(refused.hint().is_some_and(|hint| hint.contains("--new-identity")), "{refused:?}");
        let history = || History::read(&second.repo, &log()).unwrap();
        assert_eq!(history().outcomes().len(), 1, "the refused run left a trace");
        let taken_over = back_up(BackupOptions { new_identity: true, ..second.options() }).unwrap();
        let next = second.back_up();
        let flags = |backup: &BackupReport| {
            let head = history().head(&second.repo, RunNo(backup.run.backup)).unwrap();
            Head::decode(&head).unwrap().flags
        };
        assert_eq!((flags(&taken_over), flags(&next)), (vec!["new-identity".to_owned()], Vec::new()));
        let (again, _) = second.restore(next.run.backup);
        assert_equal_checksums(&first.source, &again.server).unwrap();
    }
}
