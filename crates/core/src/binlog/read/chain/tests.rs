#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use holdfast_formats::Lsn;
use holdfast_repo::{Protection, Repo, RunNo, format::hex::to_hex, store::mem::MemStore};

use super::*;
use crate::{
    binlog::stretch::Stretch, position::Precision, server::ServerVersion, server::status::BinlogPosition,
};

const MYSQL: &str = "9.7.4";
const MARIADB: &str = "10.11.19-MariaDB-log";
const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
/// When files were begun and backups ended, in seconds since 1970.
const BEGUN_S: u32 = 1_700_000_000;
const TAKEN_S: i64 = 1_700_001_000;

fn server(version: &str, server_id: u32) -> BinlogServer {
    BinlogServer {
        version: ServerVersion::parse(version).unwrap(),
        uuid: None,
        server_id,
        hostname: "h".to_owned(),
        port: 1,
    }
}

/// A stretch from one offset of a file to another, with the transactions before it and those until its end.
fn stretch(server: &BinlogServer, file: &str, place: (u64, u64), gtids: (&str, &str)) -> Stretch {
    let format = [&BEGUN_S.to_le_bytes()[..], &[15, 1, 0, 0, 0, 19, 0, 0, 0, 23, 0, 0, 0, 0, 0]].concat();
    let named = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Stretch {
        number: 0,
        of_run: None,
        server: server.clone(),
        file: file.to_owned(),
        begin: place.0,
        end: place.1,
        bytes: place.1 - place.0,
        format: to_hex(&format),
        continues: None,
        gap: None,
        leaves_out: None,
        is_complete: false,
        transactions: 1,
        first_at: None,
        last_at: None,
        first_gtid: None,
        last_gtid: None,
        gtids_before: named(gtids.0),
        gtids_after: named(gtids.1),
    }
}

/// An archive of stretches that continue each other.
fn archive(stretches: impl IntoIterator<Item = Stretch>) -> Archive {
    let repo = Arc::new(Repo::init(Arc::new(MemStore::new()), &Protection::None).unwrap());
    let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Binlog };
    let history = History::salvage(&repo, &log, &mut |_, _| {}).unwrap();
    let stretches = stretches.into_iter().map(|stretch| {
        let end = stretch.end;
        ArchivedStretch { stretch, run: RunNo(1), recorded_by: RunNo(1), is_live: false, gap: None, end }
    });
    Archive {
        repo,
        log,
        history,
        stretches: stretches.collect(),
        unreadable: Vec::new(),
        opened: Mutex::default(),
    }
}

fn taken(server: &BinlogServer, place: Option<(&str, u64)>, gtid: &str) -> Taken {
    Taken {
        position: Position {
            precision: Precision::Exact,
            lsn: Lsn(1),
            binlog: place.map(|(file, offset)| BinlogPosition { file: file.to_owned(), offset }),
            gtid: Some(gtid.to_owned()),
            replica_gtid: None,
            replica_of: Vec::new(),
            at: None,
        },
        server: server.clone(),
        finished_at: Timestamp::from_second(TAKEN_S).unwrap(),
        holds_from: Timestamp::from_second(TAKEN_S).unwrap(),
        may_lack_gtids: false,
        started_at: None,
    }
}

/// The GTIDs after which the archive continues; `None` if it continues at a place.
fn by_gtids(archive: &Archive, taken: &Taken) -> Option<String> {
    match archive.after(taken)? {
        After::Gtids(gtids) => Some(gtids.to_string()),
        _ => None,
    }
}

