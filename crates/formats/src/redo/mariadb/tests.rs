//! Walking and relocating, on mini-transactions built by hand.

use super::header::tests::prefix;
use super::mtr::{FileOp, FileOpKind, MtrWalker, WalkStop};
use super::relocate::{AbsolutePaths, PathRelocator, RelocateError, Relocated};
use super::*;
use crate::{Lsn, SpaceId, checksum};
use proptest::prelude::*;

fn varint(value: u32) -> Vec<u8> {
    match value {
        0..0x80 => vec![value as u8],
        0x80..0x4080 => ((value - 0x80) as u16 | 0x8000).to_be_bytes().to_vec(),
        _ => ((value - 0x4080) | 0xC0_0000).to_be_bytes()[1..].to_vec(),
    }
}

/// A record whose first byte has this high nibble.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    match body.len() {
        0 => panic!("no record is empty"),
        bytes @ 1..16 => [&[kind | bytes as u8], body].concat(),
        bytes => {
            // The length counts its own bytes; a longer form is chosen when the shorter does not fit.
            let length = (1..=3)
                .map(|own| varint((bytes + own - 15) as u32))
                .zip(1..)
                .find(|(l, own)| l.len() == *own);
            [&[kind], length.unwrap().0.as_slice(), body].concat()
        }
    }
}

fn file_record(kind: u8, space: u32, names: &[u8]) -> Vec<u8> {
    record(kind, &[varint(space), vec![0], names.to_vec()].concat())
}

fn write_record(space: u32, page: u32, data: &[u8]) -> Vec<u8> {
    record(0x30, &[varint(space), varint(page), data.to_vec()].concat())
}

fn mtr(records: &[u8], marker: u8, nonce: Option<[u8; 8]>) -> Vec<u8> {
    let nonce = nonce.as_ref().map_or(&[][..], |nonce| nonce);
    let crc = checksum::crc32c(&[records, nonce].concat());
    [records, &[marker], nonce, &crc.to_be_bytes()].concat()
}

/// Three plain mini-transactions, markers 1.
fn three() -> [Vec<u8>; 3] {
    [
        mtr(&write_record(3, 4, b"hello"), 1, None),
        mtr(&[write_record(3, 200, &[7; 100]), write_record(900, 70_000, &[1; 9000])].concat(), 1, None),
        mtr(&write_record(3, 5, b"!"), 1, None),
    ]
}

fn walk(walker: MtrWalker, buf: &mut [u8], at: u64, limit: Option<u64>) -> (usize, u64, WalkStop) {
    let walked = walker.walk(buf, Lsn(at), limit.map(Lsn), |_, op| panic!("unexpected {op:?}"));
    (walked.bytes, walked.mtrs, walked.stop)
}

fn circle(first_lsn: u64, capacity: u64, encrypted: bool) -> MtrWalker {
    let checkpoint = Checkpoint { lsn: Lsn(first_lsn), end: Lsn(first_lsn) };
    MtrWalker::new(
        &LogHeader::parse(&prefix(encrypted, first_lsn, checkpoint), DATA_START + capacity).unwrap(),
    )
}

#[test]
fn complete_mini_transactions_are_walked_whatever_the_cut() {
    let bytes = three().concat();
    let [first, second, _] = three().map(|mtr| mtr.len());
    for cut in 0..=bytes.len() {
        let mut buf = bytes[..cut].to_vec();
        let expected = match cut {
            c if c == bytes.len() => (c, 3),
            c if c >= first + second => (first + second, 2),
            c if c >= first => (first, 1),
            _ => (0, 0),
        };
        let (used, mtrs, stop) = walk(MtrWalker::linear(false), &mut buf, 77, None);
        assert_eq!((used, mtrs, stop), (expected.0, expected.1, WalkStop::NeedMore), "cut at {cut}");
    }
}

#[test]
fn pages_are_told_where_a_record_names_them() {
    let same_page = record(0xB0, b"more");
    let files = mtr(&file_record(0xB0, 9, b"./a/b.ibd"), 1, None);
    let last = mtr(&[write_record(3, 5, b"!"), same_page].concat(), 1, None);
    let [first, second, _] = three();
    let mut redo = [files, first, second, last].concat();
    let mut pages = Vec::new();
    let walked =
        MtrWalker::linear(false).walk_pages(&mut redo, Lsn(7), |space, page| pages.push((space.0, page.0)));
    assert_eq!((walked.bytes, walked.mtrs, walked.stop), (redo.len(), 4, WalkStop::NeedMore));
    assert_eq!(pages, [(3, 4), (3, 200), (900, 70_000), (3, 5)]);
}

