//! Named points of an operation, at which a test can stop it, kill it, or run SQL.
//!
//! In production a point costs one load of a flag.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

type Hook = Box<dyn Fn(&str) + Send + Sync>;

static SET: AtomicBool = AtomicBool::new(false);
static HOOK: OnceLock<Hook> = OnceLock::new();

/// Calls `hook` at every point from now on. Only the first call in a process has an effect.
pub fn set_hook(hook: impl Fn(&str) + Send + Sync + 'static) {
    if HOOK.set(Box::new(hook)).is_ok() {
        SET.store(true, Ordering::Release);
    }
}

/// Marks a point.
pub fn point(name: &str) {
    if SET.load(Ordering::Acquire)
        && let Some(hook) = HOOK.get()
    {
        hook(name);
    }
}
