//! The owner of restored files, and the user of the recovering server.

use std::{
    os::unix::{fs::MetadataExt, process::CommandExt},
    process::{Child, Command, Stdio},
    time::Instant,
};

use mysql::{Conn, OptsBuilder};
use rustix::process::{Pid, Signal, getegid, geteuid, kill_process};

use super::*;

const START_MAX: Duration = Duration::from_secs(120);

/// Killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Root restores for another user: the server recovers as that user, who owns all files afterwards; a server
/// of that user starts on them and ends in good order. (Other users can only restore for themselves.)
#[test]
fn what_is_restored_for_another_user_is_his() {
    let kind = ServerKind::MariaDb1011;
    let is_root = geteuid().is_root();
    // No account needs to have this id.
    let owner @ (uid, gid) =
        if is_root { (48_271, 48_272) } else { (geteuid().as_raw(), getegid().as_raw()) };
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE d",
            "CREATE TABLE d.inno (i INT PRIMARY KEY, v VARCHAR(100)) ENGINE=InnoDB",
            "CREATE TABLE d.aria (i INT PRIMARY KEY, v VARCHAR(100)) ENGINE=Aria",
            "CREATE TABLE d.isam (i INT PRIMARY KEY, v VARCHAR(100)) ENGINE=MyISAM PARTITION BY HASH (i) PARTITIONS 3",
            "INSERT INTO d.inno SELECT seq, REPEAT(seq, 9) FROM d.seq_1_to_5000",
            "INSERT INTO d.aria SELECT * FROM d.inno",
            "INSERT INTO d.isam SELECT * FROM d.inno",
        ])
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir.path());

    // Records as which user it recovers.
    let room = dir.path().join("room");
    fs::create_dir(&room).unwrap();
    std::os::unix::fs::chown(&room, Some(uid), Some(gid)).unwrap();
    let (program, told) = (dir.path().join("server"), room.join("told"));
    let real = kind.server_program().unwrap();
    let text = format!(
        "#!/bin/sh\ncase \" $* \" in\n*' --version '*) ;;\n\
         *) echo \"$(id -u) $(id -g)\" >>'{}';;\nesac\nexec '{}' \"$@\"\n",
        told.display(),
        real.display()
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let target = dir.path().join("target");
    let options = RestoreOptions {
        server_binary: Some(program),
        owner: Some(owner),
        // Otherwise the server, and this program before it, can write to nothing but the target.
        prepare_options: vec!["--max-connections=20".to_owned()],
        ..RestoreOptions::new(&target)
    };
    let report = restore(&repo, &backup, &options).unwrap();
    assert_eq!(report.prepared.unwrap().lsn, backup.position.lsn);
    assert_eq!(fs::read_to_string(&told).unwrap(), format!("{uid} {gid}\n"));
    let assert_all_are_his = || {
        let mut left = vec![target.clone()];
        let mut count = 0;
        while let Some(path) = left.pop() {
            let metadata = fs::symlink_metadata(&path).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), owner, "{}", path.display());
            if metadata.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            count += 1;
        }
        assert!(count > 100, "{count} files");
    };
    assert_all_are_his();

    let socket = room.join("sock");
    let mut server = Command::new(real);
    server
        .args(["--no-defaults", "--skip-networking", "--innodb-buffer-pool-size=64M"])
        .args(
            [
                ("--datadir", &target),
                ("--socket", &socket),
                ("--tmpdir", &room),
                ("--pid-file", &room.join("pid")),
                ("--log-error", &room.join("log")),
            ]
            .map(|(option, path)| format!("{option}={}", path.display())),
        )
        .stdin(Stdio::null());
    if is_root {
        server.uid(uid).gid(gid);
    }
    let mut server = Running(server.spawn().unwrap());
    let begun = Instant::now();
    let mut conn = loop {
        let opts = OptsBuilder::new().user(Some("root")).socket(Some(socket.display().to_string()));
        match Conn::new(opts.prefer_socket(false)) {
            Ok(conn) => break conn,
            Err(error) => {
                assert!(begun.elapsed() < START_MAX, "the server of its owner does not start: {error}")
            }
        }
        assert!(server.0.try_wait().unwrap().is_none(), "the server of its owner ended at start");
        sleep(Duration::from_millis(20));
    };
    for table in ["d.inno", "d.aria", "d.isam"] {
        let sum = format!("CHECKSUM TABLE {table}");
        let copied: (String, u64) = conn.query_first(&sum).unwrap().unwrap();
        assert_eq!(source.query::<(String, u64)>(&sum).unwrap(), [copied]);
        conn.query_drop(format!("UPDATE {table} SET v = REVERSE(v)")).unwrap();
    }
    drop(conn);
    let pid = Pid::from_raw(i32::try_from(server.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
    assert_all_are_his();
}
