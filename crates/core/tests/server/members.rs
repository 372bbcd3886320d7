//! Members of real clusters: their physical backup is refused by name, before anything is stored or locked,
//! and taken once they have left.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use holdfast_core::{
    Cancel, Result,
    backup::{self, BackupOptions, BackupReport},
};
use holdfast_repo::{
    Protection, Repo,
    store::{Store, mem::MemStore},
};
use holdfast_testkit::servers_dir;

use super::*;
use crate::listeners::Told;

const CHANGE_MAX: Duration = Duration::from_secs(120);

/// A server and the destination of its backups.
struct Stage {
    server: Server,
    store: Arc<MemStore>,
    repo: Arc<Repo>,
    spool: tempfile::TempDir,
}

impl Stage {
    fn new(server: Server) -> Self {
        server
            .exec_all([
                "SET GLOBAL log_output = 'TABLE'",
                "SET GLOBAL general_log = ON",
                "CREATE DATABASE d",
                "CREATE TABLE d.t (i INT PRIMARY KEY) ENGINE=InnoDB",
                "INSERT INTO d.t VALUES (1), (2)",
            ])
            .unwrap();
        let store = Arc::new(MemStore::new());
        let repo = Arc::new(Repo::init(Arc::clone(&store) as Arc<dyn Store>, &Protection::None).unwrap());
        Self { server, store, repo, spool: tempfile::tempdir().unwrap() }
    }

    fn back_up(&self) -> Result<BackupReport> {
        let options = BackupOptions {
            name: Some("db1".parse().unwrap()),
            spool_dir: Some(self.spool.path().to_owned()),
            ..backup_options(options(&self.server))
        };
        backup::run(&self.repo, &options, &Told, &Cancel::default())
    }

    fn stored(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        self.store
            .list("", &mut |object| {
                paths.insert(object.path.to_string());
                true
            })
            .unwrap();
        paths
    }

    /// How many locking statements the server has received, except our own.
    fn locks(&self) -> u64 {
        self.server
            .value(
                "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE 'BACKUP STAGE START%'
                 OR argument LIKE 'LOCK INSTANCE%' OR argument LIKE 'FLUSH TABLES%'",
            )
            .unwrap()
    }

    fn refused(&self, name: &str) {
        let before = self.stored();
        let error = self.back_up().unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("asynchronous replica")), "{error:?}");
        assert_eq!(self.stored(), before);
        assert_eq!(self.locks(), 0);
    }

    fn taken(&self) {
        let before = self.stored();
        self.back_up().unwrap();
        assert!(self.stored().len() > before.len());
        assert!(self.locks() > 0, "locks are not seen in the log");
    }
}

/// Waits until a status variable has the given value.
fn wait_for(server: &Server, name: &str, value: &str) {
    let begun = Instant::now();
    loop {
        let found = server.query::<(String, String)>(format!("SHOW GLOBAL STATUS LIKE '{name}'")).unwrap();
        if found.iter().any(|(_, found)| found == value) {
            return;
        }
        assert!(begun.elapsed() < CHANGE_MAX, "{name} does not become {value}: {found:?}");
        sleep(Duration::from_millis(20));
    }
}

/// A Galera node is refused until it has left its cluster.
/// Its claim to be no node (`wsrep_on=OFF`) is not sufficient.
fn a_galera_node_is_refused(kind: ServerKind) {
    // A dependency of Debian's server package.
    let provider = Path::new("usr/lib/galera/libgalera_smm.so");
    let provider = match kind {
        ServerKind::MariaDb1011 => Path::new("/").join(provider),
        _ => servers_dir().unwrap().join(kind.name()).join("root").join(provider),
    };
    assert!(provider.is_file(), "no {}", provider.display());
    let port = free_port().unwrap();
    let options = [
        "--wsrep-on=ON".to_owned(),
        format!("--wsrep-provider={}", provider.display()),
        "--wsrep-cluster-address=gcomm://".to_owned(),
        "--wsrep-node-address=127.0.0.1".to_owned(),
        format!("--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{port}"),
        "--innodb-autoinc-lock-mode=2".to_owned(),
    ];
    let options = options.into_iter().fold(ServerOptions::default(), ServerOptions::arg);
    let server = Server::start(kind, options).unwrap();
    wait_for(&server, "wsrep_ready", "ON");
    let stage = Stage::new(server);
    stage.refused("a node of a Galera cluster");
    stage.server.exec("SET GLOBAL wsrep_on = OFF").unwrap();
    stage.refused("a node of a Galera cluster");
    stage.server.exec("SET GLOBAL wsrep_cluster_address = ''").unwrap();
    wait_for(&stage.server, "wsrep_connected", "OFF");
    stage.taken();
}

#[test]
fn mariadb_10_11_a_galera_node_is_refused_until_it_has_left() {
    a_galera_node_is_refused(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_a_galera_node_is_refused_until_it_has_left() {
    a_galera_node_is_refused(ServerKind::MariaDb118);
}

/// A member of a group is refused until it has left the group.
#[test]
fn a_member_of_a_group_is_refused_until_it_has_left() {
    let server = group_of_one();
    let begun = Instant::now();
    while server
        .value::<u64>(
            "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'",
        )
        .unwrap()
        == 0
        || server.value::<bool>("SELECT @@super_read_only").unwrap()
    {
        assert!(begun.elapsed() < CHANGE_MAX, "the group has no primary");
        sleep(Duration::from_millis(20));
    }
    let stage = Stage::new(server);
    stage.refused("an active member of a replication group");
    stage.server.exec("STOP GROUP_REPLICATION").unwrap();
    stage.taken();
}
