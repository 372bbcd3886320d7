//! Logical backups: rows and statements of a running server, from one consistent view.
//!
//! [`run_to`] takes one, into one repository or several. What it does is in the folders, of which each uses those
//! before it:
//!
//! 1. `sql`: text of statements. [`selection`]: what is wanted. `crew`: several sessions on one task.
//! 2. [`stored`]: what a backup holds. `excluded`: what one of everything left out, by name.
//! 3. `catalog`: what is on a server, and how it is described.
//! 4. `view`: one moment for several connections, by one of the methods of [`Method`].
//! 5. `reading`: the rows of all tables in key order, as the server sends them, into the repository.
//! 6. `take`: all of this in its order.
//!
//! And what is made of a backup: [`script`] turns it back into SQL, [`delimited`] into CSV and JSON, [`export`] into
//! files for other tools; [`diff`] compares two; [`load`] brings one into a running server. [`import`] makes one from
//! another tool's dump.
//!
//! Invariants: all rows are of one moment, or the table is named; objects that the account may not see fail
//! the backup; a value is stored as the bytes that the server holds, never converted.

mod catalog;
mod crew;
pub mod delimited;
pub mod diff;
pub(crate) mod excluded;
pub mod export;
pub mod import;
pub mod load;
mod reading;
pub mod script;
pub mod selection;
mod sql;
pub mod stored;
mod take;
mod view;

pub use selection::Selection;
pub(crate) use sql::quoted_text;
pub(crate) use stored::contents::table_name;
pub use take::{
    report::{LogicalReport, ReadFacts, TableFacts, ViewFacts},
    run, run_to,
};
pub use view::method::Method;