/// A server was reset after the position of a backup was read and before the backup ended. Its place is in
/// the file that existed then, and never in a later one of that name.
#[test]
fn a_reset_while_rows_were_read() {
    let own = server(MYSQL, 1);
    let begun_at = |at_s: i64, gtids| {
        let mut stretch = stretch(&own, "binlog.000001", (4, 900), gtids);
        let format =
            [&(at_s as u32).to_le_bytes()[..], &[15, 1, 0, 0, 0, 19, 0, 0, 0, 23, 0, 0, 0, 0, 0]].concat();
        stretch.format = to_hex(&format);
        stretch
    };
    let placed_at = |at_s| {
        let mut taken = taken(&own, Some(("binlog.000001", 500)), &format!("{UUID}:1-40"));
        taken.position.at = Some(Timestamp::from_second(at_s).unwrap());
        taken
    };
    let found = |archive: &Archive, at_s| match archive.after(&placed_at(at_s)) {
        Some(After::PlaceIn { stretch, .. }) => Some(stretch),
        other => {
            assert!(other.is_none(), "{other:?}");
            None
        }
    };
    let numbers = |last: u32| format!("{UUID}:1-{last}");
    let (to_50, to_60) = (numbers(50), numbers(60));
    let before = begun_at(TAKEN_S - 900, ("", &to_50));
    let since = begun_at(TAKEN_S - 200, ("", &to_60));
    let both = archive([before, since.clone()]);
    assert_eq!(found(&both, TAKEN_S - 300), Some(0));
    assert_eq!(found(&both, TAKEN_S - 100), Some(1));
    // Found neither by its place nor by its numbers, which repeat.
    let only = archive([since]);
    assert_eq!(found(&only, TAKEN_S - 100), Some(0));
    assert_eq!(found(&only, TAKEN_S - 300), None);
}

/// The first event of a file, of a server that was started or reset at `created_s`, or has ended another file.
fn format_of(begun_s: i64, created_s: i64) -> String {
    let mut data = 4_u16.to_le_bytes().to_vec();
    data.resize(2 + 50, 0);
    data.extend_from_slice(&(created_s as u32).to_le_bytes());
    data.push(19);
    data.resize(100, 0);
    let len = 19 + data.len() as u32;
    let header = [&(begun_s as u32).to_le_bytes()[..], &[15, 1, 0, 0, 0], &len.to_le_bytes()];
    to_hex(&[header.concat(), (4 + len).to_le_bytes().to_vec(), vec![0; 2], data].concat())
}

/// Where the file was begun in the second in which the place was read, it counts only if the server cannot have
/// been reset since.
#[test]
fn a_file_of_the_same_second() {
    let own = server(MARIADB, 1);
    let found = |format: String, started_at: Option<i64>| {
        let mut stretch = stretch(&own, "binlog.000001", (4, 900), ("", "0-1-60"));
        stretch.format = format;
        let mut taken = taken(&own, Some(("binlog.000001", 500)), "0-1-40");
        taken.position.at = Some(Timestamp::from_second(TAKEN_S).unwrap());
        taken.started_at = started_at.map(|at| Timestamp::from_second(at).unwrap());
        archive([stretch]).after(&taken).is_some()
    };
    let reset = format_of(TAKEN_S, TAKEN_S);
    assert!(found(format_of(TAKEN_S, 0), None), "another file was ended");
    assert!(found(reset.clone(), Some(TAKEN_S - 1)), "the server was started");
    assert!(!found(reset.clone(), Some(TAKEN_S - 900)));
    assert!(!found(reset, None));
    assert!(!found(format_of(TAKEN_S + 1, 0), None), "it was begun later");
}

