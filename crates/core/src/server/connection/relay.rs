//! Relays between the client library and a server that is reached by TLS or through a tunnel.
//!
//! The library speaks plain text on a private Unix socket, and so does the code that uses its socket directly
//! (rows in [`bulk`](crate::server::bulk), the binlog stream). A thread of the relay forwards it, over TLS
//! where that is agreed upon. So certificates are checked in one place, and the server is verified by its own
//! name, whatever the path to it.
//!
//! The relay parses the login packet by packet: TLS begins after the server's first packet, with a request
//! that the library does not send, so the numbers of the packets that follow differ by one. After the login,
//! it only copies bytes.
//!
//! Invariants: memory is bounded by the buffers of both directions; when one side closes, the other is
//! closed; the password is never sent in clear text ([`Security::Plain`]).

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use holdfast_pipe::lock::lock;
use mysql::DriverError;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt,
};
use rustls::ClientConnection;
use tempfile::TempDir;

use super::socket_dir;

/// Most bytes to read at once.
const READ_BYTES: usize = 128 << 10;
/// How long dropping a relay waits for the server to receive the goodbye.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// What protects the bytes in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    /// TLS, or no connection.
    Tls,
    /// TLS if the server offers it.
    TlsIfOffered { or: Plain },
    /// No protection by us.
    Plain(Plain),
}

/// What is known about a path without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    /// Nobody can eavesdrop.
    Private,
    /// Somebody might eavesdrop: a server that asks for the password itself does not get it.
    Open,
    /// Without TLS the login ends with [`DriverError::TlsNotSupported`], so that the library can connect by
    /// itself.
    Refused,
}

/// A thread that forwards the bytes of one connection.
#[derive(Debug)]
pub(super) struct Relay {
    ended: mpsc::Receiver<()>,
    failure: Arc<Mutex<Option<mysql::Error>>>,
    /// The socket's directory and path, for the library to connect to; removed once it has connected.
    way: Option<(TempDir, PathBuf)>,
}

impl Relay {
    /// Relays one connection to `server`. Waits for it to be made at [`path`](Self::path), and gives up after
    /// `timeout`.
    pub(super) fn start(
        server: UnixStream,
        security: Security,
        tls: Option<ClientConnection>,
        timeout: Duration,
    ) -> io::Result<Relay> {
        let dir = socket_dir::create()?;
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path)?;
        let (ending, ended) = mpsc::channel();
        let failure = Arc::<Mutex<_>>::default();
        thread::Builder::new().name("relay".to_owned()).spawn({
            let failure = Arc::clone(&failure);
            move || {
                let _ending: mpsc::Sender<()> = ending;
                let outcome = accept(listener, timeout).and_then(|library| {
                    let mut login = Login { library, server, tls, security, shift: 0 };
                    for socket in [&login.library, &login.server] {
                        socket.set_read_timeout(Some(timeout))?;
                        socket.set_write_timeout(Some(timeout))?;
                    }
                    let outcome = login.run();
                    // Set before the library sees that its connection is closed.
                    *lock(&failure) = outcome.err();
                    Ok(login)
                });
                if let Ok(Login { library, server, tls, .. }) = outcome
                    && lock(&failure).is_none()
                {
                    // However copying ends, both sides are then closed, and notice it.
                    let _ended = Copying::new(library, server, tls).run();
                }
            }
        })?;
        Ok(Relay { ended, failure, way: Some((dir, path)) })
    }

    /// The path for the library to connect to.
    pub(super) fn path(&self) -> PathBuf {
        self.way.as_ref().map(|(_, path)| path.clone()).unwrap_or_default()
    }

    /// To be called when the library has connected or failed. If the relay knows a better reason for a
    /// failure, that is returned.
    pub(super) fn connected<T>(&mut self, outcome: mysql::Result<T>) -> mysql::Result<T> {
        self.way = None;
        outcome.map_err(|error| lock(&self.failure).take().unwrap_or(error))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.way = None;
        let _late = self.ended.recv_timeout(GOODBYE_MAX);
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: 0 }
}

fn accept(listener: UnixListener, timeout: Duration) -> io::Result<UnixStream> {
    let limit = timespec(timeout.max(Duration::from_secs(1)));
    if poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&limit))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(listener.accept()?.0)
}

/// Keepalive settings of a network connection: if nothing answers, the kernel drops it about as soon as a
/// server does.
pub(super) fn keep_alive(socket: &std::net::TcpStream) -> io::Result<()> {
    const PROBE_AFTER: Duration = Duration::from_secs(10);
    const PROBE_INTERVAL: Duration = Duration::from_secs(5);
    const PROBES: u32 = 2;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(())
}

// --- Login
// --------------------------------------------------------------------------------------------------------

/// First bytes of login packets.
mod first {
    pub(super) const OK: u8 = 0x00;
    pub(super) const MORE: u8 = 0x01;
    pub(super) const REFUSED: u8 = 0xFF;
}

