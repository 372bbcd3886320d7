//! `holdfast-bench drain`: the minimum cost of reading all rows. Connections send the SELECTs that a dump
//! sends and discard the results without looking at them: no client that keeps the rows can be faster.
//!
//! It implements as much of the client protocol as that needs: an account without a
//! password, and text results.
//! Packets consist of a length of 3 bytes, a number of 1 byte and the payload; a result ends with the second
//! payload that begins with 0xFE and has less than 9 bytes.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::dataset::TABLES;

/// Pieces per table, so that connections that finish early find more work.
const PIECES_PER_TABLE: u64 = 16;

/// Where, and by how many.
#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    connections: usize,
}

/// Reads the schema `shop` once.
pub(crate) fn run(args: &DrainArgs) -> Result<()> {
    let queries = queries(&args.socket)?;
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let read = || -> Result<()> {
            let mut client = Client::connect(&args.socket)?;
            while let Some(query) = queries.get(next.fetch_add(1, Ordering::Relaxed)) {
                client.query(query, &mut |_| {})?;
            }
            Ok(())
        };
        let readers: Vec<_> = (0..args.connections).map(|_| scope.spawn(read)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().ok().context("a reader panicked")?)
    })
}

fn queries(socket: &Path) -> Result<Vec<String>> {
    let mut client = Client::connect(socket)?;
    let mut queries = Vec::new();
    for table in TABLES {
        let mut rows = Vec::new();
        client.query(&format!("SELECT MAX(id) FROM {table}"), &mut |row| rows.push(row.to_vec()))?;
        // The row has one column: its length, followed by digits.
        let digits = rows.first().and_then(|row| row.get(1..)).context("no row")?;
        let last: u64 = std::str::from_utf8(digits)?.parse()?;
        let step = last / PIECES_PER_TABLE + 1;
        queries.extend((0..PIECES_PER_TABLE).map(|piece| {
            let (first, end) = (piece * step, (piece + 1) * step);
            format!("SELECT * FROM {table} WHERE id >= {first} AND id < {end}")
        }));
    }
    Ok(queries)
}

struct Client {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// The part of the buffer that has not been consumed.
    filled: std::ops::Range<usize>,
}

const BUFFER_BYTES: usize = 1 << 20;
const PROTOCOL_41: u32 = 0x200;
const SECURE_CONNECTION: u32 = 0x8000;
const PLUGIN_AUTH: u32 = 0x8_0000;
const COM_QUERY: u8 = 3;
const COM_PING: u8 = 14;
const ROOM_BYTES: usize = 256 << 10;
const UTF8MB4: u8 = 45;

impl Client {
    fn connect(socket: &Path) -> Result<Client> {
        let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        let mut client = Client { stream, buffer: vec![0; BUFFER_BYTES], filled: 0..0 };
        client.packet(&mut |_| Ok(()))?;
        let mut login = Vec::new();
        login.extend_from_slice(&(PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH).to_le_bytes());
        login.extend_from_slice(&(1_u32 << 30).to_le_bytes());
        login.push(UTF8MB4);
        login.extend_from_slice(&[0; 23]);
        login.extend_from_slice(b"root\0\0mysql_native_password\0");
        client.send(1, &login)?;
        // Without a password, every plugin accepts an empty answer.
        if client.status()? == 0xFE {
            client.send(3, &[])?;
            ensure!(client.status()? == 0, "the server refuses root without a password");
        }
        // The server's buffer grows to this size, which then is the amount it sends at once; Holdfast does
        // the same.
        client.send(0, &[&[COM_PING], &[0; ROOM_BYTES][..]].concat())?;
        ensure!(client.status()? == 0, "the server does not answer a ping");
        Ok(client)
    }

    fn send(&mut self, number: u8, payload: &[u8]) -> Result<()> {
        let len = u32::try_from(payload.len())?.to_le_bytes();
        self.stream.write_all(&[&[len[0], len[1], len[2], number], payload].concat())?;
        Ok(())
    }

    /// The first byte of a response.
    fn status(&mut self) -> Result<u8> {
        let mut status = None;
        self.packet(&mut |payload| match payload {
            [0xFF, ..] => bail!("{}", String::from_utf8_lossy(payload)),
            _ => {
                status = payload.first().copied();
                Ok(())
            }
        })?;
        status.context("an empty answer")
    }

    fn query(&mut self, query: &str, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.send(0, &[&[COM_QUERY], query.as_bytes()].concat())?;
        self.status()?;
        let mut ends = 0;
        while ends < 2 {
            self.packet(&mut |payload| {
                match payload {
                    [0xFE, ..] if payload.len() < 9 => ends += 1,
                    [0xFF, ..] => bail!("{}", String::from_utf8_lossy(payload)),
                    row if ends == 1 => each(row),
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Reads the next packet; none of the server's packets exceeds the buffer here.
    fn packet(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.fill(4)?;
        let at = self.filled.start;
        let header = &self.buffer[at..at + 4];
        let len = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        self.filled.start += 4;
        self.fill(len)?;
        let at = self.filled.start;
        self.filled.start += len;
        take(&self.buffer[at..at + len])
    }

    /// Makes sure that the buffer holds at least `bytes`.
    fn fill(&mut self, bytes: usize) -> Result<()> {
        ensure!(bytes <= self.buffer.len(), "a packet of {bytes} bytes");
        if self.buffer.len() - self.filled.start < bytes {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        while self.filled.len() < bytes {
            let read = self.stream.read(&mut self.buffer[self.filled.end..])?;
            ensure!(read > 0, "the server closed the connection");
            self.filled.end += read;
        }
        if self.filled.is_empty() {
            self.filled = 0..0;
        }
        Ok(())
    }
}
