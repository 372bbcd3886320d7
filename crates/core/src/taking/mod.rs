//! Taking a backup of a server, of whichever kind: what the user decides, whose history it belongs to, what it builds on,
//! and how it is published.

mod kept;
mod options;
mod publish;
mod report;

pub(crate) mod identity;
pub(crate) mod name;

pub use options::BackupOptions;
pub use report::{REPORT_SCHEMA, RunReport, StageTime};

pub(crate) use kept::Kept;
pub(crate) use publish::{HeadFields, Publication};
