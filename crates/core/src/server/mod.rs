//! The SQL side of a running server, and the server programs that we run ourselves.
//!
//! Everything that speaks SQL is in this folder, so that the flavors differ here and nowhere above it. Each
//! module uses only the modules listed before it:
//!
//! - [`version`]: the version that a server reports.
//! - [`connection`]: how to reach a server, and the session that queries it.
//! - [`bulk`]: statements and rows by the million, bypassing the client library.
//! - [`facts`]: what a server is and can do, and which rights our account has.
//! - [`tables`]: which tables and tablespaces it has.
//! - [`status`]: the server's positions at one moment.
//! - [`locks`]: the locks that we hold on it, and for how long.
//! - `passwords`: statements as they may be shown; uses none of them.
//! - [`programs`]: servers that we run ourselves; uses only [`version`] and [`connection`].
//!
//! Invariants:
//!
//! - A session that holds a lock or a redo consumer is a [`HeldSession`]: it pings while idle, has the server
//!   drop it after [`WAIT_TIMEOUT`] of silence, and can be given a deadline. A frozen or cut-off client never
//!   blocks a server.
//! - Locks are requested with a short `lock_wait_timeout`, because a waiting lock request makes others wait
//!   behind it.
//! - A server's capabilities are probed, never inferred from its version number.
//! - Passwords are [`Secret`]s: they appear in no error, no event and no `Debug` output.

pub mod bulk;
pub mod connection;
pub mod facts;
mod identity;
pub mod locks;
mod passwords;
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
    Attempt, BackupStages, HeldSession, InstanceLock, LockLimits, LockPolicy, LockRecord, RedoConsumer,
    Stage, TableLock, WAIT_TIMEOUT,
};
pub(crate) use passwords::{quoted_without_passwords, without_passwords};
pub use tables::{TableInventory, TableName};
pub use version::ServerVersion;
