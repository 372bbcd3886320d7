//! Whether a store in a directory is still where it was: a file system that is unmounted leaves the directory beneath, in
//! which nothing is to be begun anew.

use std::{fmt, sync::Mutex};

use holdfast_pipe::lock::lock;

use super::ObjectPath;

/// An object directly below the root that was seen: where it is not there, neither is the store.
#[derive(Debug, Default)]
pub struct Landmark(Mutex<Option<ObjectPath>>);

impl Landmark {
    /// An object was seen. The first directly below the root is kept in mind.
    pub fn saw(&self, path: &ObjectPath) {
        if !path.as_str().contains('/') {
            lock(&self.0).get_or_insert_with(|| path.clone());
        }
    }

    /// Objects are about to be deleted by this process.
    pub fn forget(&self, paths: &[ObjectPath]) {
        lock(&self.0).take_if(|landmark| paths.contains(landmark));
    }

    /// What must be there, if anything is known.
    #[must_use]
    pub fn get(&self) -> Option<ObjectPath> {
        lock(&self.0).clone()
    }
}

/// What is wrong where it is not there.
#[must_use]
pub fn is_gone(landmark: &ObjectPath, root: impl fmt::Display) -> String {
    format!("{landmark} is gone from {root}: has its file system been unmounted?")
}
