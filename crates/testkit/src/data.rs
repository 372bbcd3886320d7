//! Data sets: [`shop`], realistic and of any size, and [`misc`], one table of every kind that a backup could get wrong.

pub mod misc;
pub mod shop;
mod text;

pub(crate) use text::{Vocabulary, push_hex};