/// What `caching_sha2_password` reports in a packet of [`first::MORE`].
mod sha2 {
    /// Success; [`super::first::OK`] follows on its own.
    pub(super) const FAST: u8 = 3;
    /// The server asks for the password itself.
    pub(super) const FULL: u8 = 4;
}

/// The capability by which a client requests TLS; it is in the first two bytes.
const CLIENT_SSL: u16 = 0x0800;
/// Length of a request for TLS: capabilities, packet size, character set, and a reserved part.
const TLS_REQUEST_BYTES: usize = 32;

pub(super) struct Login {
    pub(super) library: UnixStream,
    pub(super) server: UnixStream,
    pub(super) tls: Option<ClientConnection>,
    pub(super) security: Security,
    /// How much higher the server's packet numbers are than the library's.
    pub(super) shift: u8,
}

impl Login {
    pub(super) fn run(&mut self) -> mysql::Result<()> {
        let greeting = Packet::read(&mut self.server)?;
        if greeting.first() == Some(first::REFUSED) {
            greeting.write(&mut self.library, 0)?;
            return Ok(());
        }
        let plain = match (self.security, offers_tls(&greeting.payload)) {
            (Security::Tls, false) => return Err(DriverError::TlsNotSupported.into()),
            (Security::TlsIfOffered { or: Plain::Refused }, false) => {
                return Err(DriverError::TlsNotSupported.into());
            }
            (Security::TlsIfOffered { or }, false) => Some(or),
            (Security::Plain(plain), _) => Some(plain),
            (Security::Tls | Security::TlsIfOffered { .. }, true) => None,
        };
        if plain.is_some() {
            self.tls = None;
        }
        greeting.write(&mut self.library, 0)?;
        let mut answer = Packet::read(&mut self.library)?;
        if let Some(tls) = &mut self.tls {
            let Some(request) = answer.payload.get_mut(..TLS_REQUEST_BYTES) else {
                return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
            };
            request[1] |= CLIENT_SSL.to_be_bytes()[0];
            let request = Packet { sequence: answer.sequence, payload: request.to_vec() };
            request.write(&mut self.server, 0)?;
            while tls.is_handshaking() {
                tls.complete_io(&mut self.server)?;
            }
            self.shift = 1;
        }
        self.tell_server(&answer)?;
        loop {
            let packet = self.hear_server()?;
            let second = packet.payload.get(1).copied();
            let is_password_wanted = (packet.first(), second) == (Some(first::MORE), Some(sha2::FULL));
            if is_password_wanted && plain == Some(Plain::Open) {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, PASSWORD_KEPT).into());
            }
            packet.write(&mut self.library, self.shift.wrapping_neg())?;
            match (packet.first(), second) {
                (Some(first::OK | first::REFUSED), _) => return Ok(()),
                (Some(first::MORE), Some(sha2::FAST)) => {}
                _ => {
                    let answer = Packet::read(&mut self.library)?;
                    self.tell_server(&answer)?;
                }
            }
        }
    }

    fn tell_server(&mut self, packet: &Packet) -> io::Result<()> {
        match &mut self.tls {
            None => packet.write(&mut self.server, self.shift),
            Some(tls) => packet.write(&mut rustls::Stream::new(tls, &mut self.server), self.shift),
        }
    }

    fn hear_server(&mut self) -> io::Result<Packet> {
        match &mut self.tls {
            None => Packet::read(&mut self.server),
            Some(tls) => Packet::read(&mut rustls::Stream::new(tls, &mut self.server)),
        }
    }
}

/// The error for a login that was aborted because it would have revealed the password.
pub(super) const PASSWORD_KEPT: &str = "the server asks for the password in clear text, and the path from \
                                        the tunnel's far end to the server is not encrypted";

/// Whether the server's first packet offers TLS. The capabilities follow its version, a number, and eight
/// random bytes.
fn offers_tls(greeting: &[u8]) -> bool {
    const BETWEEN_BYTES: usize = 4 + 8 + 1;
    let Some(version_bytes) = greeting.iter().skip(1).position(|byte| *byte == 0) else { return false };
    let capabilities = greeting.get(1 + version_bytes + 1 + BETWEEN_BYTES..).and_then(<[u8]>::first_chunk);
    capabilities.is_some_and(|capabilities| u16::from_le_bytes(*capabilities) & CLIENT_SSL != 0)
}

/// One packet of a login.
#[derive(Debug, PartialEq, Eq)]
struct Packet {
    sequence: u8,
    payload: Vec<u8>,
}

impl Packet {
    /// More than any login packet needs.
    const BYTES_MAX: usize = 1 << 20;

    fn read(from: &mut impl Read) -> io::Result<Packet> {
        let mut head = [0; 4];
        from.read_exact(&mut head)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
        if length > Self::BYTES_MAX {
            return Err(io::Error::other(format!("a packet of {length} bytes in a login")));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload)?;
        Ok(Packet { sequence: head[3], payload })
    }

