//! Stores on real servers.

#![allow(clippy::unwrap_used, reason = "tests")]

mod buckets;
mod hosts;
