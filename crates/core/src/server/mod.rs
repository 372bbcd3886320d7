//! The SQL side of a running server, and server programs run by us.
//!
//! Everything that speaks SQL is here, so that the flavors differ in this folder and nowhere above it. Each of its parts
//! uses only those before it:
//!
//! - [`version`]: what a server says that it is.
//! - [`connection`]: how a server is reached, and the session that asks it.
//! - [`bulk`]: statements and rows by the million, past the client library.
//! - [`facts`]: what a server is and can do, and what our account may.
//! - [`tables`]: which tables and tablespaces it has.
//! - [`status`]: where it stands at a moment.
//! - [`locks`]: what we hold on it, and for how long.
//! - [`programs`]: servers that we run ourselves; uses [`version`] and [`connection`] alone.
//!
//! Invariants:
//!
//! - A session that holds a lock or a redo consumer is a [`HeldSession`]: it pings while idle, asks the server to drop
//!   it after [`WAIT_TIMEOUT`] of silence, and can be given a deadline. A frozen or cut-off client never holds a server.
//! - Locks are asked for with a short `lock_wait_timeout`, because a lock that waits makes others wait behind it.
//! - What a server can do is probed, never concluded from its version number.
//! - Passwords are [`Secret`]s: they appear in no error, no event and no `Debug` output.

pub mod bulk;
pub mod connection;
pub mod facts;
pub mod locks;
pub mod programs;
pub mod status;
pub mod tables;
pub mod version;

pub(crate) use connection::code;
pub use connection::{
    ByteRow, ConnectOptions, OptionFile, Purpose, Row, Secret, Session, SqlCause, SqlError, SshHost,
    SshOptions, SslMode, Tunnel,
};
pub use facts::{
    Capabilities, ServerFacts,
    grants::{check_binlog_grants, check_grants},
};
pub use locks::{
    Attempt, BackupStages, HeldSession, InstanceLock, LockLimits, LockRecord, RedoConsumer, Stage, TableLock,
    WAIT_TIMEOUT,
};
pub use tables::{TableInventory, TableName};
pub use version::ServerVersion;
