//! A first backup alongside sysbench, whose clients never pause: what the backup takes from them.

use anyhow::{Result, bail};
use holdfast_testkit::ServerKind;

use super::{Scenario, busy, group};
use crate::args::Options;
use crate::results::{Cache, Load};
use crate::run::Bench;
use crate::source::Source;
use crate::writers::Sysbench;

pub(crate) struct UnderSysbench;

impl Scenario for UnderSysbench {
    fn name(&self) -> &'static str {
        "sysbench"
    }

    fn about(&self) -> &'static str {
        "first backup under sysbench's oltp_read_write, unpaced: what is left to its clients"
    }

    fn expected_s(&self, kind: ServerKind, options: &Options) -> f64 {
        const TABLES_ARE_MADE_IN_S: f64 = 15.0;
        // The clients and the server use both processors, too.
        const SLOWER: f64 = 1.5;
        TABLES_ARE_MADE_IN_S + SLOWER * busy::turns_take_s(kind, options)
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        if let Some(missing) = Sysbench::missing() {
            bail!(missing);
        }
        let load = Sysbench::start(&source.server, bench.scratch.logs())?;
        let group = group(self, source.kind(), Cache::Cold, Load::Writes);
        let tools = busy::tools(&bench.options, source.kind());
        busy::take_turns(&group, &tools, bench, source, &load)?;
        load.stop()
    }
}
