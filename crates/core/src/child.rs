//! Makes programs that we start end with us.

use std::{os::unix::process::CommandExt, process::Command};

use rustix::{
    io::Errno,
    process::{Signal, getpid, getppid, set_parent_process_death_signal},
};

/// Has the program killed when the thread that starts it ends, for whatever reason.
#[allow(unsafe_code)]
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above.
        if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec, only two system calls are made; nothing is allocated and no lock is
    // taken.
    unsafe { command.pre_exec(in_child) };
}
