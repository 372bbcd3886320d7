//! Faults that are injected while a backup runs.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_testkit::network::Network;
use holdfast_testkit::program::{Ended, Running};
use holdfast_testkit::rng::Rng;
use rustix::process::Signal;

use super::Reach;
use super::stage::{NAME, Stage};

/// Exit code of a command that another run blocks (`docs/reference/errors.md`).
const EXIT_BUSY: i32 = 8;

/// The fault drawn for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Nothing,
    /// The backup gets SIGKILL.
    Killed,
    /// The backup gets SIGSTOP, and SIGCONT after a while.
    Frozen,
    /// The server gets SIGKILL and is started again.
    ServerKilled,
    /// The server is shut down and started again.
    ServerRestarted,
    /// Old backups are dropped and their space is freed just before the backup.
    Pruned,
    /// Like [`Fault::Pruned`], but the prune gets SIGKILL and the backup starts immediately.
    PruneKilled,
    /// A second backup of the same source is attempted meanwhile; it must be refused.
    Rivalled,
    /// The connections to the server end, and no new one is made for a while.
    ServerCut,
    /// Nothing gets through to the server and back for a while, without any error.
    ServerSilent,
    /// The connections to the store end, and no new one is made for a while.
    StoreCut,
    /// The store gets SIGKILL, and is started again after a while.
    StoreKilled,
    /// The store gets SIGSTOP, and SIGCONT after a while.
    StoreFrozen,
}

impl Fault {
    pub(crate) const ALL: [Fault; 13] = [
        Fault::Nothing,
        Fault::Killed,
        Fault::Frozen,
        Fault::ServerKilled,
        Fault::ServerRestarted,
        Fault::Pruned,
        Fault::PruneKilled,
        Fault::Rivalled,
        Fault::ServerCut,
        Fault::ServerSilent,
        Fault::StoreCut,
        Fault::StoreKilled,
        Fault::StoreFrozen,
    ];

    pub(crate) fn draw(reach: Reach, rng: &mut Rng) -> Fault {
        if reach == Reach::Network && rng.percent(60) {
            return match rng.below(100) {
                0..20 => Fault::ServerCut,
                20..35 => Fault::ServerSilent,
                35..60 => Fault::StoreCut,
                60..85 => Fault::StoreKilled,
                _ => Fault::StoreFrozen,
            };
        }
        match rng.below(100) {
            0..28 => Fault::Nothing,
            28..46 => Fault::Killed,
            46..60 => Fault::Frozen,
            60..69 => Fault::ServerKilled,
            69..76 => Fault::ServerRestarted,
            76..84 => Fault::Pruned,
            84..94 => Fault::PruneKilled,
            _ => Fault::Rivalled,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Nothing => "nothing",
            Fault::Killed => "backup killed",
            Fault::Frozen => "backup frozen",
            Fault::ServerKilled => "server killed",
            Fault::ServerRestarted => "server restarted",
            Fault::Pruned => "pruned before",
            Fault::PruneKilled => "prune killed before",
            Fault::Rivalled => "second backup tried",
            Fault::ServerCut => "connections to the server cut",
            Fault::ServerSilent => "connections to the server silent",
            Fault::StoreCut => "connections to the store cut",
            Fault::StoreKilled => "store killed",
            Fault::StoreFrozen => "store frozen",
        }
    }

    /// Whether clients of the server lose their connections.
    pub(crate) fn is_of_the_server(self) -> bool {
        matches!(self, Fault::ServerKilled | Fault::ServerRestarted)
    }

    /// Whether the fault may make the backup fail.
    pub(crate) fn may_end_the_backup(self) -> bool {
        !matches!(self, Fault::Nothing | Fault::Pruned | Fault::PruneKilled | Fault::Rivalled)
    }

    /// Carries out the part of the fault that comes before the backup.
    pub(crate) fn prepare(self, stage: &Stage, rng: &mut Rng) -> Result<()> {
        let prune = || stage.holdfast.command("prune --grace 30s");
        if !matches!(self, Fault::Pruned | Fault::PruneKilled) || stage.backups.is_empty() {
            return Ok(());
        }
        stage.holdfast.command(format!("expire --name {NAME} --keep-last 2")).done()?;
        if self == Fault::Pruned {
            return prune().done().map(drop);
        }
        let mut prune = prune().start()?;
        thread::sleep(Duration::from_millis(rng.below(600)));
        prune.signal(Signal::KILL)?;
        prune.wait().map(drop)
    }

    /// Waits for a random moment of the backup, injects the fault, and waits for the backup to end. A backup
    /// may fail with what `is_excused`.
    pub(crate) fn strike(
        self,
        stage: &mut Stage,
        mut backup: Running,
        is_excused: impl Fn(&Ended) -> bool,
        rng: &mut Rng,
    ) -> Result<Ended> {
        let moment = moment(stage.backup_takes_s, rng);
        match self {
            Fault::Nothing | Fault::Pruned | Fault::PruneKilled => {}
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
                stage.run_source()?;
            }
            Fault::ServerRestarted => {
                thread::sleep(moment);
                // A server that dies while shutting down has crashed, and must be recovered from like any
                // crash.
                // MySQL 9.7.4 was seen to do so in the middle of DDL.
                stage.source.stop().ok();
                stage.run_source()?;
            }
            Fault::Rivalled => {
                thread::sleep(moment / 2);
                let rival = stage.back_up("").start()?.wait()?;
                let is_busy = rival.status.code() == Some(EXIT_BUSY);
                // The first backup may have ended already, or not yet begun.
                let ended = backup.wait()?;
                ensure!(
                    is_busy || rival.succeeded() || is_excused(&rival),
                    "a second backup: {}",
                    rival.output
                );
                ensure!(
                    rival.succeeded() || ended.status.code() != Some(EXIT_BUSY),
                    "two backups refused each other: {}",
                    ended.output
                );
                return Ok(if rival.succeeded() && !ended.succeeded() { rival } else { ended });
            }
            Fault::ServerCut
            | Fault::ServerSilent
            | Fault::StoreCut
            | Fault::StoreKilled
            | Fault::StoreFrozen => {
                thread::sleep(moment);
                let network = stage.network.as_mut().context("there is no network to disturb")?;
                self.disturb(network, rng)?;
            }
        }
        backup.wait()
    }

    /// Disturbs the network or the store for a while.
    fn disturb(self, network: &mut Network, rng: &mut Rng) -> Result<()> {
        let for_a_while = |rng: &mut Rng, longest_ms| {
            thread::sleep(Duration::from_millis(rng.between(50, longest_ms)));
        };
        match self {
            Fault::ServerCut => {
                network.to_source.cut();
                for_a_while(rng, 3000);
                network.to_source.mend();
            }
            Fault::ServerSilent => {
                network.to_source.hold();
                for_a_while(rng, 30_000);
                network.to_source.mend();
            }
            Fault::StoreCut => {
                network.to_store.cut();
                for_a_while(rng, 20_000);
                network.to_store.mend();
            }
            Fault::StoreKilled => {
                network.store.kill();
                for_a_while(rng, 10_000);
                network.store.start_again()?;
            }
            Fault::StoreFrozen => {
                network.store.signal(Signal::STOP)?;
                for_a_while(rng, 30_000);
                network.store.signal(Signal::CONT)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// A random moment between the start of a command and roughly its end.
pub(crate) fn moment(takes_s: f64, rng: &mut Rng) -> Duration {
    const OF_THE_TIME: f64 = 1.1;
    Duration::from_secs_f64(takes_s * OF_THE_TIME * rng.below(1000) as f64 / 1000.0)
}
