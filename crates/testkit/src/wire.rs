//! A connection that can be cut, or silently blocked.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Result;

/// A port that forwards to another one on this host, for as long as the process lives.
#[derive(Debug)]
pub struct Wire {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    to: AtomicU16,
    is_cut: AtomicBool,
    is_held: AtomicBool,
    /// Both ends of each connection.
    open: Mutex<BTreeMap<u64, [TcpStream; 2]>>,
    connections: AtomicU64,
}

impl Wire {
    /// Forwards to a port of this host.
    pub fn to(port: u16) -> Result<Wire> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let own = listener.local_addr()?.port();
        let state = Arc::new(State {
            to: AtomicU16::new(port),
            is_cut: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
            open: Mutex::default(),
            connections: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                accepting.connect(stream);
            }
        });
        Ok(Wire { port: own, state })
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Forwards to another port from now on.
    pub fn lead_to(&self, port: u16) {
        self.state.to.store(port, Ordering::SeqCst);
    }

    /// Resets all connections, and refuses new ones.
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
        self.state.close_all();
    }

    /// Accepts everything and forwards nothing.
    pub fn hold(&self) {
        self.state.is_held.store(true, Ordering::SeqCst);
    }

    /// Forwards everything again.
    pub fn mend(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
        self.state.is_held.store(false, Ordering::SeqCst);
    }
}

impl State {
    fn connect(self: &Arc<State>, near: TcpStream) {
        if self.is_cut.load(Ordering::SeqCst) {
            return;
        }
        let Ok(far) = TcpStream::connect(("127.0.0.1", self.to.load(Ordering::SeqCst))) else { return };
        near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).ok();
        let handles = || Ok::<_, std::io::Error>([near.try_clone()?, far.try_clone()?]);
        let (Ok(readers), Ok(ends), Ok(mut open)) = (handles(), handles(), self.open.lock()) else { return };
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        open.insert(number, ends);
        drop(open);
        for (from, to) in readers.into_iter().zip([far, near]) {
            let state = Arc::clone(self);
            thread::spawn(move || {
                state.pass(from, to);
                state.close(number);
            });
        }
        // The wire was cut in the meantime.
        if self.is_cut.load(Ordering::SeqCst) {
            self.close_all();
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len) = from.read(&mut buffer) {
            while self.is_held.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            if len == 0 || to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
    }

    fn close(&self, number: u64) {
        let ends = self.open.lock().ok().and_then(|mut open| open.remove(&number));
        for stream in ends.iter().flatten() {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn close_all(&self) {
        if let Ok(mut open) = self.open.lock() {
            for stream in std::mem::take(&mut *open).into_values().flatten() {
                stream.shutdown(Shutdown::Both).ok();
            }
        }
    }
}
