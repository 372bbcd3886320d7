//! A first backup while other connections change definitions: how long it keeps anybody from changing one.
//!
//! The storm creates, drops, renames, truncates, rebuilds and alters tables of all engines, at a rate that
//! leaves the machine room for more. Its own statements delay each other, too: see how no backup fares.

use anyhow::Result;
use holdfast_testkit::ServerKind;
use holdfast_testkit::load::{DdlStorm, StormOptions};

use super::busy::{take_turns, tools, turns_take_s, writers};
use super::{Scenario, group};
use crate::args::Options;
use crate::results::{Cache, Load, Unit};
use crate::run::Bench;
use crate::source::Source;
use crate::tool::{CopyDatadir, Tool};

const CONNECTIONS: u32 = 2;
const SEED: u64 = 2;

pub(crate) struct Storm;

impl Scenario for Storm {
    fn name(&self) -> &'static str {
        "storm"
    }

    fn about(&self) -> &'static str {
        "first backup while definitions change, and the longest change of one meanwhile"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        turns_take_s(kind, options)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Cold, Load::Definitions);
        let mut tools = tools(&bench.options, source.kind());
        // Files vanish while it copies them.
        tools.retain(|tool| tool.id() != CopyDatadir.id());
        let load = writers(&source.server)?;
        let storm = DdlStorm::start_with(&source.server, StormOptions::new(CONNECTIONS, SEED))?;
        take_turns(&group, &tools, bench, source, &load)?;
        storm.stop()?;
        load.stop()?;
        let what = ("definition", "longest change of a definition", Unit::Ms);
        bench.figures(&group, &tools, what, |sample| sample.clients?.definition_longest_ms);
        Ok(())
    }
}
