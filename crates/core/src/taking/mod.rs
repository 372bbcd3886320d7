//! Takes a backup of a server, of any kind: what the user decides, whose history it belongs to, what it
//! builds on, how it gets into each of several repositories ([`Destinations`]), and how it is published.

mod branch;
mod destinations;
mod kept;
mod options;
mod publish;
mod report;
mod writers;

pub(crate) mod identity;
pub(crate) mod name;

pub use options::BackupOptions;
pub use report::{REPORT_SCHEMA, RunReport, StageTime};

pub(crate) use branch::Stored;
pub use branch::await_housekeeping;
pub(crate) use destinations::{Destinations, only};
pub(crate) use kept::Kept;
pub(crate) use publish::{HeadFields, Publication};
pub(crate) use writers::Writers;
