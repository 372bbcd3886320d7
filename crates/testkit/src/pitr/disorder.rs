//! Faults injected while clients write: at random moments, several at once, each for a while.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use super::clients::Clients;
use super::stage::Stage;
use crate::rng::Rng;

/// The target of a fault; each has at most one fault at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Archiver,
    Source,
    Store,
    ToSource,
    ToStore,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// SIGKILL; started again later.
    Killed,
    /// SIGSTOP; continued later.
    Frozen,
    /// Shut down; started again later.
    ShutDown,
    /// Connections are reset, and new ones are refused until later.
    Cut,
    /// Data is held back without any error until later.
    Held,
}

/// Each fault with its weight, its name, its target, its kind, and its longest duration in milliseconds.
const TROUBLES: [(u64, &str, Subject, Fate, u64); 10] = [
    (26, "archiver killed", Subject::Archiver, Fate::Killed, 1500),
    (8, "archiver frozen", Subject::Archiver, Fate::Frozen, 4000),
    (14, "source killed", Subject::Source, Fate::Killed, 1000),
    (4, "source shut down", Subject::Source, Fate::ShutDown, 1000),
    (5, "source frozen", Subject::Source, Fate::Frozen, 3000),
    (14, "store killed", Subject::Store, Fate::Killed, 3000),
    (8, "store frozen", Subject::Store, Fate::Frozen, 5000),
    (8, "network to the source cut", Subject::ToSource, Fate::Cut, 2000),
    (6, "network to the source held", Subject::ToSource, Fate::Held, 4000),
    (7, "network to the store cut", Subject::ToStore, Fate::Cut, 3000),
];

/// Pauses, and backups that are taken in between.
const LONGEST_QUIET_MS: u64 = 1200;
const BACKUPS: [&str; 3] = ["", "--full", "--method logical"];

struct Trouble {
    subject: Subject,
    fate: Fate,
    ends: Instant,
}

/// Injects faults for `time`, and then repairs everything.
pub(super) fn reign(stage: &mut Stage, clients: &mut Clients, rng: &mut Rng, time: Duration) -> Result<()> {
    let over = Instant::now() + time;
    let mut troubles: Vec<Trouble> = Vec::new();
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        let is_over = now >= over;
        for trouble in std::mem::take(&mut troubles) {
            if now < trouble.ends && !is_over {
                troubles.push(trouble);
            } else {
                trouble.end(stage)?;
            }
            stage.disorder = Instant::now();
        }
        clients.check()?;
        stage.look_after_archiver()?;
        stage.look_after_backup()?;
        if is_over {
            break;
        }
        if now >= next {
            next = now + Duration::from_millis(rng.between(50, LONGEST_QUIET_MS));
            match rng.below(100) {
                0..12 if source_is_there(&troubles) => {
                    stage.source.exec("FLUSH BINARY LOGS")?;
                    stage.count("binlogs flushed");
                }
                12..30 if stage.backup.is_none() && source_is_there(&troubles) => {
                    stage.start_backup(BACKUPS[rng.index(BACKUPS.len())])?;
                }
                _ => troubles.extend(begin(stage, rng, &troubles)?),
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    while stage.backup.is_some() {
        stage.look_after_backup()?;
        stage.look_after_archiver()?;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn source_is_there(troubles: &[Trouble]) -> bool {
    troubles.iter().all(|trouble| trouble.subject != Subject::Source)
}

/// Begins a random fault, unless its target already has one.
fn begin(stage: &mut Stage, rng: &mut Rng, troubles: &[Trouble]) -> Result<Option<Trouble>> {
    let all: u64 = TROUBLES.iter().map(|(weight, ..)| weight).sum();
    let mut drawn = rng.below(all);
    let found = TROUBLES.into_iter().find(|(weight, ..)| match drawn.checked_sub(*weight) {
        Some(rest) => {
            drawn = rest;
            false
        }
        None => true,
    });
    let Some((_, name, subject, fate, longest)) = found else { return Ok(None) };
    let lasts = Duration::from_millis(rng.between(50, longest));
    if troubles.iter().any(|trouble| trouble.subject == subject) {
        return Ok(None);
    }
    match (subject, fate) {
        (Subject::Archiver, Fate::Killed) => drop(stage.archiver.take()),
        (Subject::Archiver, _) => {
            if let Some(archiver) = &mut stage.archiver {
                archiver.signal(Signal::STOP)?;
            }
        }
        (Subject::Source, Fate::Killed) => stage.source.kill9()?,
        // A server that dies while shutting down has crashed, and must be recovered from like any crash.
        (Subject::Source, Fate::ShutDown) => drop(stage.source.stop()),
        (Subject::Source, _) => stage.source.signal(Signal::STOP)?,
        (Subject::Store, Fate::Killed) => stage.network.store.kill(),
        (Subject::Store, _) => stage.network.store.signal(Signal::STOP)?,
        (Subject::ToSource, Fate::Cut) => stage.network.to_source.cut(),
        (Subject::ToSource, _) => stage.network.to_source.hold(),
        (Subject::ToStore, _) => stage.network.to_store.cut(),
    }
    stage.count(name);
    Ok(Some(Trouble { subject, fate, ends: Instant::now() + lasts }))
}

impl Trouble {
    fn end(self, stage: &mut Stage) -> Result<()> {
        match (self.subject, self.fate) {
            (Subject::Archiver, Fate::Killed) => stage.start_archiver()?,
            (Subject::Archiver, _) => {
                if let Some(archiver) = &mut stage.archiver {
                    archiver.signal(Signal::CONT)?;
                }
            }
            (Subject::Source, Fate::Killed | Fate::ShutDown) => stage.run_source()?,
            (Subject::Source, _) => stage.source.signal(Signal::CONT)?,
            (Subject::Store, Fate::Killed) => stage.network.store.start_again()?,
            (Subject::Store, _) => stage.network.store.signal(Signal::CONT)?,
            (Subject::ToSource, _) => stage.network.to_source.mend(),
            (Subject::ToStore, _) => stage.network.to_store.mend(),
        }
        Ok(())
    }
}
