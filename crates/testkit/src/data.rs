//! Data sets: [`shop`], realistic and of any size; [`misc`], with one table of every kind that a backup could
//! get wrong; [`pages`], with one of every page format; [`names`], with one of every kind of name.

pub mod misc;
pub mod names;
pub mod pages;
pub mod shop;
mod text;

pub(crate) use text::{Vocabulary, push_hex};
