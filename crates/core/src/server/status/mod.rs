//! A server's positions at one moment: LSNs, binlog and GTID positions, replication.
//!
//! Two positions belong together only if the caller reads both under a suitable lock; only MySQL's
//! `log_status` is consistent by itself.

mod binlog;
mod log_status;
mod redo;
mod replica_channels;
mod start;
mod values;
mod xa_decisions;

pub(crate) use binlog::binlog_order;
pub use binlog::{BinlogPosition, MariaDbPosition, binlog_status};
pub use log_status::{LogStatus, MySqlPosition, mysql_durable_end, mysql_position};
pub use redo::{MariaDbLsns, MySqlRedoStatus, alter_instance_count, flush_engine_logs, log_bytes_written};
pub(crate) use replica_channels::REPLICA_FILTERS;
pub use replica_channels::{ReplicaChannel, refuse_gaps};
pub(crate) use replica_channels::{applied, applied_in_tables};
pub use start::{ServerStart, clock};
pub use xa_decisions::XaDecisions;