    fn write(&self, to: &mut impl Write, shift: u8) -> io::Result<()> {
        let mut bytes = (self.payload.len() as u32).to_le_bytes();
        bytes[3] = self.sequence.wrapping_add(shift);
        to.write_all(&[&bytes[..], &self.payload].concat())?;
        to.flush()
    }

    fn first(&self) -> Option<u8> {
        self.payload.first().copied()
    }
}

// --- After the login
// ------------------------------------------------------------------------------------------------

/// Bytes waiting to be sent to one side.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    begin: usize,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.begin == self.bytes.len()
    }

    /// Sends as much as the other side accepts now.
    fn send(&mut self, mut to: impl Write) -> io::Result<()> {
        while !self.is_empty() {
            match to.write(&self.bytes[self.begin..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.begin += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.begin = 0;
        Ok(())
    }
}

struct Copying {
    library: UnixStream,
    server: UnixStream,
    tls: Option<ClientConnection>,
    to_library: Pending,
    to_server: Pending,
    buffer: Vec<u8>,
}

impl Copying {
    fn new(library: UnixStream, server: UnixStream, tls: Option<ClientConnection>) -> Self {
        let (to_library, to_server) = Default::default();
        Self { library, server, tls, to_library, to_server, buffer: vec![0; READ_BYTES] }
    }

    /// Runs until one side closes. A side is read again once the other has accepted everything read from it
    /// so far.
    fn run(mut self) -> io::Result<()> {
        self.library.set_nonblocking(true)?;
        self.server.set_nonblocking(true)?;
        // Decrypts whatever arrived along with the last packet of the login.
        self.decrypt(0)?;
        loop {
            self.to_library.send(&self.library)?;
            self.to_server.send(&self.server)?;
            let when = |read: bool, write: bool| {
                let read = if read { PollFlags::IN } else { PollFlags::empty() };
                read | if write { PollFlags::OUT } else { PollFlags::empty() }
            };
            let of_library = when(self.to_server.is_empty(), !self.to_library.is_empty());
            let of_server = when(self.to_library.is_empty(), !self.to_server.is_empty());
            let mut ends = [PollFd::new(&self.library, of_library), PollFd::new(&self.server, of_server)];
            // A closed connection makes `poll` return at once, so a server that has closed is not polled
            // while its last words are on their way.
            let count = if of_server.is_empty() { 1 } else { 2 };
            match poll(&mut ends[..count], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let gone = PollFlags::HUP | PollFlags::ERR;
            let [library, server] = [ends[0].revents(), ends[1].revents()];
            if server.intersects(PollFlags::IN | gone) && of_server.contains(PollFlags::IN) {
                let count = match read(&mut self.server, &mut self.buffer)? {
                    Some(0) => return Ok(()),
                    count => count.unwrap_or(0),
                };
                self.decrypt(count)?;
            }
            if library.intersects(PollFlags::IN | gone) {
                if !of_library.contains(PollFlags::IN) && library.intersects(gone) {
                    return Ok(());
                }
                if of_library.contains(PollFlags::IN) {
                    match read(&mut self.library, &mut self.buffer)? {
                        Some(0) => return self.say_goodbye(),
                        count => self.encrypt(count.unwrap_or(0))?,
                    }
                }
            }
        }
    }

    /// Queues `count` bytes of the server, which are in the buffer, for the library.
    fn decrypt(&mut self, count: usize) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            self.to_library.bytes.extend_from_slice(&self.buffer[..count]);
            return Ok(());
        };
        let mut bytes = &self.buffer[..count];
        loop {
            if !bytes.is_empty() {
                tls.read_tls(&mut bytes)?;
            }
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let begin = self.to_library.bytes.len();
            self.to_library.bytes.resize(begin + state.plaintext_bytes_to_read(), 0);
            tls.reader().read_exact(&mut self.to_library.bytes[begin..])?;
            if bytes.is_empty() {
                break;
            }
        }
        self.flush_tls()
    }

    /// Queues `count` bytes of the library, which are in the buffer, for the server.
    fn encrypt(&mut self, count: usize) -> io::Result<()> {
        match &mut self.tls {
            None => self.to_server.bytes.extend_from_slice(&self.buffer[..count]),
            Some(tls) => {
                let mut bytes = &self.buffer[..count];
                while !bytes.is_empty() {
                    let taken = tls.writer().write(bytes)?;
                    bytes = &bytes[taken..];
                    while tls.wants_write() {
                        tls.write_tls(&mut self.to_server.bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn flush_tls(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut self.to_server.bytes)?;
            }
        }
        Ok(())
    }

    /// The library has closed its side: sends its last words to the server, if the server accepts them soon.
    fn say_goodbye(mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        self.flush_tls()?;
        self.server.set_nonblocking(false)?;
        self.server.set_write_timeout(Some(GOODBYE_MAX))?;
        self.to_server.send(&self.server)?;
        self.server.shutdown(Shutdown::Both)
    }
}

/// `None` if nothing can be read now.
fn read(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match from.read(buffer) {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
