//! Connections to real servers through a real SSH server.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_core::{
    Cancel, Event, Listener,
    binlog::{ArchiveOptions, archive},
    logical::{
        self, Selection,
        load::{self, LoadOptions},
    },
    server::{ConnectOptions, Purpose, Session, SshOptions, SslMode, Tunnel},
};
use holdfast_repo::RunNo;
use holdfast_testkit::{Server, ServerKind, sshd::Sshd, tls};

use super::{options, tcp};
use crate::{
    binlog::{Archiver, Counter, Stage, wait_archived_by},
    listeners::Told,
    logical::{Stage as Rows, assert_same_objects, assert_same_rows, log, start},
};

/// A tunnel through `host` of `sshd`'s client configuration, or of one that includes it.
fn tunnel(config: PathBuf, host: &str) -> Option<Arc<Tunnel>> {
    let options = SshOptions {
        host: host.parse().unwrap(),
        program: "ssh".into(),
        config_file: Some(config),
        compress: Some(true),
        secrets: Vec::new(),
    };
    Some(Arc::new(Tunnel::new(options)))
}

fn through(sshd: &Sshd, options: ConnectOptions) -> ConnectOptions {
    ConnectOptions { tunnel: tunnel(sshd.ssh_config(), "backup-host"), ..options }
}

/// Our own ssh processes with a configuration in `sshd`'s directory.
fn children(sshd: &Sshd) -> Vec<u32> {
    processes(sshd, Some(std::process::id()))
}

/// All such processes, or those of one parent.
fn processes(sshd: &Sshd, of: Option<u32>) -> Vec<u32> {
    let of = of.map(|pid| pid.to_string());
    let place = sshd.ssh_config().parent().unwrap().display().to_string();
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut words = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let (state, parent) = (words.next(), words.next());
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (of.is_none() || parent == of.as_deref())
            && state != Some("Z")
            && line.starts_with("ssh\0")
            && line.contains(&place)
    })
    .collect()
}

fn count(session: &mut Session) -> u64 {
    session.number("SELECT COUNT(*) FROM information_schema.schemata").unwrap()
}

/// The server is reached by its port and by its socket as seen on the other host, by several tunnels at once,
/// through an intermediate host, and by its own name if TLS is verified; each tunnel ends with its options.
#[test]
fn every_way_leads_to_the_server() {
    let sshd = Sshd::start("internal-sftp").unwrap();
    let tls = tls::server_options()
        .into_iter()
        .fold(holdfast_testkit::ServerOptions::default(), |it, arg| it.arg(arg));
    let server = Server::start(ServerKind::MariaDb1011, tls.arg("--bind-address=0.0.0.0")).unwrap();
    server.exec("CREATE USER n@'127.0.0._'").unwrap();
    let config = sshd.ssh_config().with_file_name("jump_config");
    let jump = format!(
        "Include {}\nHost far\n  HostName 127.0.0.1\n  ProxyJump backup-host\n  Port {}\nHost *\n{}",
        sshd.ssh_config().display(),
        sshd.port(),
        // Used for the intermediate host as well.
        fs::read_to_string(sshd.ssh_config())
            .unwrap()
            .lines()
            .filter(|line| ["IdentityFile", "UserKnownHosts", "Identities"]
                .iter()
                .any(|it| line.contains(it)))
            .collect::<Vec<_>>()
            .join("\n"),
    );
    fs::write(&config, jump).unwrap();
    {
        let by_socket = through(&sshd, options(&server));
        let by_port = through(&sshd, tcp(&server));
        let far = ConnectOptions { tunnel: tunnel(config, "far"), ..tcp(&server) };
        let mut sessions: Vec<Session> = [&by_socket, &by_port, &far, &by_port]
            .map(|options| {
                Session::open(options, Purpose::Control).unwrap_or_else(|error| panic!("{error:?}"))
            })
            .into();
        let counts: Vec<u64> = sessions.iter_mut().map(count).collect();
        assert!(counts.iter().all(|it| *it == counts[0]), "{counts:?}");
        assert_eq!(children(&sshd).len(), 3, "one for each that is asked for");
        let port = sessions[1].value("SELECT @@port").unwrap();
        assert_eq!(port, Some(server.port().to_string()));

        // The certificate is for 127.0.0.1, which is neither the local end of the tunnel nor 127.0.0.2.
        for (mode, host, is_good) in [
            (SslMode::VerifyIdentity, "127.0.0.1", true),
            (SslMode::VerifyIdentity, "127.0.0.2", false),
            (SslMode::VerifyCa, "127.0.0.2", true),
        ] {
            let options = ConnectOptions {
                user: Some("n".to_owned()),
                host: Some(host.to_owned()),
                ssl_mode: Some(mode),
                ssl_ca: Some(tls::file("ca.pem")),
                ..by_port.clone()
            };
            let opened = Session::open(&options, Purpose::Control);
            assert_eq!(opened.is_ok(), is_good, "{mode:?} {host}: {:?}", opened.err());
            if let Err(error) = opened {
                assert!(error.to_string().contains("TLS failed"), "{error}");
            }
        }
    }
    assert_eq!(children(&sshd), Vec::<u32>::new());
}

