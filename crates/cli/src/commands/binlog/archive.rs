//! `binlog archive`: receives and stores a server's binlog until asked to stop.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Result,
    binlog::{ArchiveOptions, ArchiveReport, SpoolOptions, archive},
};
use holdfast_repo::Act;
use serde::Serialize;

use super::{Context, instant, repository, server};
use crate::{
    args::{
        binlog::{AckLevel, ArchiveArgs},
        units::ByteSize,
    },
    exit::Exit,
    output::{Render, text},
};

#[derive(Serialize)]
struct Archived {
    report: ArchiveReport,
}

impl Render for Archived {
    fn render(&self, out: &mut String) -> fmt::Result {
        let report = &self.report;
        for gap in &report.gaps {
            text::fact(out, "GAP", &gap.text)?;
        }
        if let Some(filters) = &report.leaves_out {
            text::fact(out, "LEFT OUT by the server", filters)?;
        }
        if report.unacknowledged > 0 {
            let commits = text::count(report.unacknowledged, "commit");
            text::fact(out, "UNACKNOWLEDGED", format!("{commits} returned before they were archived"))?;
        }
        if let Some(away) = &report.away {
            text::fact(out, "SERVER AWAY", away)?;
        }
        if report.unsent_segments > 0 {
            let segments = text::count(report.unsent_segments, "segment");
            text::fact(
                out,
                "NOT SENT YET",
                format!("{segments} still in the spool: run the archiver on this host again"),
            )?;
        }
        match &report.until {
            Some(until) => writeln!(out, "archived until {until} ({})", shown(report.last_at))?,
            None => writeln!(out, "this archiver has archived nothing")?,
        }
        let bytes = ByteSize(report.bytes);
        writeln!(
            out,
            "archive of {}: {bytes} in {} completed OK",
            report.source,
            text::count(report.runs.len() as u64, "run")
        )
    }
}

pub(super) fn run(args: ArchiveArgs, context: &Context<'_>) -> Result<Exit> {
    let typed = args.source.or(context.config.source.clone());
    let resources = context.config.resources.clone();
    let spool = args.spool_dir.filter(|_| args.ack == AckLevel::Local);
    let chosen = ArchiveOptions::new(server::connect_options(&typed, context)?);
    let options = ArchiveOptions {
        name: args.name.or_else(|| context.config.name.clone()),
        once: args.once,
        segment_age: args.segment_age.0,
        run_bytes: args.run_size.0,
        run_age: args.run_age.0,
        semi_sync: args.semi_sync,
        spool: spool.map(|dir| SpoolOptions { dir, bytes_max: args.spool_max.0 }),
        standby: args.standby,
        allow_replica_filters: args.allow_replica_filters,
        new_identity: args.new_identity,
        compression: resources.compress.unwrap_or(chosen.compression),
        compress_threads: resources.compress_threads.unwrap_or(chosen.compress_threads),
        ..chosen
    };
    let repo = Arc::new(repository::open_for(context, Act::Backup, "archiving a binlog")?);
    let report = archive(&repo, &options, &**context.output, context.cancel)?;
    let is_all_there = report.gaps.is_empty()
        && report.leaves_out.is_none()
        && report.unacknowledged == 0
        && report.unsent_segments == 0;
    let exit = if is_all_there { Exit::Done } else { Exit::Finding };
    context.output.result(exit, &Archived { report });
    Ok(exit)
}

fn shown(us: Option<u64>) -> String {
    us.map(|us| text::instant(instant(us))).unwrap_or_default()
}