/// The archive was of a primary, and continues on a replica that has taken its place:
/// earlier backups of that replica stay bases.
#[test]
fn a_replica_before_it_was_archived() {
    let (first, second) = (server(MARIADB, 1), server(MARIADB, 2));
    let of_first = stretch(&first, "binlog.000001", (4, 900), ("", "0-1-50"));
    let of_second = stretch(&second, "binlog.000003", (700, 900), ("0-1-50", "0-2-60"));
    let one = archive([of_first.clone()]);
    let both = archive([of_first.clone(), of_second.clone()]);
    for place in [("binlog.000003", 500), ("binlog.000002", 5_000)] {
        let before = taken(&second, Some(place), "0-1-40");
        assert_eq!(by_gtids(&one, &before).as_deref(), Some("0-1-40"));
        assert_eq!(by_gtids(&both, &before).as_deref(), Some("0-1-40"), "{place:?}");
    }
    let at_place = both.after(&taken(&second, Some(("binlog.000003", 800)), "0-2-55"));
    assert!(matches!(at_place, Some(After::PlaceIn { stretch: 1, position: 800, .. })), "{at_place:?}");

    // Not archived yet; not for sure, if anything is missing; not the same file, if that one ended before.
    let after = taken(&second, Some(("binlog.000003", 1_000)), "0-2-61");
    assert_eq!(by_gtids(&both, &after), None);
    let mut with_gap = archive([of_first, of_second.clone()]);
    with_gap.stretches[1].gap = Some(crate::binlog::Gap {
        kind: crate::binlog::GapKind::Purged,
        text: "the server has purged what came after".to_owned(),
    });
    let before = taken(&second, Some(("binlog.000003", 500)), "0-1-40");
    assert_eq!(by_gtids(&with_gap, &before), None);
    let ended = archive([
        stretch(&second, "binlog.000001", (4, 900), ("", "0-2-30")),
        stretch(&second, "binlog.000002", (4, 900), ("0-2-30", "0-2-60")),
    ]);
    let mut complete = archive(ended.stretches.iter().map(|archived| archived.stretch.clone()));
    complete.stretches[0].stretch.is_complete = true;
    let beyond = taken(&second, Some(("binlog.000001", 1_000)), "0-2-20");
    assert_eq!(by_gtids(&ended, &beyond).as_deref(), Some("0-2-20"));
    assert_eq!(by_gtids(&complete, &beyond), None);
}

/// Files and places repeat after a reset:
/// a backup that holds less than came before a place did not end there.
#[test]
fn a_place_that_comes_again() {
    let numbers = |last: u32| format!("{UUID}:1-{last}");
    for (version, before, less, more) in [
        (MYSQL, numbers(50), numbers(10), numbers(60)),
        (MARIADB, "0-1-50".to_owned(), "0-1-10".to_owned(), "0-1-60".to_owned()),
    ] {
        let own = server(version, 1);
        let archive = archive([
            stretch(&own, "binlog.000001", (4, 900), ("", &before)),
            stretch(&own, "binlog.000002", (4, 900), (&before, &before)),
        ]);
        let after = |gtid: &str| archive.after(&taken(&own, Some(("binlog.000002", 198)), gtid));
        let at_place = after(&more);
        assert!(matches!(at_place, Some(After::PlaceIn { stretch: 1, .. })), "{at_place:?}");
        assert!(after(&less).is_none(), "{version}");
    }
    // A server that counts in its primary's domain may be behind it; a domain that is deleted is in no position.
    let own = server(MARIADB, 1);
    let of_own = archive([stretch(&own, "binlog.000002", (4, 900), ("0-2-50,1-1-7", ""))]);
    let at_place = of_own.after(&taken(&own, Some(("binlog.000002", 198)), "0-1-10"));
    assert!(matches!(at_place, Some(After::PlaceIn { .. })), "{at_place:?}");
}

/// What the server purged, or is not stored any more, does not matter for backups of a replica that end after
/// it: numbers count on there.
#[test]
fn a_replica_behind_a_gap() {
    let (first, second) = (server(MARIADB, 1), server(MARIADB, 2));
    let with = |gaps: [Option<GapKind>; 2], begun_s: i64| {
        let mut archive = archive([
            stretch(&first, "binlog.000001", (4, 900), ("", "0-1-50")),
            stretch(&first, "binlog.000003", (4, 900), ("0-1-70", "0-1-90")),
            stretch(&first, "binlog.000005", (4, 900), ("0-1-110", "0-1-130")),
            stretch(&first, "binlog.000006", (4, 900), ("0-1-130", "0-1-150")),
        ]);
        for (archived, kind) in archive.stretches[1..].iter_mut().zip(gaps) {
            archived.gap = kind.map(|kind| crate::binlog::Gap { kind, text: "gap".to_owned() });
        }
        for archived in &mut archive.stretches[2..] {
            let begun = to_hex(&u32::try_from(begun_s).unwrap().to_le_bytes());
            archived.stretch.format.replace_range(..8, &begun);
        }
        archive
    };
    let backup = |gtid: &str| taken(&second, Some(("binlog.000001", 500)), gtid);
    let purged = with([Some(GapKind::NotStored), Some(GapKind::Purged)], TAKEN_S - 10);
    for (gtid, is_base) in [
        ("0-1-40", false),
        ("0-1-80", false),
        ("0-1-100", false),
        ("0-1-110", true),
        ("0-1-120", true),
        ("0-1-140", true),
        ("0-1-151", false),
    ] {
        assert_eq!(by_gtids(&purged, &backup(gtid)).as_deref(), Some(gtid).filter(|_| is_base), "{gtid}");
    }
    // A backup cannot belong to a file begun after it ended; nor is it for sure where numbers may repeat.
    let too_late = with([Some(GapKind::NotStored), Some(GapKind::Purged)], TAKEN_S + 10);
    assert_eq!(by_gtids(&too_late, &backup("0-1-120")), None);
    for kind in [GapKind::Reset, GapKind::Diverged, GapKind::OtherServer, GapKind::Incident] {
        for gaps in [[Some(kind), Some(GapKind::Purged)], [None, Some(kind)]] {
            let archive = with(gaps, TAKEN_S - 10);
            assert_eq!(by_gtids(&archive, &backup("0-1-120")), None, "{gaps:?}");
        }
    }
}

