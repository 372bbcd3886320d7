//! Loads logical backups taken during the disorder into a running server, on which nothing is replayed: its
//! contents are judged directly, like those of recovered servers.

use anyhow::{Context, Result, ensure};

use super::binlog::History;
use super::model::State;
use super::stage::Stage;
use super::target::Judged;
use crate::server::{Server, ServerOptions};
use crate::tables::check_tables;

/// Loads the backup and compares all contents with the model at the recorded position; returns the number of
/// commits up to there.
pub(super) fn judge(stage: &Stage, id: &str, history: &History, judged: &mut Judged) -> Result<usize> {
    let commits = history.commits_at(&stage.report(id)?["report"]["position"])?;
    let copy = Server::start(stage.source.kind(), ServerOptions::default().parent(stage.dir()))?;
    let loaded = stage.holdfast.command(format!("restore {id} --to-server")).of(&copy).start()?.wait()?;
    ensure!(loaded.succeeded(), "restore --to-server: {}", loaded.output);
    let (wanted, found) = (history.state_after(commits)?, State::of(&copy)?);
    wanted.ensure_is(&found).with_context(|| format!("loaded, {commits} commits"))?;
    check_tables(&copy)?;
    judged.add(&wanted);
    Ok(commits)
}
