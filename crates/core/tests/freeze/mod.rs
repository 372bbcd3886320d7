//! Processes of tests that are frozen in the middle of what they do.

use std::{thread::sleep, time::Duration};

use rustix::process::{Signal, getpid, kill_process};

/// Freezes this process, until somebody thaws it.
pub(crate) fn freeze_here() {
    kill_process(getpid(), Signal::STOP).unwrap();
    // The signal may reach another thread first, on a busy machine much later; this thread must not get any further
    // meanwhile.
    sleep(Duration::from_secs(1));
}
