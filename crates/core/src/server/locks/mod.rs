//! What we hold on a server: locks of both flavors and the redo consumer, each in a session that lets go when
//! it must. Also finds what earlier runs may still hold.

mod held_lock;
mod held_session;
mod instance_lock;
mod lock;
mod mariadb_stages;
mod redo_consumer;
pub mod stale;
mod table_lock;

pub use held_lock::HeldLock;
pub use held_session::{HeldSession, WAIT_TIMEOUT};
pub use instance_lock::InstanceLock;
pub use lock::{Attempt, LockLimits, LockPolicy, LockRecord};
pub use mariadb_stages::{BackupStages, Stage};
pub use redo_consumer::RedoConsumer;
pub use table_lock::{STOPPED_PURGE_NOTE, TableLock, is_held_to_stop_purge};