#[test]
fn the_walk_stops_at_the_first_boundary_past_the_limit() {
    let mut bytes = three().concat();
    let [first, second, _] = three().map(|mtr| mtr.len());
    let walker = MtrWalker::linear(false);
    assert_eq!(walk(walker, &mut bytes, 50, Some(50)), (0, 0, WalkStop::Limit));
    assert_eq!(walk(walker, &mut bytes, 50, Some(51)), (first, 1, WalkStop::Limit));
    assert_eq!(walk(walker, &mut bytes, 50, Some(50 + first as u64)), (first, 1, WalkStop::Limit));
    assert_eq!(walk(walker, &mut bytes, 50, Some(51 + first as u64)), (first + second, 2, WalkStop::Limit));
}

#[test]
fn the_marker_tells_the_lap_and_becomes_1() {
    // A circle of 100 bytes. The first mtr's marker still lies in the first lap, the second's in the second.
    let records = write_record(3, 4, b"hello");
    let walker = circle(4096, 100, false);
    let at = 4096 + 100 - records.len() as u64 - 1;
    let mut bytes = [mtr(&records, 1, None), mtr(&records, 0, None)].concat();
    let linear = [mtr(&records, 1, None), mtr(&records, 1, None)].concat();
    assert_eq!(walk(walker, &mut bytes, at, None), (bytes.len(), 2, WalkStop::NeedMore));
    assert_eq!(bytes, linear);
    // Now the second one's marker is of the wrong lap for this circle.
    assert_eq!(walk(walker, &mut bytes, at, None), (linear.len() / 2, 1, WalkStop::SequenceMismatch));
    assert_eq!(walk(MtrWalker::linear(false), &mut bytes, at, None).1, 2);
}

#[test]
fn nothing_written_and_damage_stop_the_walk() {
    let walker = MtrWalker::linear(false);
    assert_eq!(walk(walker, &mut [0; 100], 1, None), (0, 0, WalkStop::SequenceMismatch));
    assert_eq!(walk(walker, &mut [1; 100], 1, None), (0, 0, WalkStop::SequenceMismatch));
    let [first, ..] = three();
    for at in (0..first.len()).filter(|&at| at != first.len() - 5) {
        let mut damaged = [&first[..], &[0; 300]].concat();
        damaged[at] ^= 0x10;
        let (used, _, stop) = walk(walker, &mut damaged, 1, None);
        assert_eq!(used, 0);
        assert_ne!(stop, WalkStop::Limit, "byte {at}");
    }
    // A length of four bytes belongs to no record.
    assert_eq!(walk(walker, &mut [0x30, 0xE0, 0, 0, 0, 0], 1, None).2, WalkStop::CrcMismatch);
}

#[test]
fn an_encrypted_log_is_walked_without_the_key() {
    let records = file_record(0x90, 3, b"./db/t.ibd");
    let mut bytes = mtr(&records, 0, Some(*b"12345678"));
    let walked = circle(4096, 50, true).walk(&mut bytes, Lsn(4096 + 50), None, |_, _| ());
    assert_eq!((walked.bytes, walked.mtrs), (bytes.len(), 1));
    assert_eq!(bytes, mtr(&records, 1, Some(*b"12345678")));
    assert_eq!(walk(MtrWalker::linear(false), &mut bytes, 1, None).2, WalkStop::CrcMismatch);
}

/// Whatever the ciphertext is, kinds and lengths are those of the plain records.
#[test]
fn file_operations_of_an_encrypted_log_are_told_by_kind_and_length() {
    let scrambled = |kind: u8, space: u32, names: &[u8]| {
        let mut record = file_record(kind, space, names);
        let head = if names.len() + 3 < 16 { 1 } else { 2 };
        record[head..].iter_mut().for_each(|byte| *byte ^= 0xA5);
        record
    };
    let long = [b'x'; 90];
    let records = [
        scrambled(0x80, 3, b"./db/t.ibd"),
        scrambled(0x90, 0x4100, b"./db/t.ibd"),
        scrambled(0xA0, 0x90, &long),
        scrambled(0xB0, u32::MAX >> 11, &long),
        record(0xC0, b"strange"),
    ];
    let mut seen = Vec::new();
    let mut bytes = mtr(&records.concat(), 1, Some(*b"12345678"));
    MtrWalker::linear(true).walk(&mut bytes, Lsn(1), None, |_, op| seen.push(format!("{op:?}")));
    let hidden = |kind, space, bytes| FileOp::Hidden { kind, bytes: hidden_bytes(SpaceId(space), bytes) };
    let expected = [
        hidden(FileOpKind::Create, 3, 10),
        hidden(FileOpKind::Delete, 0x4100, 10),
        hidden(FileOpKind::Rename, 0x90, 90),
        hidden(FileOpKind::Modify, u32::MAX >> 11, 90),
        FileOp::Unknown { kind: 0xC0 | 7 },
    ];
    assert_eq!(seen, expected.map(|op| format!("{op:?}")));
}

