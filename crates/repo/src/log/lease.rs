//! Leases: a run shows that it is alive by creating one small object a minute
//! (`docs/reference/repository.md` section 12).
//!
//! They only decide how soon another may end the run. Whether it has been ended
//! is decided by its outcome alone.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use holdfast_pipe::lock::lock;
use serde::{Deserialize, Serialize};

use crate::{
    error::RepoError,
    format::{
        hex::{Hex, from_hex, to_hex},
        names::{Folder, LogName, RunNo},
        place::{ObjectKind, Place},
    },
    log::{ask::is_asked_for, client::ProcessId, outcome::Intent},
    repo::Repo,
    sealed::seal_object,
    store::{ObjectPath, StoreError, read_all},
};

/// A run without a renewal for this long, by the store's clock, may be ended by another.
pub const LEASE: Duration = Duration::from_secs(15 * 60);
/// The shortest lease that a run may choose instead.
pub const LEASE_MIN: Duration = Duration::from_secs(30);
/// How often a run that makes room checks whether it is asked to.
const LOOK_WHETHER_ASKED: Duration = Duration::from_secs(5);
/// The longest that anyone may rely on a listing made before looking at a lease.
const LOOK_MAX: Duration = Duration::from_secs(5 * 60);
/// How often a run renews its lease.
pub const RENEWAL: Duration = Duration::from_secs(60);

const LEASE_BYTES_MAX: u64 = 4096;
/// The highest renewal number that a name can hold: at one a minute, two years.
const RENEWAL_MAX: u32 = 999_999;

/// A host's name is shorter.
const HOST_BYTES_MAX: u64 = 256;

/// Contents of a lease object. It is readable without a key, so what tells who runs is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseObject {
    /// Random: lets a run recognize its own objects after a reply got lost.
    pub(crate) token: Hex<16>,
    /// What the run is to become, for whoever ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) intent: Option<Intent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<ProcessId>,
    /// Seconds without a renewal after which the run may be ended; absent:
    /// [`LEASE`], which is also the maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) patience_s: Option<u64>,
    /// Whether the run ends soon when it is asked to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) makes_room: bool,
    /// The name of its host, sealed; hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
}

/// Seals the name of a host for leases. They are prepared before the run has its number.
pub(crate) fn seal_host(repo: &Repo, log: &LogName, host: &str) -> Result<String, RepoError> {
    Ok(to_hex(&seal_object(repo.keys(), &place_of_host(log), host.as_bytes())?))
}

/// The name of the host; `None` if it cannot be opened. It is only told, so it need not be authentic.
fn open_host(repo: &Repo, log: &LogName, sealed: &str) -> Option<String> {
    let name = repo.open_object(&place_of_host(log), &from_hex(sealed)?, HOST_BYTES_MAX).ok()?;
    let name = String::from_utf8(name).ok()?;
    Some(name.chars().filter(|c| !c.is_control()).collect())
}

fn place_of_host(log: &LogName) -> Place<'_> {
    Place { log, kind: ObjectKind::LeaseHost, run: RunNo(0), part: 0 }
}

impl LeaseObject {
    fn lease(&self) -> Duration {
        self.patience_s.map_or(LEASE, |seconds| Duration::from_secs(seconds).clamp(LEASE_MIN, LEASE))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        match serde_json::to_vec(self) {
            Ok(bytes) => bytes,
            Err(_) => unreachable!("a plain struct into memory"),
        }
    }

    /// `None` if the contents are unreadable: nothing depends on them.
    pub(crate) fn read(repo: &Repo, path: &ObjectPath) -> Result<Option<Self>, StoreError> {
        let bytes = read_all(&**repo.store(), path, LEASE_BYTES_MAX)?;
        Ok(serde_json::from_slice(&bytes).ok())
    }
}

/// Leases of runs that this process has given up without being able to record that in the repository:
/// the process is alive, the runs are not.
static GIVEN_UP: Mutex<Vec<Hex<16>>> = Mutex::new(Vec::new());

/// Records that nothing more comes of a run, whatever the repository says of it.
pub(crate) fn give_up(token: Hex<16>) {
    lock(&GIVEN_UP).push(token);
}

/// What is known of a run that has no outcome.
#[derive(Clone, Debug)]
pub(crate) struct LeaseState {
    pub(crate) started_at: SystemTime,
    pub(crate) renewed_at: SystemTime,
    pub(crate) intent: Option<Intent>,
    pub(crate) process: Option<ProcessId>,
    pub(crate) host: Option<String>,
    pub(crate) makes_room: bool,
    pub(crate) is_alive: bool,
}

