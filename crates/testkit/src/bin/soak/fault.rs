//! What can go wrong while a backup runs.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use holdfast_testkit::program::{Ended, Running};
use holdfast_testkit::rng::Rng;
use rustix::process::Signal;

use super::stage::{NAME, Stage};

/// Drawn for each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Nothing,
    /// The backup gets SIGKILL.
    Killed,
    /// The backup gets SIGSTOP, and goes on after a while.
    Frozen,
    /// The server gets SIGKILL, and is started again.
    ServerKilled,
    /// The server is shut down and started again.
    ServerRestarted,
    /// The space of old backups is freed while the backup runs.
    PruneBeside,
    /// As before, but the freeing gets SIGKILL.
    PruneKilledBeside,
}

impl Fault {
    pub(crate) const ALL: [Fault; 7] = [
        Fault::Nothing,
        Fault::Killed,
        Fault::Frozen,
        Fault::ServerKilled,
        Fault::ServerRestarted,
        Fault::PruneBeside,
        Fault::PruneKilledBeside,
    ];

    pub(crate) fn draw(rng: &mut Rng) -> Fault {
        match rng.below(100) {
            0..35 => Fault::Nothing,
            35..52 => Fault::Killed,
            52..66 => Fault::Frozen,
            66..75 => Fault::ServerKilled,
            75..82 => Fault::ServerRestarted,
            82..92 => Fault::PruneBeside,
            _ => Fault::PruneKilledBeside,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Nothing => "nothing",
            Fault::Killed => "backup killed",
            Fault::Frozen => "backup frozen",
            Fault::ServerKilled => "server killed",
            Fault::ServerRestarted => "server restarted",
            Fault::PruneBeside => "prune beside it",
            Fault::PruneKilledBeside => "prune beside it, killed",
        }
    }

    /// Whether the server's clients lose their connections.
    pub(crate) fn is_of_the_server(self) -> bool {
        matches!(self, Fault::ServerKilled | Fault::ServerRestarted)
    }

    /// What must have happened before the backup begins: while it runs, no other may change which backups there are.
    pub(crate) fn prepare(self, stage: &Stage) -> Result<()> {
        if matches!(self, Fault::PruneBeside | Fault::PruneKilledBeside) && !stage.backups.is_empty() {
            stage.holdfast.command(format!("expire --name {NAME} --keep-last 2")).done()?;
        }
        Ok(())
    }

    /// Waits for a random moment of the backup, does it, and waits for the backup's end.
    pub(crate) fn strike(self, stage: &mut Stage, mut backup: Running, rng: &mut Rng) -> Result<Ended> {
        let moment = moment(stage.backup_takes_s, rng);
        match self {
            Fault::Nothing => {}
            Fault::Killed => {
                thread::sleep(moment);
                backup.signal(Signal::KILL)?;
            }
            Fault::Frozen => {
                thread::sleep(moment);
                backup.signal(Signal::STOP)?;
                thread::sleep(Duration::from_millis(rng.between(100, 6000)));
                backup.signal(Signal::CONT)?;
            }
            Fault::ServerKilled => {
                thread::sleep(moment);
                stage.source.kill9()?;
                stage.source.run()?;
            }
            Fault::ServerRestarted => {
                thread::sleep(moment);
                stage.source.restart()?;
            }
            Fault::PruneBeside | Fault::PruneKilledBeside => {
                let mut prune = stage.holdfast.command("prune --grace 30s").start()?;
                if self == Fault::PruneKilledBeside {
                    thread::sleep(moment);
                    prune.signal(Signal::KILL)?;
                } else {
                    let ended = prune.wait()?;
                    anyhow::ensure!(ended.succeeded(), "prune beside a backup: {}", ended.output);
                }
            }
        }
        backup.wait()
    }
}

/// From the first millisecond of a command to about its end.
pub(crate) fn moment(takes_s: f64, rng: &mut Rng) -> Duration {
    const OF_THE_TIME: f64 = 1.1;
    Duration::from_secs_f64(takes_s * OF_THE_TIME * rng.below(1000) as f64 / 1000.0)
}