#[test]
fn file_operations_are_reported_with_their_lsn() {
    let long = [b"./db/".as_slice(), &[b'x'; 200], b".ibd"].concat();
    let mtrs = [
        mtr(&write_record(3, 4, b"page"), 1, None),
        mtr(&file_record(0x80, 300, &long), 1, None),
        mtr(
            &[
                file_record(0xB0, 5, b"./db/a.ibd"),
                file_record(0xA0, 6, b"./db/a.ibd\0./db/b.ibd"),
                file_record(0x90, 7, b"/abs/db/c.ibd"),
                record(0xF0, &[&[0, 0][..], &70_000u64.to_be_bytes()].concat()),
                // After a page record the bit means "same page as before".
                write_record(3, 4, b"page"),
                record(0xB0, b"not a file"),
            ]
            .concat(),
            1,
            None,
        ),
        mtr(&[record(0xC0, b"strange"), file_record(0xA0, 6, b"only one name")].concat(), 1, None),
    ];
    let starts: Vec<u64> = mtrs
        .iter()
        .scan(1000, |lsn, mtr| {
            let start = *lsn;
            *lsn += mtr.len() as u64;
            Some(start)
        })
        .collect();
    let mut seen = Vec::new();
    MtrWalker::linear(false).walk(&mut mtrs.concat(), Lsn(1000), None, |lsn, op| {
        seen.push((lsn.0, format!("{op:?}")));
    });
    let expected: Vec<_> = [
        (starts[1], FileOp::Create { space: SpaceId(300), path: &long }),
        (starts[2], FileOp::Modify { space: SpaceId(5), path: b"./db/a.ibd" }),
        (starts[2], FileOp::Rename { space: SpaceId(6), from: b"./db/a.ibd", to: b"./db/b.ibd" }),
        (starts[2], FileOp::Delete { space: SpaceId(7), path: b"/abs/db/c.ibd" }),
        (starts[2], FileOp::Checkpoint { lsn: Lsn(70_000) }),
        (starts[3], FileOp::Unknown { kind: 0xC0 | 7 }),
        (starts[3], FileOp::Unknown { kind: 0xA0 | 15 }),
    ]
    .map(|(lsn, op)| (lsn, format!("{op:?}")))
    .to_vec();
    assert_eq!(seen, expected);
}

#[test]
fn absolute_directories_become_slashes_of_the_same_length() {
    let plain = mtr(&write_record(3, 4, b"/abs/dir/"), 1, None);
    let before = [
        plain.clone(),
        mtr(&file_record(0xB0, 5, b"/abs/dir/db/a.ibd"), 1, None),
        mtr(&file_record(0xA0, 6, b"/abs/dir/in/db/a.ibd\0./db/b.ibd"), 1, None),
        mtr(&file_record(0xB0, 5, b"./abs/dir/db.ibd"), 1, None),
    ];
    // "/abs/dir/" has nine bytes: one dot, eight slashes.
    let after = [
        plain,
        mtr(&file_record(0xB0, 5, b".////////db/a.ibd"), 1, None),
        mtr(&file_record(0xA0, 6, b".///////////db/a.ibd\0./db/b.ibd"), 1, None),
        before[3].clone(),
    ];
    let mut buf = before.concat();
    let mut relocator = PathRelocator::new(["/abs/dir", "/abs/dir/in//"]).unwrap();
    assert_eq!(
        relocator.rewrite(&mut buf, Lsn(9)),
        Ok(Relocated { bytes: buf.len(), paths_changed: 2, kept_discarded: 0 })
    );
    assert_eq!(buf, after.concat());
    // In pieces, carrying what is left, the result is the same.
    let mut buf = before.concat();
    let mut done = 0;
    for end in (0..=before.concat().len()).step_by(11).chain([before.concat().len()]) {
        done += relocator.rewrite(&mut buf[done..end], Lsn(9)).unwrap().bytes;
    }
    assert_eq!((done, buf), (after.concat().len(), after.concat()));
}

