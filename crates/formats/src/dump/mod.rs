//! Dumps of `mysqldump`, `mariadb-dump` and mydumper: statements from their text ([`reader`]), tokens of a
//! statement ([`mod@tokens`]), and what a dump says about itself ([`about`], [`metadata`]).
//!
//! Dumps are untrusted text: every parser here is total, and keeps no more than the bounds that it is given.

pub mod about;
pub mod metadata;
pub mod reader;
pub mod tokens;

pub use about::About;
pub use metadata::Metadata;
pub use reader::{DumpError, DumpReader, Ending, Grammar, Piece};
pub use tokens::{Token, tokens};

pub use crate::sql::Modes;
