//! Handling of Ctrl-C: ends the tool that is being measured, and removes everything that the run has created.
//!
//! Measured processes have their own process groups, so the terminal's signal does not reach
//! them; it is passed on here.
//! A second signal ends the program immediately; the next run removes whatever is left behind (see
//! `scratch`).

use std::process;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

static REQUESTED: AtomicBool = AtomicBool::new(false);
/// The process group being measured; 0 if there is none.
static GROUP: AtomicI32 = AtomicI32::new(0);
const EXIT_INTERRUPTED: i32 = 130;

/// Starts watching for signals.
pub(crate) fn watch() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if REQUESTED.swap(true, Ordering::SeqCst) {
                process::exit(EXIT_INTERRUPTED);
            }
            kill_group();
        }
    });
    Ok(())
}

/// Fails once a signal has arrived.
pub(crate) fn check() -> Result<()> {
    if REQUESTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// While this value exists, a signal ends the process group.
pub(crate) struct Watched;

impl Watched {
    /// Registers the group that `leader` leads.
    pub(crate) fn group(leader: u32) -> Watched {
        GROUP.store(i32::try_from(leader).unwrap_or(0), Ordering::SeqCst);
        // The signal may have arrived after the process was started.
        if REQUESTED.load(Ordering::SeqCst) {
            kill_group();
        }
        Watched
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        GROUP.store(0, Ordering::SeqCst);
    }
}

/// Kills the group being measured, if there is one.
pub(crate) fn kill_group() {
    if let Some(group) = Pid::from_raw(GROUP.load(Ordering::SeqCst)) {
        // It may just have ended by itself.
        kill_process_group(group, Signal::KILL).ok();
    }
}