/// A tablespace that was dropped, by a name that a file of the copy has or that was outside, is led to where nothing
/// is. One that exists keeps its names, be it new, or imported after it was discarded.
#[test]
fn what_is_gone_takes_no_file_of_what_is_there() {
    let mut copied = CopiedFiles::default();
    copied.add(b"db/was_outside.ibd", Some(SpaceId(5)), true);
    copied.add(b"db/at_home.ibd", Some(SpaceId(6)), false);
    copied.add(b"db/new.ibd", None, true);
    copied.add(b"db/imported.ibd", Some(SpaceId(8)), true);
    let before = [
        mtr(&file_record(0x90, 8, b"/x/db/imported.ibd"), 1, None),
        mtr(&file_record(0x90, 1, b"./db/was_outside.ibd"), 1, None),
        mtr(&file_record(0xA0, 5, b"/x/db/was_outside.ibd\0./db/was_outside.ibd"), 1, None),
        mtr(&file_record(0x90, 2, b"/x/db/at_home.ibd"), 1, None),
        mtr(&file_record(0xA0, 3, b"./db/at_home.ibd\0/x/db/other.ibd"), 1, None),
        mtr(&file_record(0x90, 3, b"/x/db/other.ibd"), 1, None),
        mtr(&file_record(0x90, 9, b"/x/db/new.ibd"), 1, None),
        mtr(&file_record(0x80, 4, b"/x/db/new.ibd"), 1, None),
    ];
    let after = [
        mtr(&file_record(0x90, 8, b".//db/imported.ibd"), 1, None),
        mtr(&file_record(0x90, 1, b".#db/was_outside.ibd"), 1, None),
        mtr(&file_record(0xA0, 5, b".//db/was_outside.ibd\0./db/was_outside.ibd"), 1, None),
        mtr(&file_record(0x90, 2, b"./#db/at_home.ibd"), 1, None),
        mtr(&file_record(0xA0, 3, b"./db/at_home.ibd\0./#db/other.ibd"), 1, None),
        mtr(&file_record(0x90, 3, b"./#db/other.ibd"), 1, None),
        mtr(&file_record(0x90, 9, b"./#db/new.ibd"), 1, None),
        mtr(&file_record(0x80, 4, b".//db/new.ibd"), 1, None),
    ];
    let mut buf = before.concat();
    let mut dropped = Dropped::default();
    MtrWalker::linear(false).walk(&mut buf, Lsn(9), None, |_, op| dropped.observe(op));
    let mut relocator = PathRelocator::new(["/x"]).unwrap().among(&copied, &dropped);
    let done = Relocated { bytes: buf.len(), paths_changed: 8, kept_discarded: 0 };
    assert_eq!(relocator.rewrite(&mut buf, Lsn(9)), Ok(done));
    assert_eq!(buf, after.concat());
    // Once more, as a restore that is continued does.
    let mut relocator = PathRelocator::new(["/x"]).unwrap().among(&copied, &dropped);
    assert_eq!(relocator.rewrite(&mut buf, Lsn(9)).unwrap().paths_changed, 0);
    assert_eq!(buf, after.concat());
}

/// After the deletion of a tablespace, every record that names it becomes a deletion until the tablespace is
/// created again; records of other tablespaces stay.
#[test]
fn a_discarded_tablespace_is_not_taken_up_again() {
    let before = [
        mtr(&file_record(0xA0, 5, b"./db/b.ibd\0./db/a.ibd"), 1, None),
        mtr(&file_record(0x90, 5, b"./db/a.ibd"), 1, None),
        mtr(&file_record(0xB0, 5, b"./db/a.ibd"), 1, None),
        mtr(&file_record(0xB0, 6, b"./db/c.ibd"), 1, None),
        mtr(&file_record(0xA0, 5, b"./db/a.ibd\0./db/longer_name.ibd"), 1, None),
        mtr(&file_record(0x80, 5, b"./db/new.ibd"), 1, None),
        mtr(&file_record(0xB0, 5, b"./db/new.ibd"), 1, None),
    ];
    let mut after = before.clone();
    after[2] = mtr(&file_record(0x90, 5, b"./db/a.ibd"), 1, None);
    after[4] = mtr(&file_record(0x90, 5, b"./db/a.ibd/./db/longer_name.ibd"), 1, None);
    let mut buf = before.concat();
    let mut relocator = PathRelocator::new([""; 0]).unwrap();
    let done = Relocated { bytes: buf.len(), paths_changed: 0, kept_discarded: 2 };
    assert_eq!(relocator.rewrite(&mut buf, Lsn(9)), Ok(done));
    assert_eq!(buf, after.concat());
}

