//! Logical backups: rows and statements of a running server, from one consistent view.
//!
//! [`run_to`] takes one, into one repository or several. `view` makes one view for several connections by one
//! of the methods of `method`; `objects`, `accounts` and `tables` read which objects exist and how they were
//! created; `reading` brings the rows into the repository in key order, as the server sends them.
//! [`definition`] is what is stored of each object besides its rows. `script` turns a backup back into SQL,
//! [`load`] brings one into a running server, and [`import`] makes one from another tool's dump.
//!
//! Invariants: all rows are of one moment, or the table is named; objects that the account may not see fail
//! the backup; a value is stored as the bytes that the server holds, never converted.

mod accounts;
mod charset;
mod computed;
mod contents;
mod crew;
pub mod definition;
pub mod delimited;
pub mod diff;
pub mod export;
pub mod import;
mod in_the_way;
mod key;
pub mod load;
mod members;
mod method;
mod objects;
mod omitted;
mod origin;
mod position;
mod privileges;
mod reading;
mod references;
mod report;
mod room;
mod rows;
pub mod script;
pub mod selection;
mod settings;
mod tables;
mod take;
mod tee;
mod uses;
pub mod values;
mod view;

pub(crate) use contents::table_name;
pub use method::Method;
pub(crate) use objects::quoted_text;
pub use report::{LogicalReport, ReadFacts, TableFacts, ViewFacts};
pub use selection::Selection;
pub use take::{run, run_to};
