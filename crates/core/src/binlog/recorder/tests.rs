use holdfast_formats::binlog::{GtidEvent, HEADER_BYTES, Open};

use super::*;
use crate::server::ServerVersion;

#[derive(Default)]
struct Kept(Vec<Vec<u8>>);

impl Sink for Kept {
    fn stretch(&mut self, _: &Stretch) -> Result<()> {
        Ok(())
    }

    fn event(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.push(bytes.to_vec());
        Ok(())
    }

    fn ended(&mut self, _: Stretch) -> Result<()> {
        Ok(())
    }
}

/// An event without a checksum that begins at offset `file`, which moves to its end.
fn event(file: &mut u64, kind: EventKind, data: &[u8]) -> Vec<u8> {
    let len = HEADER_BYTES + data.len();
    *file += len as u64;
    let mut bytes = 1_700_000_000_u32.to_le_bytes().to_vec();
    bytes.push(kind.0);
    for field in [7, u32::try_from(len).unwrap(), u32::try_from(*file).unwrap()] {
        bytes.extend_from_slice(&u32::to_le_bytes(field));
    }
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(data);
    bytes
}

/// The data of a query event, without a database.
fn query(text: &str) -> Vec<u8> {
    [&[0; 13][..], &[0], text.as_bytes()].concat()
}

fn server(version: &str) -> BinlogServer {
    BinlogServer {
        version: ServerVersion::parse(version).unwrap(),
        uuid: None,
        server_id: 7,
        hostname: "h".to_owned(),
        port: 1,
    }
}

/// A file that a shutdown has ended is followed by the next one.
#[test]
fn a_shutdown_ends_a_file() {
    for (file, next) in [
        ("binlog.000009", Some("binlog.000010")),
        ("db1-bin.999999", Some("db1-bin.1000000")),
        ("binlog", None),
    ] {
        let mut end = 1_000;
        let stop = event(&mut end, EventKind::STOP, &[]);
        let place = Place { file: file.to_owned(), position: 1_000 };
        let (mut kept, server) = (Kept::default(), server("9.7.4"));
        let mut recorder = Recorder::new(server.clone());
        recorder.begin_stream(server, Start::at(place), &mut kept).unwrap();
        recorder.received(&stop, &mut kept).unwrap();
        assert_eq!(recorder.tail().unwrap().last.next_file.as_deref(), next);
    }
}

/// What is missing after the last event is known to whoever continues.
#[test]
fn an_incident_at_the_end() {
    let mut end = 1_000;
    let incident = event(&mut end, EventKind::INCIDENT, b"\x01\x00\x04lost");
    let next = event(&mut end, EventKind::INTVAR, &[0; 9]);
    let place = Place { file: "binlog.000001".to_owned(), position: 1_000 };
    let (mut kept, server) = (Kept::default(), server("9.7.4"));
    let mut recorder = Recorder::new(server.clone());
    recorder.begin_stream(server.clone(), Start::at(place), &mut kept).unwrap();
    recorder.received(&incident, &mut kept).unwrap();
    let tail = Tail::from_map(&recorder.tail().unwrap().to_map().unwrap()).unwrap();
    let mut recorder = Recorder::at(&tail).unwrap();
    recorder.begin_stream(server, Start::at(tail.place), &mut kept).unwrap();
    recorder.received(&next, &mut kept).unwrap();
    assert_eq!(recorder.stretch().unwrap().gap.map(|gap| gap.kind), Some(GapKind::Incident));
    assert_eq!(recorder.tail().unwrap().gap, None);
}

/// A server that has lost a file goes on with the one after it. After a shutdown its files may have another name.
#[test]
fn files_that_are_skipped() {
    let rotate = |next: &str| [&4_u64.to_le_bytes()[..], next.as_bytes()].concat();
    for (last, next, is_missing) in [
        (Some("binlog.000002"), "binlog.000002", false),
        (Some("binlog.000002"), "binlog.000003", true),
        (None, "binlog.000003", true),
        (None, "db1.000001", false),
    ] {
        let mut end = 1_000;
        let last = match last {
            Some(next) => event(&mut end, EventKind::ROTATE, &rotate(next)),
            None => event(&mut end, EventKind::STOP, &[]),
        };
        let mut goes_on = event(&mut 0, EventKind::ROTATE, &rotate(next));
        goes_on[13..17].fill(0);
        let first = event(&mut 4, EventKind::INTVAR, &[0; 9]);
        let place = Place { file: "binlog.000001".to_owned(), position: 1_000 };
        let (mut kept, server) = (Kept::default(), server("9.7.4"));
        let mut recorder = Recorder::new(server.clone());
        recorder.begin_stream(server, Start::at(place), &mut kept).unwrap();
        for bytes in [&last, &goes_on, &first] {
            recorder.received(bytes, &mut kept).unwrap();
        }
        let gap = recorder.stretch().unwrap().gap;
        assert_eq!(
            gap.as_ref().map(|gap| gap.kind),
            is_missing.then_some(GapKind::Purged),
            "{next}: {gap:?}"
        );
        assert_eq!(recorder.take_missing(), gap.map(|gap| gap.text), "{next}");
    }
}

