//! Entry points for the fuzzer: what a server answers to statements. Not part of the product; compiled only for
//! the fuzzer and for its own test.

use std::{io, os::unix::net::UnixStream};

use super::{prepared::Prepared, raw, wire::Wire};
use crate::server::connection::fuzzing::{INPUT_BYTES_MAX, says};

/// Reads an answer made from the input: as that to a query, to a statement without rows, and to one that is to be
/// prepared.
///
/// Each packet of it is two bytes for its length, and its payload; its number is the right one.
pub fn answer(input: &[u8]) {
    let input = &input[..input.len().min(INPUT_BYTES_MAX)];
    let packets = packets(input);
    if let Ok(Ok(rows)) = read(&packets, raw::all_rows) {
        assert!(rows.len() <= packets.len());
        assert!(rows.iter().map(Vec::len).sum::<usize>() <= input.len());
    }
    let _refused = read(&packets, |socket| Wire::over(socket, 1).done());
    let _refused = read(&packets, |socket| Prepared::answer(&mut Wire::over(socket, 1)));
}

fn packets(mut input: &[u8]) -> Vec<u8> {
    let mut packets = Vec::new();
    let mut sequence = 1_u8;
    while let Some((length, rest)) = input.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (payload, after) = rest.split_at(length);
        packets.extend_from_slice(&(length as u32).to_le_bytes()[..3]);
        packets.push(sequence);
        packets.extend_from_slice(payload);
        (sequence, input) = (sequence.wrapping_add(1), after);
    }
    packets
}

/// Lets `reader` read `packets` from a socket, behind which nothing follows.
fn read<T>(packets: &[u8], reader: impl FnOnce(&mut UnixStream) -> T) -> io::Result<T> {
    let (mut ours, _theirs) = says(packets)?;
    Ok(reader(&mut ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry point takes anything, and gets through to the rows of an answer.
    #[test]
    fn anything_is_read() {
        for input in [&b""[..], b"\0\0", b"\x02\0\xff\xff", b"\x07\0\x05\0\x02\0\x01\0\0"] {
            answer(input);
        }
        let rows = b"\x01\0\x01\x03\0def\x05\0\xFE\0\0\x02\0\x02\0\x01a\x05\0\xFE\0\0\x22\0";
        assert_eq!(read(&packets(rows), raw::all_rows).unwrap().unwrap(), [b"\x01a"]);
        let prepared = packets(b"\x09\0\0\x07\0\0\0\0\0\x01\0\x03\0def\x05\0\xFE\0\0\x02\0");
        let answer = read(&prepared, |socket| Prepared::answer(&mut Wire::over(socket, 1)));
        assert_eq!(answer.unwrap().unwrap(), Some((7, 1)));
    }
}