/// Errors quote ssh, say what to do, and leave nothing behind.
#[test]
fn errors_say_which_hop() {
    let mut sshd = Sshd::start("internal-sftp").unwrap();
    let nobody = |port| ConnectOptions {
        host: Some("127.0.0.1".to_owned()),
        port: Some(port),
        user: Some("root".to_owned()),
        ..ConnectOptions::default()
    };
    let refusal = |options: &ConnectOptions| {
        let error = Session::open(options, Purpose::Control).unwrap_err();
        (error.to_string(), error.hint().unwrap_or_default().to_owned())
    };
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (message, _) = refusal(&through(&sshd, nobody(closed)));
    assert!(message.contains("backup-host") && message.contains("Connection refused"), "{message}");
    assert!(message.contains("open failed"), "{message}");

    let stranger = sshd.ssh_config().with_file_name("stranger_config");
    let text = fs::read_to_string(sshd.ssh_config()).unwrap().replace("user_key", "no_such_key");
    fs::write(&stranger, text).unwrap();
    let begin = Instant::now();
    let (message, hint) =
        refusal(&ConnectOptions { tunnel: tunnel(stranger, "backup-host"), ..nobody(closed) });
    assert!(message.contains("Permission denied") && hint.contains("agent"), "{message}: {hint}");
    assert!(begin.elapsed() < Duration::from_secs(20));

    let odd = ConnectOptions { host: None, port: None, socket: Some("/a:b".into()), ..nobody(1) };
    let (message, _) = refusal(&through(&sshd, odd));
    assert!(message.contains("/a:b"), "{message}");
    sshd.kill();
    let (message, _) = refusal(&through(&sshd, nobody(closed)));
    assert!(message.contains("Connection refused") && message.contains("backup-host"), "{message}");
    assert_eq!(children(&sshd), Vec::<u32>::new());
}

/// What a user's configuration says for ssh's other uses: to go into the background, and forwards of its own, whose
/// ports may be taken.
#[test]
fn a_configuration_for_other_uses() {
    let sshd = Sshd::start("internal-sftp").unwrap();
    let server = Server::start(ServerKind::MariaDb1011, holdfast_testkit::ServerOptions::default()).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let config = sshd.ssh_config().with_file_name("background_config");
    let text = fs::read_to_string(sshd.ssh_config()).unwrap();
    // The first is what a configuration for several systems has.
    let more = format!(
        "  IgnoreUnknown UseKeychain\n  UseKeychain yes\n  ForkAfterAuthentication yes\n  \
         LocalForward 127.0.0.1:{port} 127.0.0.1:1\n"
    );
    fs::write(&config, text + &more).unwrap();
    {
        let options = ConnectOptions { tunnel: tunnel(config, "backup-host"), ..options(&server) };
        let mut session =
            Session::open(&options, Purpose::Control).unwrap_or_else(|error| panic!("{error:?}"));
        assert!(count(&mut session) > 0);
        assert_eq!(processes(&sshd, None).len(), 1);
    }
    assert_eq!(processes(&sshd, None), Vec::<u32>::new());
}

/// Which side of a tunnel dies.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// Our ssh.
    Near,
    /// The other host's.
    Far,
}

fn break_tunnels(sshd: &Sshd, side: Side) {
    if let Side::Far = side {
        return sshd.kill_sessions().unwrap();
    }
    for pid in children(sshd) {
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        assert!(killed.success());
    }
}

