//! Tests that mount file systems.

use std::{path::Path, process::Command};

const OWN_MOUNTS: &str = "HOLDFAST_TEST_OWN_MOUNTS";

/// Runs the test `name` in a process with its own mounts, which disappear with it, however it ends.
pub(crate) fn in_own_mounts(name: &str, test: impl FnOnce()) {
    if std::env::var_os(OWN_MOUNTS).is_some() {
        return test();
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "SIGKILL", "--", "unshare", "--mount", "--propagation", "private"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]);
    assert!(command.env(OWN_MOUNTS, "1").status().unwrap().success());
}

/// Whether something could be mounted at `dir`.
pub(crate) fn mounted(arguments: &[&str], dir: &Path) -> bool {
    Command::new("mount").args(arguments).arg(dir).status().unwrap().success()
}

/// Mounts something at `dir`.
pub(crate) fn mount(arguments: &[&str], dir: &Path) {
    assert!(mounted(arguments, dir));
}