/// After a reset, transactions are counted anew: by whoever sees it, and by whoever reads that back.
#[test]
fn what_was_counted_before_a_reset() {
    let mut end = 1_000;
    let bytes = event(&mut end, EventKind::INTVAR, &[0; 9]);
    let place = Place { file: "binlog.000001".to_owned(), position: 1_000 };
    let (mut kept, server) = (Kept::default(), server("9.7.4"));
    let gap = Gap { kind: GapKind::Reset, text: "reset".to_owned() };
    let before = || {
        let mut recorder = Recorder::new(server.clone());
        recorder.gtids = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9".parse().map(Gtids::MySql).unwrap();
        recorder
    };
    let mut seen = before();
    seen.begin_stream(server.clone(), Start { gap: Some(gap), ..Start::at(place) }, &mut kept).unwrap();
    seen.received(&bytes, &mut kept).unwrap();
    let stretch = seen.stretch().unwrap();
    let mut read = before();
    read.begin_stored(&stretch, &mut kept).unwrap();
    for recorder in [seen, read] {
        assert_eq!(recorder.stretch().unwrap().gtids_after, None);
    }
}

/// The tail knows whether its run has transactions without a GTID, and whether earlier runs have only if
/// such a transaction is still open.
#[test]
fn transactions_without_names() {
    let mut end = 1_000;
    let anonymous = event(&mut end, EventKind::ANONYMOUS_GTID, &[0; 42]);
    let begin = event(&mut end, EventKind::QUERY, &query("BEGIN"));
    let commit = event(&mut end, EventKind::XID, &[0; 8]);
    let server = server("9.7.4");
    let place = Place { file: "binlog.000001".to_owned(), position: 1_000 };
    let mut kept = Kept::default();
    let mut recorder = Recorder::new(server.clone());
    let start = Start::at(place);
    recorder.begin_stream(server, start, &mut kept).unwrap();
    for bytes in [&anonymous, &begin] {
        recorder.received(bytes, &mut kept).unwrap();
    }
    let inside = recorder.tail().unwrap();
    assert!(inside.has_nameless && Recorder::at(&inside).unwrap().tail().unwrap().has_nameless);
    recorder.begin_run();
    assert!(recorder.tail().unwrap().has_nameless);
    recorder.received(&commit, &mut kept).unwrap();
    let after = recorder.tail().unwrap();
    assert!(after.has_nameless && after.open.is_none(), "{after:?}");
    assert!(!Recorder::at(&after).unwrap().tail().unwrap().has_nameless);
    recorder.begin_run();
    assert!(!recorder.tail().unwrap().has_nameless);
}

/// A transaction whose events have no time has that of the last event before it.
#[test]
fn transactions_without_times() {
    let mut end = 1_000;
    let before = event(&mut end, EventKind::INTVAR, &[0; 9]);
    let mut gtid = 5_u64.to_le_bytes().to_vec();
    gtid.resize(19, 0);
    let mut gtid = event(&mut end, EventKind::MARIADB_GTID, &gtid);
    let mut commit = event(&mut end, EventKind::XID, &[0; 8]);
    for bytes in [&mut gtid, &mut commit] {
        bytes[..4].fill(0);
    }
    let server = server("11.8.9-MariaDB-log");
    let place = Place { file: "binlog.000001".to_owned(), position: 1_000 };
    let mut kept = Kept::default();
    let mut recorder = Recorder::new(server.clone());
    recorder.begin_stream(server, Start::at(place), &mut kept).unwrap();
    for bytes in [&before, &gtid, &commit] {
        recorder.received(bytes, &mut kept).unwrap();
    }
    assert_eq!(recorder.tail().unwrap().last_at, Some(1_700_000_000_000_000));
}

/// A recorder continues a transaction in the middle of which another one stopped.
#[test]
fn a_transaction_that_two_recorders_see() {
    let mut end = 1_000;
    let mut gtid = 5_u64.to_le_bytes().to_vec();
    gtid.resize(19, 0);
    let gtid = event(&mut end, EventKind::MARIADB_GTID, &gtid);
    let rows = event(&mut end, EventKind::INTVAR, &[0; 9]);
    let commit = event(&mut end, EventKind::XID, &[0; 8]);
    let list = [&1_u32.to_le_bytes()[..], &0_u32.to_le_bytes(), &7_u32.to_le_bytes(), &5_u64.to_le_bytes()];
    let list = event(&mut end, EventKind::GTID_LIST, &list.concat());

    let server = server("10.11.6-MariaDB-log");
    let begin = Place { file: "binlog.000001".to_owned(), position: 1_000 };
    let mut kept = Kept::default();
    let mut recorder = Recorder::new(server.clone());
    let start = Start::at(begin);
    recorder.begin_stream(server.clone(), start, &mut kept).unwrap();
    for bytes in [&gtid, &rows] {
        recorder.received(bytes, &mut kept).unwrap();
    }
    assert!(!recorder.is_between_transactions());

    let tail = Tail::from_map(&recorder.tail().unwrap().to_map().unwrap()).unwrap();
    let mut recorder = Recorder::at(&tail).unwrap();
    let start = Start::at(tail.place);
    recorder.begin_stream(server, start, &mut kept).unwrap();
    for bytes in [&commit, &list] {
        recorder.received(bytes, &mut kept).unwrap();
    }
    assert_eq!(recorder.take_missing(), None);
    assert_eq!(recorder.tail().unwrap().gtids.as_deref(), Some("0-7-5"));
    assert_eq!(recorder.tail().unwrap().open, None);
}