#[test]
fn what_cannot_be_made_safe_is_refused() {
    let mut relocator = PathRelocator::new(["/abs/dir"]).unwrap();
    let mut refused = |records: &[u8]| relocator.rewrite(&mut mtr(records, 1, None), Lsn(9)).unwrap_err();
    assert_eq!(
        refused(&file_record(0xB0, 5, b"/abs/dire/db/a.ibd")),
        RelocateError::OutsidePath { lsn: Lsn(9), path: b"/abs/dire/db/a.ibd".to_vec() }
    );
    assert!(matches!(refused(&file_record(0xB0, 5, b"./../db/a.ibd")), RelocateError::OutsidePath { .. }));
    assert!(matches!(
        refused(&file_record(0xB0, 5, b"/abs/dir/../a.ibd")),
        RelocateError::OutsidePath { .. }
    ));
    assert_eq!(refused(&record(0xD0, b"strange")), RelocateError::UnknownRecord { lsn: Lsn(9), kind: 0xD7 });
    assert_eq!(
        relocator.rewrite(&mut [0; 64], Lsn(9)),
        Err(RelocateError::Damaged { lsn: Lsn(9), stop: WalkStop::SequenceMismatch })
    );
    for directory in ["/", "//", "", "relative", "./x"] {
        assert!(PathRelocator::new([directory]).is_err(), "{directory:?}");
    }
}

#[test]
fn absolute_paths_are_listed_once() {
    let mut paths = AbsolutePaths::default();
    assert!(paths.is_empty());
    paths.observe(FileOp::Modify { space: SpaceId(1), path: b"./db/t.ibd" });
    paths.observe(FileOp::Modify { space: SpaceId(1), path: b"/a/b/db/t.ibd" });
    paths.observe(FileOp::Rename { space: SpaceId(1), from: b"/a/b/db/t.ibd", to: b"/a/b/db/u.ibd" });
    assert_eq!(paths.iter().count(), 2);
    assert_eq!(paths.directories().into_iter().collect::<Vec<_>>(), [b"/a/b"]);
}

fn arbitrary_mtrs() -> impl Strategy<Value = Vec<(Vec<u8>, bool)>> {
    let records = proptest::collection::vec(
        (any::<u32>(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..300)),
        1..5,
    )
    .prop_map(|records| {
        records
            .iter()
            .flat_map(|(space, page, data)| write_record(space % 90_000, page % 90_000, data))
            .collect()
    });
    proptest::collection::vec((records, any::<bool>()), 0..20)
}

proptest! {
    /// Everything written to a circle is read back, linear, in pieces of any size.
    #[test]
    fn a_circle_reads_back(mtrs in arbitrary_mtrs(), capacity in 500u64..5000, piece in 1usize..400) {
        let first_lsn = 8192;
        let at = first_lsn + capacity / 2;
        let mut written = Vec::new();
        let mut linear = Vec::new();
        for (records, _) in &mtrs {
            let marker_lsn = at + written.len() as u64 + records.len() as u64;
            let marker = 1 - (((marker_lsn - first_lsn) / capacity) & 1) as u8;
            written.extend(mtr(records, marker, None));
            linear.extend(mtr(records, 1, None));
        }
        let walker = circle(first_lsn, capacity, false);
        let (mut done, mut end, mut count) = (0, 0, 0);
        while end < written.len() {
            end = (end + piece).min(written.len());
            let walked = walker.walk(&mut written[done..end], Lsn(at + done as u64), None, |_, _| ());
            prop_assert_eq!(walked.stop, WalkStop::NeedMore);
            done += walked.bytes;
            count += walked.mtrs;
        }
        prop_assert_eq!(count, mtrs.len() as u64);
        prop_assert_eq!(done, written.len());
        prop_assert_eq!(written, linear);
    }

    /// Random bytes, with and without a valid CRC around them, never panic.
    #[test]
    fn hostile_redo_is_harmless(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
        kinds in proptest::collection::vec((8u8..16, proptest::collection::vec(any::<u8>(), 1..40)), 1..6),
        at: u64,
        capacity in 1u64..,
    ) {
        let _ = MtrWalker::linear(true).walk(&mut bytes, Lsn(at), None, |_, _| ());
        let _ = MtrWalker::linear(false).walk(&mut bytes, Lsn(at), Some(Lsn(at / 2)), |_, _| ());
        let _ = circle(4096, capacity.min(1 << 60), false).walk(&mut bytes, Lsn(at), None, |_, _| ());
        let records: Vec<u8> = kinds.iter().flat_map(|(kind, body)| record(kind << 4, body)).collect();
        let mut sealed = mtr(&records, 1, None);
        let mut paths = AbsolutePaths::default();
        MtrWalker::linear(false).walk(&mut sealed, Lsn(at), None, |_, op| paths.observe(op));
        let _ = PathRelocator::new(["/a"]).unwrap().rewrite(&mut sealed, Lsn(at));
    }
}
