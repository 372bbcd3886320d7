//! `version`: prints the versions of the program and of its repository format.

use std::fmt::{self, Write as _};

use holdfast_core::Result;
use serde::Serialize;

use crate::{commands::Context, exit::Exit, output::Render};

#[derive(Serialize)]
struct Version {
    version: &'static str,
    repository_format: u32,
}

impl Render for Version {
    fn render(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "holdfast {}, repository format {}", self.version, self.repository_format)
    }
}

pub(super) fn run(context: &Context<'_>) -> Result<Exit> {
    let version =
        Version { version: env!("CARGO_PKG_VERSION"), repository_format: holdfast_repo::keys::FORMAT };
    context.output.result(Exit::Done, &version);
    Ok(Exit::Done)
}
