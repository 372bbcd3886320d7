use holdfast_pipe::{HashKey, PageHash};
use proptest::{collection::vec, prelude::*};

use super::{leaf::sum, *};
use crate::format::names::{ChunkRef, PackId, RunNo};

fn any_chunk() -> impl Strategy<Value = ChunkRef> {
    (1..9_u64, 0..9_u32, 0..9_u32)
        .prop_map(|(run, part, ordinal)| ChunkRef { pack: PackId { run: RunNo(run), part }, ordinal })
}

fn any_totals() -> impl Strategy<Value = RowTotals> {
    (0..1_000_000_u64, 0..1_000_000_u64, any::<u128>()).prop_map(|(rows, bytes, checksum)| RowTotals {
        rows,
        bytes,
        checksum: RowsChecksum(checksum),
    })
}

pub(crate) fn any_entry() -> impl Strategy<Value = RowEntry> {
    let key = prop::option::of(vec(any::<u8>(), 0..20));
    (any_totals(), any::<[u8; 16]>(), any_chunk(), prop::option::of(any_chunk()), key).prop_map(
        |(totals, hash, chunk, base, key)| RowEntry {
            totals,
            hash: PageHash(hash),
            chunk,
            base,
            key: key.map(Vec::into_boxed_slice),
        },
    )
}

fn any_text() -> impl Strategy<Value = DefinitionText> {
    prop_oneof![
        vec(any::<u8>(), 0..200).prop_map(DefinitionText::Inline),
        vec((any_chunk(), any::<[u8; 16]>()), 1..5).prop_map(|chunks| DefinitionText::Chunks {
            len: (chunks.len() * DEFINITION_PIECE_BYTES) as u64,
            chunks: chunks.into_iter().map(|(chunk, hash)| (chunk, PageHash(hash))).collect(),
        }),
    ]
}

pub(crate) fn any_definition() -> impl Strategy<Value = DefinitionMap> {
    ("[a-z0-9-]{1,32}", any_text()).prop_map(|(kind, text)| DefinitionMap { kind, text })
}

pub(crate) fn any_table() -> impl Strategy<Value = TableMap> {
    let rows = prop_oneof![
        vec(any_entry(), 0..9).prop_map(TableRows::Inline),
        vec((any_chunk(), any::<[u8; 16]>(), 1..4_097_u32, any_totals()), 0..9).prop_map(|leaves| {
            let leaves = leaves.into_iter().map(|(chunk, hash, entries, totals)| RowLeafRef {
                chunk,
                hash: PageHash(hash),
                entries,
                totals,
            });
            TableRows::Leaves(leaves.collect())
        }),
    ];
    (any_text(), rows).prop_map(|(definition, rows)| {
        let totals = match &rows {
            TableRows::Inline(entries) => totals_of(entries),
            TableRows::Leaves(leaves) => sum(leaves.iter().map(|leaf| leaf.totals)),
        };
        TableMap { definition, totals: totals.unwrap(), rows }
    })
}

proptest! {
    #[test]
    fn leaves_come_back_and_no_cut_is_taken_for_them(entries in vec(any_entry(), 1..20)) {
        let mut encoded = Vec::new();
        entries.iter().for_each(|entry| put_entry(&mut encoded, entry));
        let plain = encode_leaf(entries.len(), &encoded);
        for cut in 0..plain.len() {
            prop_assert!(decode_leaf(&plain[..cut]).is_err());
        }
        prop_assert_eq!(decode_leaf(&plain), Ok(entries));
    }

    #[test]
    fn rows_come_back_from_their_chunk(rows in vec(vec(any::<u8>(), 0..40), 1..40)) {
        let mut plain = Vec::new();
        begin_rows(&mut plain);
        rows.iter().for_each(|row| put_row(&mut plain, row));
        let RowChunk::Whole(read) = RowChunk::parse(&plain).unwrap() else { panic!("a piece") };
        prop_assert_eq!(read.len(), rows.len());
        prop_assert!(read.eq(rows.iter().map(Vec::as_slice)));
    }

    /// The checksum is the same whether a row comes whole or in pieces.
    #[test]
    fn a_row_in_pieces_has_the_same_checksum(row in vec(any::<u8>(), 0..80), cut in 0..80_usize) {
        let key = RowHashKey::new(&HashKey::new([7; 32]));
        let (first, last) = row.split_at(cut.min(row.len()));
        let mut hasher = key.begin();
        hasher.update(first);
        hasher.update(last);
        prop_assert_eq!(hasher.checksum(), key.checksum(&row));
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = decode_leaf(&bytes);
        let _ = RowChunk::parse(&bytes);
    }
}

#[test]
fn the_checksum_does_not_depend_on_the_order_and_knows_how_often_a_row_is_there() {
    let key = RowHashKey::new(&HashKey::new([7; 32]));
    let of = |rows: &[&str]| {
        rows.iter().fold(RowsChecksum::default(), |sum, row| sum.and(key.checksum(row.as_bytes())))
    };
    assert_eq!(of(&["a", "b", "c"]), of(&["c", "a", "b"]));
    assert_ne!(of(&["a", "b"]), of(&["a", "b", "b"]));
    assert_ne!(of(&["a"]), of(&["a", "b", "b"]));
}

/// Borders are as rare as rows are short, so that the mean length of chunks does
/// not depend on the length of rows.
#[test]
fn borders_come_after_as_many_bytes_whatever_the_length_of_rows() {
    let hash_key = RowHashKey::new(&HashKey::new([7; 32]));
    for len in [16_usize, 256, 4_096] {
        let count = (512 << 18) / len;
        let borders = (0..count as u64)
            .filter(|number| Border::after(&hash_key, &number.to_le_bytes(), len) != Border::None);
        let borders = borders.count();
        assert!((400..640).contains(&borders), "{borders} borders in 512 times the mean, rows of {len}");
    }
    assert_ne!(Border::after(&hash_key, b"x", 1 << 18), Border::None);
}
