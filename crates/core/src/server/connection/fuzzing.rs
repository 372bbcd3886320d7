//! Entry points for the fuzzer: a login through a relay. Not part of the product; compiled only for the fuzzer and
//! for its own test.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
};

use super::relay::{Login, Plain, Security};

/// What is made of longer inputs might not fit into a socket's buffer.
pub(crate) const INPUT_BYTES_MAX: usize = 16 << 10;

/// Relays a login, of which the input has what the server sends, and behind the first `0xDB` what the client
/// answers.
pub fn login(input: &[u8]) {
    let input = &input[..input.len().min(INPUT_BYTES_MAX)];
    let begin = input.iter().position(|byte| *byte == 0xDB).unwrap_or(input.len());
    let (server, library) = (&input[..begin], input.get(begin + 1..).unwrap_or_default());
    let _refused = relayed(server, library);
}

/// What reaches the client of such a login, before it ends or fails.
fn relayed(server: &[u8], library: &[u8]) -> io::Result<Vec<u8>> {
    let (server, _server) = says(server)?;
    let (library, mut client) = says(library)?;
    let security = Security::TlsIfOffered { or: Plain::Open };
    let mut login = Login { library, server, tls: None, security, shift: 0 };
    let _failed = login.run();
    drop(login);
    let mut heard = Vec::new();
    client.read_to_end(&mut heard)?;
    Ok(heard)
}

/// A socket from which `words` can be read and nothing else, and its other end.
pub(crate) fn says(words: &[u8]) -> io::Result<(UnixStream, UnixStream)> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(words)?;
    theirs.shutdown(Shutdown::Write)?;
    Ok((ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry point takes anything, and gets through to the server's last word.
    #[test]
    fn anything_is_relayed() {
        for input in [&b""[..], b"\xDB", b"\0\0\0\0", b"\xff\xff\xff\0", b"\x01\0\0\0\x0a\xDB\x01\0\0\x01"] {
            login(input);
        }
        let greeting = b"\x01\0\0\0\x0a";
        let ok = b"\x01\0\0\x02\0";
        let heard = relayed(&[&greeting[..], ok].concat(), b"\x01\0\0\x01a").unwrap();
        assert_eq!(heard, [&greeting[..], ok].concat());
    }
}
