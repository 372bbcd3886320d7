//! Statements and rows in bulk, over a session's own socket and bypassing the client library: rows as the
//! server sends them, and rows as its bulk loaders accept them.

pub mod for_many;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod prepared;
mod raw;
mod statements;
mod wire;

pub use raw::{ROW_WHOLE_MAX, RawReader, RawRows, RowPart};
pub(crate) use statements::shown;
pub use statements::{Feed, be_patient, exec, expect_many_rows, load, one_statement_at_a_time, patiently};
pub use wire::Done;
