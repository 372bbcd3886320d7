//! The SQL side of a running server, and server programs run by us.
//!
//! Everything that speaks SQL is here, so that the flavors differ in this folder and nowhere above it. Invariants:
//!
//! - A session that holds a lock or a redo consumer is a [`HeldSession`]: it pings while idle, asks the server to drop
//!   it after [`WAIT_TIMEOUT`] of silence, and can be given a deadline. A frozen or cut-off client never holds a server.
//! - Locks are asked for with a short `lock_wait_timeout`, because a lock that waits makes others wait behind it.
//! - What a server can do is probed, never concluded from its version number.
//! - Passwords are [`Secret`]s: they appear in no error, no event and no `Debug` output.

pub mod bulk;
pub mod connect;
pub mod facts;
pub mod for_many;
pub mod grants;
pub mod held_session;
pub mod instance_lock;
pub mod inventory;
pub mod lock;
pub mod mariadb_stages;
pub(crate) mod membership;
pub mod option_file;
mod own_account;
mod own_options;
mod prepared;
pub mod process;
pub mod raw;
pub mod redo_consumer;
mod relay;
mod replica_channels;
pub mod session;
mod sql_error;
pub mod stale;
pub mod status;
pub mod table_lock;
mod table_name;
mod tablespaces;
mod tls;
pub mod tunnel;
pub mod version;
pub mod wire;

pub use connect::{ConnectOptions, Purpose, Secret, SslMode};
pub use facts::{Capabilities, ServerFacts};
pub use grants::{check_binlog_grants, check_grants};
pub use held_session::{HeldSession, WAIT_TIMEOUT};
pub use instance_lock::InstanceLock;
pub use inventory::TableInventory;
pub use lock::{Attempt, LockLimits, LockRecord};
pub use mariadb_stages::{BackupStages, Stage};
pub use option_file::OptionFile;
pub(crate) use own_account::OwnAccount;
pub(crate) use own_options::{option_of, own_options};
pub use redo_consumer::RedoConsumer;
pub use session::{ByteRow, Row, Session};
pub(crate) use sql_error::code;
pub use sql_error::{SqlCause, SqlError};
pub use table_lock::TableLock;
pub use table_name::TableName;
pub use tunnel::{SshHost, SshOptions, Tunnel};
pub use version::ServerVersion;

/// What our sessions are called in the server's connection attributes.
pub const PROGRAM_NAME: &str = "holdfast";
/// The connection attribute that names the run.
const RUN_ATTRIBUTE: &str = "holdfast_run";
/// The connection attribute that names a session's [`Purpose`].
const PURPOSE_ATTRIBUTE: &str = "holdfast_purpose";