/// Encrypted redo continues after the position of a backup that was made under writes: the backup has no
/// place, and its GTIDs are those that it has at least.
#[test]
fn a_backup_without_a_place() {
    let own = server(MYSQL, 1);
    let gtids = |last: u32| format!("{UUID}:1-{last}");
    let of_own = stretch(&own, "binlog.000001", (4, 900), ("", &gtids(50)));
    let mut backup = taken(&own, None, &gtids(20));
    backup.position.precision = Precision::AtRestore;
    let archive = archive([of_own]);
    assert_eq!(by_gtids(&archive, &backup), Some(gtids(20)));
    // Old GTIDs say nothing about what came since.
    backup.may_lack_gtids = true;
    assert_eq!(by_gtids(&archive, &backup), None);
}

/// A MariaDB replica that does not log what it applies has more than its binlog names.
#[test]
fn a_replica_that_logs_its_own_only() {
    let (first, second) = (server(MARIADB, 1), server(MARIADB, 2));
    let archive = archive([stretch(&first, "binlog.000001", (4, 900), ("", "0-1-200,1-1-7"))]);
    let is_replica = crate::position::ReplicaPosition {
        channel: String::new(),
        host: "h".to_owned(),
        port: 1,
        by_gtid: true,
        executed: None,
    };
    let backup = |logged: &str, applied: &str, replica: bool| {
        let mut backup = taken(&second, Some(("binlog.000001", 500)), logged);
        backup.position.replica_gtid = Some(applied.to_owned());
        backup.position.replica_of = replica.then(|| is_replica.clone()).into_iter().collect();
        backup
    };
    for (logged, applied, replica, later) in [
        // Its own and older transactions; after them, what it applied.
        ("0-2-50", "0-1-160", true, Some("0-1-160")),
        ("0-1-50,1-1-5", "0-1-160,1-1-4", true, Some("0-1-160,1-1-5")),
        // In one of the domains only.
        ("1-2-5", "0-1-160", true, Some("0-1-160,1-2-5")),
        // A primary that was a replica once; a ring, which gives back what a server wrote.
        ("0-2-160", "0-1-50", false, Some("0-2-160")),
        ("0-2-160", "0-2-150", true, Some("0-2-160")),
        // Whether it has 0-1-160 cannot be told, nor what 160 is.
        ("0-2-160", "0-1-159", true, None),
        ("0-2-160", "0-1-160", true, None),
    ] {
        let backup = backup(logged, applied, replica);
        assert_eq!(by_gtids(&archive, &backup).as_deref(), later, "{logged} and {applied}");
        assert_eq!(backup.is_told_by_gtids(), later.is_some(), "{logged} and {applied}");
    }
    // A recovery to a transaction does not begin from a backup that holds it.
    let held = backup("0-1-50", "0-1-160", true).gtids().unwrap();
    assert!(held.contains(&"0-1-51".parse().unwrap()) && !held.contains(&"0-1-161".parse().unwrap()));
}
