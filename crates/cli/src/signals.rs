//! SIGINT, SIGTERM and SIGHUP end the program with the code for it.
//!
//! Signals are watched only after passwords have been asked for: until then the default action is right, and
//! the prompt itself makes sure that the terminal echoes again (`password`).

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use holdfast_core::{Cancel, Context as _, Result};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::exit::Exit;

/// A signal within this time is the same request: `timeout` and some shells signal the process and then its group.
const SAME: Duration = Duration::from_millis(500);

/// The first signal asks the operation to stop and calls `first`, to inform the user; the
/// second ends the program. `first` must not wait for anything: no signal is seen meanwhile.
pub(crate) fn end_in_order(cancel: &Cancel, first: impl Fn() + Send + 'static) -> Result<()> {
    let cancel = cancel.clone();
    let began = OnceLock::new();
    watch(move || {
        let is_again = began.get().is_some_and(|began: &Instant| began.elapsed() >= SAME);
        if is_again || (cancel.is_cancelled() && began.get().is_none()) {
            exit_at_once();
        }
        if began.set(Instant::now()).is_ok() {
            cancel.cancel();
            first();
        }
    })
}

/// The first signal ends the program: for operations that leave nothing important behind.
pub(crate) fn end_at_once() -> Result<()> {
    watch(exit_at_once)
}

/// Ends the program without writing what is left in buffers: nobody may be reading.
fn exit_at_once() {
    signal_hook::low_level::exit(Exit::Interrupted.code().into())
}

fn watch(each: impl Fn() + Send + 'static) -> Result<()> {
    let ignored = ignored();
    let is_ignored = |signal: i32| signal != SIGTERM && ignored >> (signal - 1) & 1 == 1;
    let watched = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(watched).context("watch for signals")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || signals.forever().for_each(|_| each()))
        .context("start the thread that watches for signals")?;
    Ok(())
}

/// Signals that were ignored when the program was started (`nohup`), from the kernel: one bit per signal.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}