/// A transaction that a MySQL replica received keeps the time when it was committed at its origin.
#[test]
fn the_time_of_a_transaction_that_two_recorders_see() {
    let gtid = GtidEvent {
        gtid: Some("3e11fa47-71ca-11e1-9e33-c80aa9429569:5".parse().unwrap()),
        len: Some(300),
        committed_us: Some(9_000_000),
        first_committed_us: Some(2_000_000),
        origin: 3,
        ..GtidEvent::NOTHING
    };
    let tracker = Tracker::inside(Open { gtid, bytes: 70, has_begun: true });
    let stored = serde_json::to_value(OpenTransaction::of(&tracker, None).unwrap()).unwrap();
    let open: OpenTransaction = serde_json::from_value(stored.clone()).unwrap();
    let again = open.tracker().unwrap();
    assert_eq!(again.state(), tracker.state());
    assert_eq!(again.state().unwrap().gtid.committed_us_in(7), Some(2_000_000));
    // A tail from before these were stored.
    let mut older = stored;
    for name in ["first_committed_us", "origin"] {
        older.as_object_mut().unwrap().remove(name).unwrap();
    }
    let open: OpenTransaction = serde_json::from_value(older).unwrap();
    assert_eq!(open.tracker().unwrap().state().unwrap().gtid.committed_us_in(7), Some(9_000_000));
}

/// Transactions that a file names as older, and that are not archived,
/// are missing before it, and count as what precedes it.
#[test]
fn what_a_file_names_as_older() {
    let mut end = 1_000;
    let mut list = |number: u64| {
        let of_one = [&1_u32.to_le_bytes()[..], &0_u32.to_le_bytes(), &7_u32.to_le_bytes()].concat();
        event(&mut end, EventKind::GTID_LIST, &[&of_one[..], &number.to_le_bytes()].concat())
    };
    let (first, second) = (list(5), list(9));
    let server = server("10.11.6-MariaDB-log");
    let begin = Place { file: "binlog.000001".to_owned(), position: 1_000 };
    let mut recorder = Recorder::new(server.clone());
    let start = Start::at(begin);
    recorder.begin_stream(server, start, &mut Kept::default()).unwrap();
    recorder.received(&first, &mut Kept::default()).unwrap();
    assert_eq!((recorder.take_missing(), recorder.stretch().unwrap().gap), (None, None));
    recorder.received(&second, &mut Kept::default()).unwrap();
    let stretch = recorder.stretch().unwrap();
    assert_eq!(stretch.gap.map(|gap| gap.text), recorder.take_missing());
    assert_eq!(stretch.gtids_before.as_deref(), Some("0-7-9"));
}

/// The encryption event after the first event of a file is not stored. A recorder that receives such a
/// file again from its beginning, because the protocol has no number for
/// where the archive ends, still recognizes it.
#[test]
fn an_encrypted_file_from_its_beginning() {
    let mut end = FILE_BEGIN;
    let mut format = 4_u16.to_le_bytes().to_vec();
    format.extend_from_slice(b"10.11.6-MariaDB-log");
    format.resize(2 + 50 + 4, 0);
    format.push(19);
    format.resize(format.len() + 171 + 4, 0);
    let format = event(&mut end, EventKind::FORMAT_DESCRIPTION, &format);
    let encryption = event(&mut end, EventKind::START_ENCRYPTION, &[1; 17]);
    let mut more = || event(&mut end, EventKind::BINLOG_CHECKPOINT, &[0; 4]);
    let (first, second, third) = (more(), more(), more());

    let server = server("10.11.6-MariaDB-log");
    let begin = Place { file: "binlog.000001".to_owned(), position: FILE_BEGIN };
    let mut recorder = Recorder::new(server.clone());
    let mut kept = Kept::default();
    let start = Start::at(begin.clone());
    recorder.begin_stream(server.clone(), start, &mut kept).unwrap();
    for bytes in [&format, &encryption, &first, &second] {
        recorder.received(bytes, &mut kept).unwrap();
    }
    assert_eq!(kept.0, [&format[..], &first, &second]);

    let tail = recorder.tail().unwrap();
    let mut recorder = Recorder::at(&tail).unwrap();
    let known = Known { begin: tail.last.begin, end: tail.place.position, hash: tail.last.hash.clone() };
    let mut kept = Kept::default();
    recorder.begin_stream(server, Start { place: begin, known: Some(known), gap: None }, &mut kept).unwrap();
    for bytes in [&format, &encryption, &first, &second] {
        assert!(!recorder.received(bytes, &mut kept).unwrap());
    }
    assert!(recorder.is_confirmed());
    assert!(recorder.received(&third, &mut kept).unwrap());
    assert_eq!(kept.0, [&third[..]]);
}
