//! Formats that other projects define: InnoDB and Aria pages, redo logs, binlogs, GTIDs, file names, SQL
//! text, dumps.
//!
//! Bytes in, values out. Nothing here reads a file, starts a thread or looks at a clock, and every parser is
//! total: hostile bytes give an error or a negative verdict, never a panic and never an unbounded allocation.
//! Where a layout comes from observation rather than from a specification, the item says on which server it
//! was verified. Integers in InnoDB files are big-endian.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aria;
mod be;
pub mod binlog;
pub mod checksum;
pub mod dump;
mod flavor;
pub mod gtid;
mod ids;
mod lsn;
pub mod page;
pub mod redo;
pub mod sql;
pub mod table_name;
pub mod tablespace;

pub use flavor::Flavor;
pub use gtid::{Gtid, Gtids, MariaDbGtidPos, MySqlGtidSet};
pub use ids::{PageNo, PageSize, SpaceId};
pub use lsn::{Lsn, LsnRange};
pub use page::{PageState, check_page};
pub use tablespace::Geometry;
