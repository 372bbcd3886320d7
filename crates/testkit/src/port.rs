//! Ports for servers that are told which to listen on.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

/// A port of 127.0.0.1 on which nobody listens, and that nobody in this process gets again: between the answer and the
/// server's start another test could be given it, and would talk to the wrong server.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return Ok(port);
        }
    }
}
