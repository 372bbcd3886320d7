//! Server programs of the host do a job and leave nothing but its result.

use std::{fs, path::Path};

use holdfast_core::{
    event::Cancel,
    server::programs::{Network, RunAs, ServerBinary, ServerRun},
};

use holdfast_testkit::ServerKind;

use super::start;

/// Each kind of server recovers a directory left by a crash and ends by itself.
/// We get its log, and it has no network access.
#[test]
fn recovery_runs() {
    for kind in ServerKind::all_kinds() {
        let mut server = start(kind);
        server
            .exec_all([
                "CREATE DATABASE d",
                "CREATE TABLE d.t (i INT)",
                "INSERT INTO d.t VALUES (7)",
                "FLUSH LOCAL ENGINE LOGS",
            ])
            .unwrap();
        server.kill9().unwrap();
        let program = kind.server_program().unwrap();
        let binary = ServerBinary::probe(&program).unwrap();
        binary.require(&binary.version).unwrap();
        let directories = [program.parent().unwrap().to_owned()];
        assert_eq!(ServerBinary::find(None, &binary.version, &directories).unwrap().path, program);

        let datadir = server.datadir();
        let scratch = server.home().join("scratch");
        let mut arguments = vec!["--no-defaults".to_owned(), format!("--datadir={}", datadir.display())];
        let mut stdin = Vec::new();
        if kind.is_mariadb() {
            arguments.extend(["--bootstrap", "--skip-log-bin"].map(str::to_owned));
            stdin = b"SELECT 1;\n".to_vec();
        } else {
            let init = server.home().join("init.sql");
            fs::write(&init, "SHUTDOWN;\n").unwrap();
            arguments.push(format!("--init-file={}", init.display()));
            arguments.extend(
                ["--skip-networking", "--skip-log-bin", "--mysqlx=OFF", "--log-error-verbosity=3"]
                    .map(str::to_owned),
            );
        }
        let run = ServerRun {
            binary: binary.path,
            arguments: arguments.into_iter().map(Into::into).collect(),
            stdin,
            scratch: scratch.clone(),
            run_as: Some(RunAs::owner_of(datadir).unwrap()),
            time_zone: None,
            writes: Some(vec![datadir.to_owned()]),
        };
        let running = run.start().unwrap();
        let exit = running.wait(&Cancel::default()).unwrap();
        exit.success("recover", &|_| false).unwrap();
        assert!(exit.log.iter().any(|line| line.contains("crash recovery")), "{:#?}", exit.log);
        assert!(!scratch.exists());
        if rustix::process::geteuid().is_root() {
            assert_eq!(exit.network, Network::None);
        }
        server.run().unwrap();
        assert_eq!(server.value::<i32>("SELECT i FROM d.t").unwrap(), 7);
    }
}

/// A failed recovery gives an error that quotes the server.
#[test]
fn failed_recovery_is_told() {
    for kind in ServerKind::all_kinds() {
        let dir = tempfile::tempdir().unwrap();
        let datadir = dir.path().join("data");
        fs::create_dir(&datadir).unwrap();
        fs::write(datadir.join("ibdata1"), b"no tablespace").unwrap();
        let run = ServerRun {
            binary: kind.server_program().unwrap(),
            arguments: ["--no-defaults".to_owned(), format!("--datadir={}", datadir.display())]
                .map(Into::into)
                .to_vec(),
            stdin: Vec::new(),
            scratch: dir.path().join("scratch"),
            run_as: None,
            time_zone: None,
            writes: None,
        };
        let exit = run.start().unwrap().wait(&Cancel::default()).unwrap();
        let error = exit.success("recover", &|_| false).unwrap_err().to_string();
        assert!(
            error.contains("the server ended with status") && error.contains("[ERROR]"),
            "{kind}: {error}"
        );
        assert!(Path::new(&datadir).exists());
    }
}