/// The archiver recreates a broken tunnel and continues without a gap; so does a logical backup before it has
/// a view. Later, the backup fails and says why.
#[test]
fn broken_tunnels() {
    let sshd = Sshd::start("internal-sftp").unwrap();
    let stage = Stage::new(ServerKind::MySql97);
    let connect = through(&sshd, tcp(&stage.server));
    let options = ArchiveOptions { connect: connect.clone(), ..stage.options() };
    let mut archiver = Archiver::start(&stage.repo, options.clone());
    let counter = Counter::start(&stage.server);
    for side in [Side::Near, Side::Far] {
        wait_archived_by(&stage, &mut archiver);
        break_tunnels(&sshd, side);
        sleep(Duration::from_millis(500));
    }
    let rows = counter.stop();
    wait_archived_by(&stage, &mut archiver);
    let report = archiver.stop();
    assert!(report.reconnects >= 2 && report.gaps.is_empty() && rows > 0, "{report:?}");
    stage.compare_files();
    archive(&stage.repo, &ArchiveOptions { once: true, ..options }, &Told, &Cancel::default()).unwrap();

    let backup = holdfast_core::backup::BackupOptions {
        name: Some("db1".parse().unwrap()),
        parallel: 3,
        ..holdfast_core::backup::BackupOptions::new(connect)
    };
    stage
        .server
        .exec_all([
            "CREATE DATABASE big",
            "CREATE TABLE big.t (id INT PRIMARY KEY AUTO_INCREMENT, v LONGBLOB)",
            "INSERT INTO big.t (v) SELECT REPEAT('x', 8000000) FROM information_schema.columns LIMIT 5",
        ])
        .unwrap();
    let take = |breaks_at, side| {
        let breaker = Breaker { sshd: &sshd, phase: breaks_at, side };
        logical::run(&stage.repo, &backup, &Selection::default(), &breaker, &Cancel::default())
    };
    // Rows that were read cannot be read again in another view.
    let rows: u64 = stage.server.value("SELECT COUNT(*) FROM big.t").unwrap();
    for (side, said) in
        [(Side::Near, "ssh: it ended (signal: 9 (SIGKILL))"), (Side::Far, "closed by remote host.")]
    {
        let error = take("rows", side).unwrap_err();
        assert!(error.to_string().ends_with(said), "{error}");
        let report = take("view", side).unwrap();
        assert!(rows == 5 && report.read.rows > rows, "{:?}", report.read);
    }
}

/// Breaks the tunnels as soon as a phase begins.
struct Breaker<'a> {
    sshd: &'a Sshd,
    phase: &'static str,
    side: Side,
}

impl Listener for Breaker<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name } if name == self.phase) {
            break_tunnels(self.sshd, self.side);
        }
        Told.event(event);
    }
}

/// A load works through a tunnel like everything else.
/// If the tunnel breaks while rows are loaded, the load continues through another, without missing or duplicate
/// rows. If tunnels go on breaking, it fails, and the same command continues.
#[test]
fn a_load_goes_on_through_another_tunnel() {
    for (kind, side) in [(ServerKind::MariaDb1011, Side::Far), (ServerKind::MySql97, Side::Near)] {
        let sshd = Sshd::start("internal-sftp").unwrap();
        let stage = Rows::new(kind);
        let digits = "(SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4)";
        let numbers = format!("{digits} AS a, {digits} AS b, {digits} AS c, {digits} AS d, {digits} AS e");
        stage
            .source
            .exec_all([
                "CREATE DATABASE shop",
                "CREATE TABLE shop.orders (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(1000), KEY (v(20)))",
                &format!("INSERT INTO shop.orders (v) SELECT REPEAT(SHA2(RAND(), 512), 7) FROM {numbers}"),
                "CREATE TABLE shop.log (v VARCHAR(200))",
                &format!("INSERT INTO shop.log SELECT SHA2(RAND(), 512) FROM {numbers}"),
                "CREATE VIEW shop.many AS SELECT COUNT(*) AS c FROM shop.orders",
            ])
            .unwrap();
        let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap();
        let target = start(kind);
        let load = |listener: &dyn Listener| {
            let connect = through(&sshd, tcp(&target));
            let options = LoadOptions {
                parallel: 2,
                chunks_per_commit: 1,
                leave_out: true,
                ..LoadOptions::new(connect)
            };
            let run = RunNo(backup.run.backup);
            load::run(&stage.repo, &log(), run, &options, listener, &Cancel::default())
        };
        let error = load(&Breaker { sshd: &sshd, phase: "rows", side }).unwrap_err();
        assert!(error.to_string().contains("connection lost"), "{kind}: {error}");
        assert_eq!(children(&sshd), Vec::<u32>::new());
        let once = AtProgress { sshd: &sshd, side, has_broken: AtomicBool::new(false) };
        let report = load(&once).unwrap();
        assert!(once.has_broken.load(Ordering::Relaxed));
        assert!(report.plan.is_continued, "{kind}: {report:?}");
        assert!(report.rows_loaded < report.plan.rows, "{kind}: nothing was in: {report:?}");
        assert_same_rows(&stage.source, &target);
        assert_same_objects(&stage.source, &target);
        crate::load::assert_clean(&target);
    }
}

/// Breaks the tunnels once, at the first progress event.
struct AtProgress<'a> {
    sshd: &'a Sshd,
    side: Side,
    has_broken: AtomicBool,
}

impl Listener for AtProgress<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Progress { bytes_done: 1.., .. })
            && !self.has_broken.swap(true, Ordering::Relaxed)
        {
            break_tunnels(self.sshd, self.side);
        }
        Told.event(event);
    }
}
