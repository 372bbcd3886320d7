//! Data sets: [`shop`], realistic and of any size; [`misc`], one table of every kind that a backup could get wrong;
//! [`pages`], one of every page format; [`names`], one of every kind of name.

pub mod misc;
pub mod names;
pub mod pages;
pub mod shop;
mod text;

pub(crate) use text::{Vocabulary, push_hex};
