//! Named points at which a test can kill the process or inspect its state.

use std::{fmt, sync::Arc};

type Hook = dyn Fn(&'static str) + Send + Sync;

/// What to do at named points: nothing, unless a test sets a hook.
#[derive(Clone, Default)]
pub struct Hooks(Option<Arc<Hook>>);

impl Hooks {
    /// Calls `hook` with the name of each point, on whichever thread reaches it.
    pub fn new(hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    /// Marks the point `name`.
    pub fn point(&self, name: &'static str) {
        if let Some(hook) = &self.0 {
            hook(name);
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Hooks(set)" } else { "Hooks(none)" })
    }
}
