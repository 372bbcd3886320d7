//! Named points of an operation, at which a test can stop it, kill it, or run SQL.
//!
//! In production a point costs one load of a flag.

use std::{
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

type Hook = Box<dyn Fn(&str, Option<&Path>) + Send + Sync>;

static SET: AtomicBool = AtomicBool::new(false);
static HOOK: OnceLock<Hook> = OnceLock::new();

/// Calls `hook` at every point from now on. Only the first call in a process has an effect.
pub fn set_hook(hook: impl Fn(&str) + Send + Sync + 'static) {
    set_hook_of_files(move |name, _| hook(name));
}

/// As [`set_hook`], for a hook that also gets the file that the point concerns, if there is one.
pub fn set_hook_of_files(hook: impl Fn(&str, Option<&Path>) + Send + Sync + 'static) {
    if HOOK.set(Box::new(hook)).is_ok() {
        SET.store(true, Ordering::Release);
    }
}

/// Marks a point.
pub fn point(name: &str) {
    pass(name, None);
}

/// Marks a point that concerns one file.
pub fn point_of(name: &str, file: &Path) {
    pass(name, Some(file));
}

fn pass(name: &str, file: Option<&Path>) {
    if SET.load(Ordering::Acquire)
        && let Some(hook) = HOOK.get()
    {
        hook(name, file);
    }
}
