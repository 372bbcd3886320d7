//! Where a server stands at a moment: LSNs, binlog and GTID positions, replication.
//!
//! Whether two of these belong together is for the caller to ensure, by the lock under which it asks; only MySQL's
//! `log_status` is consistent in itself.

mod binlog;
mod log_status;
mod redo;
mod replica_channels;
mod start;
mod values;

pub(crate) use binlog::binlog_order;
pub use binlog::{BinlogPosition, MariaDbPosition, binlog_status};
pub use log_status::{LogStatus, MySqlPosition, mysql_durable_end, mysql_position};
pub use redo::{MariaDbLsns, MySqlRedoStatus, alter_instance_count, flush_engine_logs, log_bytes_written};
pub(crate) use replica_channels::REPLICA_FILTERS;
pub use replica_channels::{ReplicaChannel, refuse_gaps};
pub use start::{ServerStart, clock};