/// Looks at the lease of `run`; `None` if it has no lease objects.
pub(crate) fn look(repo: &Repo, log: &LogName, run: RunNo) -> Result<Option<LeaseState>, RepoError> {
    let prefix = format!("{}{:010}/", log.folder(Folder::Runs), run.0);
    let mut first = None;
    let mut newest = None;
    repo.store().list(&prefix, &mut |info| {
        first.get_or_insert(info.created_at);
        newest = Some(info);
        true
    })?;
    let (Some(started_at), Some(newest)) = (first, newest) else { return Ok(None) };
    let object = match LeaseObject::read(repo, &newest.path) {
        Err(error) if error.is_not_found() => None,
        object => object?,
    };
    let lease = object.as_ref().map_or(LEASE, LeaseObject::lease);
    let intent = object.as_ref().and_then(|object| object.intent);
    let is_given_up = object.as_ref().is_some_and(|object| lock(&GIVEN_UP).contains(&object.token));
    let makes_room = object.as_ref().is_some_and(|object| object.makes_room);
    let sealed = object.as_ref().and_then(|object| object.host.as_deref());
    let host = sealed.and_then(|sealed| open_host(repo, log, sealed));
    let process = object.and_then(|object| object.process);
    let is_gone = is_given_up || process.is_some_and(|process| process.is_gone());
    // Reading the clock takes a write, and is for nothing if the run is gone anyway.
    let is_alive = !is_gone && away(repo.store().now()?, newest.created_at) < lease;
    let renewed_at = newest.created_at;
    Ok(Some(LeaseState { started_at, renewed_at, intent, process, host, makes_room, is_alive }))
}

/// How far apart two times are. A renewal from the future means that the clock was set back since. By a little, the
/// run may live; by more, its next renewal will show whether it does: waiting until that time comes could take years.
fn away(now: SystemTime, then: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or_else(|ahead| ahead.duration())
}

/// Renews the lease of one run, and notices when the run has been ended.
pub(crate) struct Renewer {
    repo: Arc<Repo>,
    log: LogName,
    run: RunNo,
    token: Hex<16>,
    object: Vec<u8>,
    next: AtomicU32,
    lost: AtomicBool,
    makes_room: bool,
    asked: AtomicBool,
    patience: Duration,
    /// When the newest renewal appeared, by the store's clock.
    renewed_at: Mutex<SystemTime>,
}

impl Renewer {
    /// For a run whose first lease object appeared at `begun_at`, by the store's clock.
    pub(crate) fn new(
        repo: &Arc<Repo>,
        log: &LogName,
        run: RunNo,
        object: &LeaseObject,
        begun_at: SystemTime,
    ) -> Self {
        Self {
            repo: Arc::clone(repo),
            log: log.clone(),
            run,
            token: object.token,
            object: object.encode(),
            next: AtomicU32::new(1),
            lost: AtomicBool::new(false),
            makes_room: object.makes_room,
            asked: AtomicBool::new(false),
            patience: object.lease(),
            renewed_at: Mutex::new(begun_at),
        }
    }

    /// Whether, at `time` by the store's clock, the lease was so far from its end that nobody who looked at
    /// about that time can have taken the run for dead.
    pub(crate) fn lived_at(&self, time: SystemTime) -> bool {
        let age = time.duration_since(*lock(&self.renewed_at));
        age.is_ok_and(|age| age + LOOK_MAX < self.patience)
    }

    /// Records that nothing more comes of the run.
    pub(crate) fn give_up(&self) {
        give_up(self.token);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether another run has asked for room.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    fn look_whether_asked(&self) -> Result<(), RepoError> {
        if self.makes_room && is_asked_for(&self.repo, &self.log, self.run)? {
            self.asked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Renews the lease once, unless the run has an outcome and so is lost. An error does not end
    /// the run: only its outcome does.
    pub(crate) fn renew(&self) -> Result<(), RepoError> {
        match self.repo.store().head(&self.log.outcome(self.run)) {
            Ok(_) => {
                self.lost.store(true, Ordering::Release);
                return Ok(());
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        let renewal = self.next.fetch_add(1, Ordering::Relaxed).min(RENEWAL_MAX);
        let created = self.repo.store().create_if_absent(&self.log.lease(self.run, renewal), &self.object)?;
        *lock(&self.renewed_at) = created.created_at;
        Ok(())
    }
}

/// A thread that renews a lease until it is dropped.
pub(crate) struct RenewalThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RenewalThread {
    pub(crate) fn start(renewer: Arc<Renewer>, every: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = bounded::<()>(0);
        let wake_every = if renewer.makes_room { every.min(LOOK_WHETHER_ASKED) } else { every };
        let thread = std::thread::Builder::new().name("lease".to_owned()).spawn(move || {
            let mut renewed_at = Instant::now();
            while !renewer.is_lost() && stopped.recv_timeout(wake_every) == Err(RecvTimeoutError::Timeout) {
                // Errors are not reported: the next renewal may succeed, and a run
                // without a lease is still a run.
                if renewed_at.elapsed() >= every {
                    renewed_at = Instant::now();
                    let _ = renewer.renew();
                }
                let _ = renewer.look_whether_asked();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for RenewalThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run may choose to be passed over sooner than usual, but never so soon that a slow renewal costs it
    /// its life, nor later than a program that does not know this field waits.
    #[test]
    fn patience_is_bounded() {
        let token = "00112233445566778899aabbccddeeff";
        for (field, seconds) in [
            ("", 900),
            (r#","patience_s":60"#, 60),
            (r#","patience_s":1"#, 30),
            (r#","patience_s":86400"#, 900),
        ] {
            let object: LeaseObject =
                serde_json::from_str(&format!(r#"{{"token":"{token}"{field}}}"#)).unwrap();
            assert_eq!(object.lease(), Duration::from_secs(seconds), "{field}");
        }
    }
}
