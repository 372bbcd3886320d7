//! Real servers, data sets and loads for the tests.
//!
//! A test starts a [`Server`] of some [`ServerKind`] in a scratch directory, fills it from [`data`], and
//! keeps it busy with [`load`].
//! A second server, started on a restored directory, then catches up as its [`replica`].
//! Equal [`checksum`]s of all tables prove that the restored directory was the source at the recorded
//! position.
//!
//! Invariants: all randomness comes from a seed; nothing is written outside the scratch directory, except the
//! cache of initialised data directories beside the servers; no server survives the process that started it.

pub mod azurite;
pub mod checksum;
pub mod data;
pub mod encryption;
pub mod keyring;
pub mod kind;
pub mod load;
pub mod network;
pub mod object_storage;
pub mod observe;
pub mod pitr;
pub mod port;
pub mod program;
pub mod proxy;
pub mod replica;
pub mod rng;
pub mod schema;
pub mod server;
mod spawn;
pub mod sshd;
pub mod tables;
pub mod tls;
pub mod wire;

pub use checksum::assert_equal_checksums;
pub use kind::{ServerKind, servers_dir};
pub use server::{Server, ServerOptions};
