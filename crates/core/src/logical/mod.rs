//! Logical backups: rows and statements of a running server, from one consistent view.
//!
//! [`run_to`] takes one, into one repository or several: `view` makes one view for several connections by one of the methods of `method`, `objects`, `accounts` and `tables` read what there
//! is and how it was made, `reading` brings the rows into the repository, in the order of their keys, as the server sends
//! them. [`definition`] is what is stored of each object beside its rows. `script` makes SQL of a backup again, [`load`]
//! brings one into a running server, [`import`] makes one of another tool's dump.
//!
//! Invariants: all rows are of one moment, or the table is named; what an account may not see fails the backup; a value
//! is stored as the bytes that the server holds, never as something that it was converted to.

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

pub use method::Method;
pub(crate) use objects::quoted_text;
pub use report::{LogicalReport, ReadFacts, TableFacts, ViewFacts};
pub use selection::Selection;
pub use take::{run, run_to};
