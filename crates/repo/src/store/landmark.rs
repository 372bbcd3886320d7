//! Detects whether a store in a directory is still where it was: an unmounted file system leaves the
//! directory beneath, in which nothing must be begun anew.

use std::{fmt, sync::Mutex};

use holdfast_pipe::lock::lock;

use super::ObjectPath;

/// An object that was seen directly below the root: if it is not there, neither is the store.
#[derive(Debug, Default)]
pub struct Landmark(Mutex<Option<ObjectPath>>);

impl Landmark {
    /// Notes that an object was seen. The first one directly below the root is remembered.
    pub fn saw(&self, path: &ObjectPath) {
        if !path.as_str().contains('/') {
            lock(&self.0).get_or_insert_with(|| path.clone());
        }
    }

    /// Notes that this process is about to delete objects.
    pub fn forget(&self, paths: &[ObjectPath]) {
        lock(&self.0).take_if(|landmark| paths.contains(landmark));
    }

    /// The object that must exist, if one is known.
    #[must_use]
    pub fn get(&self) -> Option<ObjectPath> {
        lock(&self.0).clone()
    }
}

/// The error message for a landmark that is gone.
#[must_use]
pub fn is_gone(landmark: &ObjectPath, root: impl fmt::Display) -> String {
    format!("{landmark} is gone from {root}: has its file system been unmounted?")
}
