//! Recovery to a moment after a backup: the restored server holds what the source held then, table by table,
//! and has exactly its GTIDs.

use holdfast_core::{
    restore::{Piece, Reached, Transactions},
    server::status::BinlogPosition,
};
use holdfast_formats::binlog::{FILE_MAGIC, Header, Part};
use holdfast_testkit::{checksum, load::DdlStorm, tables::check_tables};

use super::*;

/// Binlog files of a server, from the end of a backup up to some moment.
struct Files {
    /// Name, bytes, and the offset to begin at.
    files: Vec<(String, Vec<u8>, usize)>,
    reached: Reached,
}

impl Files {
    fn between(source: &Server, from: &BackupReport, moment: &Moment) -> Files {
        let begin = from.position.binlog.clone().unwrap();
        let mut files = Vec::new();
        let names = source.query::<mysql::Row>("SHOW BINARY LOGS").unwrap();
        for name in names.into_iter().map(|row| row.get::<String, _>(0).unwrap()) {
            if name < begin.file || name > moment.file {
                continue;
            }
            let mut bytes = fs::read(source.datadir().join(&name)).unwrap();
            if name == moment.file {
                bytes.truncate(moment.offset as usize);
            }
            let offset = if name == begin.file { begin.offset as usize } else { FILE_MAGIC.len() };
            files.push((name, bytes, offset));
        }
        let binlog = BinlogPosition { file: moment.file.clone(), offset: moment.offset };
        let gtids = moment.gtids.clone();
        let reached = Reached { transactions: 1, binlog: Some(binlog), gtids, ..Reached::default() };
        Files { files, reached }
    }
}

fn event_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
    rest.get(..Header::parse(rest).unwrap().len as usize)
}

impl Transactions for Files {
    fn each(&mut self, take: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<Reached> {
        for (name, bytes, offset) in &self.files {
            let format = event_at(bytes, FILE_MAGIC.len()).unwrap();
            take(Piece::File { name, offset: *offset as u64, format })?;
            let mut at = (*offset).max(FILE_MAGIC.len() + format.len());
            while let Some(event) = event_at(bytes, at) {
                take(Piece::Event { bytes: event, part: Part::Last })?;
                at += event.len();
            }
            // A partial event at which the server died.
            take(Piece::Event { bytes: format, part: Part::Inside })?;
        }
        Ok(self.reached.clone())
    }
}

/// The source's state while nothing was written to it.
struct Moment {
    file: String,
    offset: u64,
    gtids: Option<String>,
    checksums: checksum::Checksums,
}

impl Moment {
    fn now(source: &Server, uses_gtids: bool) -> Moment {
        let status = if source.kind().is_mariadb() { "SHOW MASTER STATUS" } else { "SHOW BINARY LOG STATUS" };
        let row: mysql::Row = source.query(status).unwrap().remove(0);
        let gtids =
            if source.kind().is_mariadb() { "@@GLOBAL.gtid_binlog_pos" } else { "@@GLOBAL.gtid_executed" };
        let gtids: String = source.value(format!("SELECT {gtids}")).unwrap();
        Moment {
            file: row.get(0).unwrap(),
            offset: row.get(1).unwrap(),
            gtids: uses_gtids.then_some(gtids),
            checksums: checksum::checksums(source).unwrap(),
        }
    }
}

fn moments_are_restored(kind: ServerKind, server_options: ServerOptions, seed: u64) {
    let uses_gtids = !server_options.extra.iter().any(|option| option.contains("gtid-mode=OFF"));
    let source = Server::start(kind, server_options).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 8, ..shop::ShopOptions::default() }).unwrap();
    misc::create(&source, misc::MiscOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let repo = new_repo();
    let work = |seed| {
        let load = WriteLoad::start(&source, 3, seed).unwrap();
        let storm = DdlStorm::start(&source, 1, seed).unwrap();
        sleep(Duration::from_millis(1500));
        (load, storm)
    };
    let rest = |(load, storm): (WriteLoad, DdlStorm)| {
        storm.stop().unwrap();
        load.stop().unwrap();
    };
    let busy = work(seed);
    let backup = back_up(&repo, &source, dir.path());
    rest(busy);
    let mut moments = vec![Moment::now(&source, uses_gtids)];
    for round in 1..3 {
        let busy = work(seed + round);
        source
            .exec_all([
                format!("CREATE USER 'u{round}'@'localhost' IDENTIFIED BY 'of no use 1X-'"),
                format!("CREATE EVENT shop.e{round} ON SCHEDULE EVERY 1 DAY DO SELECT 1"),
                "FLUSH BINARY LOGS".to_owned(),
            ])
            .unwrap();
        rest(busy);
        moments.push(Moment::now(&source, uses_gtids));
    }
    for (round, moment) in moments.iter().enumerate() {
        let target = dir.path().join(format!("moment-{round}"));
        let mut transactions = Files::between(&source, &backup, moment);
        let report = restore::run_and_replay(
            &repo,
            &log(),
            RunNo(backup.run.backup),
            &options(kind, target.clone()),
            Some(&mut transactions),
            &Told,
            &Cancel::default(),
        )
        .unwrap();
        let replayed = report.replayed.unwrap();
        assert_eq!(replayed.events_disabled.len(), round, "{replayed:?}");
        let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
        check_tables(&copy).unwrap();
        let found = checksum::checksums(&copy).unwrap();
        assert_eq!(checksum::differences(&moment.checksums, &found), Vec::<String>::new(), "moment {round}");
        let users: u64 = copy
            .value("SELECT COUNT(*) FROM mysql.user WHERE user LIKE 'u_' OR user LIKE 'holdfast%'")
            .unwrap();
        assert_eq!(users, round as u64, "accounts of the source, and none of ours");
        let left: Vec<_> = walk(&target)
            .into_iter()
            .filter(|path| {
                path.to_string_lossy().contains("relay") || path.to_string_lossy().contains("#holdfast")
            })
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new());
        // The server continues from there as a replica.
        let position = match (kind.is_mariadb(), report.position.unwrap().gtid) {
            (true, Some(gtid)) => Position::Gtid(gtid),
            (false, Some(_)) if uses_gtids => Position::Held,
            _ => continue,
        };
        replica::catch_up(&source, &copy, &position, CATCH_UP_MAX).unwrap();
        assert_equal_checksums(&source, &copy).unwrap();
    }
}

#[test]
fn mariadb_10_11_is_restored_to_moments_behind_a_backup() {
    moments_are_restored(ServerKind::MariaDb1011, ServerOptions::default(), 31);
}

#[test]
fn mariadb_11_8_is_restored_to_moments_behind_a_backup() {
    moments_are_restored(ServerKind::MariaDb118, ServerOptions::default(), 32);
}

#[test]
fn mysql_9_7_is_restored_to_moments_behind_a_backup() {
    let options = ServerOptions::default().arg("--binlog-transaction-compression=ON");
    moments_are_restored(ServerKind::MySql97, options, 33);
}
