//! What a logical backup holds: definitions, rows, and where an imported one is from.

pub(super) mod charset;
pub(crate) mod contents;
pub mod definition;
pub(super) mod origin;
pub(super) mod rows;
pub(super) mod uses;
