//! Tables of engines without redo that are written to while they are copied. Under the lock each of them is
//! copied again as a whole. If that does not fit into the time that the lock may be held, the lock is not
//! taken a second time.

use std::{cmp::Reverse, time::Duration};

use super::{options::CaptureOptions, plain::PlainFile};
use crate::error::{Error, Result};

/// Up to this much is copied under a lock without a warning.
pub(super) const LITTLE_BYTES: u64 = 16 << 20;
/// Passes over what DDL created meanwhile, before a lock. During a constant storm of DDL more passes stop
/// paying off.
const CATCH_UP_PASSES: u32 = 2;
/// How many of them are named.
const NAMED: usize = 3;
/// A pass beside the running server is slower than one under a lock by this factor, for what it leaves to the
/// server.
const FASTER_UNDER_LOCK: f64 = 1.5;

/// How long a lock may be held, and the option that sets this.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    held_max: Duration,
    option: &'static str,
    /// Whether a pass beside the running server tells how long one under a lock takes: not if the read rate is
    /// limited on request.
    passes_tell: bool,
}

impl Limit {
    /// How long copying tables without redo again under a lock may take.
    pub(super) fn of(options: &CaptureOptions, held_max: Duration, option: &'static str) -> Self {
        Self { held_max, option, passes_tell: options.read_bytes_per_s_max.is_none() }
    }
}

/// What one pass over changed files has copied.
pub(super) struct Pass {
    pub(super) tablespaces_bytes: u64,
    pub(super) rewritten: Rewritten,
}

/// Passes over what has changed until a pass finds little, and returns what the last one copied.
pub(super) fn catch_up(pass: &mut dyn FnMut() -> Result<Pass>) -> Result<Rewritten> {
    let mut rewritten = Rewritten::default();
    for _ in 0..CATCH_UP_PASSES {
        let pass = pass()?;
        rewritten = pass.rewritten;
        if pass.tablespaces_bytes + rewritten.bytes <= LITTLE_BYTES {
            break;
        }
    }
    Ok(rewritten)
}

/// What a pass over changed files has copied again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rewritten {
    pub(super) bytes: u64,
    largest: Vec<String>,
    took: Duration,
    /// How long copying as much would have taken under the lock, by an attempt that did.
    took_under_lock: Option<Duration>,
}

impl Rewritten {
    /// Describes `files` before they are copied.
    pub(super) fn of(files: &[PlainFile]) -> Self {
        let mut by_size: Vec<_> = files.iter().map(|file| &file.entry).collect();
        by_size.sort_by_key(|entry| Reverse(entry.size_bytes));
        Self {
            bytes: by_size.iter().map(|entry| entry.size_bytes).sum(),
            largest: by_size.into_iter().take(NAMED).map(|entry| entry.path.clone()).collect(),
            ..Self::default()
        }
    }

    /// Adds the time that the copy took.
    pub(super) fn in_time(self, took: Duration) -> Self {
        Self { took, ..self }
    }

    /// Adds what an attempt before it copied under the lock, where nothing limits the rate of reading: another would
    /// copy this as fast. Little is no measure: it takes as long as a wait or two.
    pub(super) fn after(self, tried: Option<Self>) -> Self {
        let tried = tried.filter(|tried| tried.bytes > LITTLE_BYTES);
        let share = |tried: &Self| self.bytes as f64 / tried.bytes as f64;
        let took_under_lock = tried.map(|tried| tried.took.mul_f64(share(&tried)));
        Self { took_under_lock, ..self }
    }

    /// The message for the case that this much cannot be copied again in the time that the lock may be held.
    pub(super) fn beyond(&self, limit: &Limit) -> Option<String> {
        let Limit { held_max, option, passes_tell } = *limit;
        let by_pass = passes_tell.then(|| self.took.div_f64(FASTER_UNDER_LOCK));
        let forecast = [self.took_under_lock, by_pass].into_iter().flatten().min()?;
        if self.bytes <= LITTLE_BYTES || forecast <= held_max {
            return None;
        }
        let (mib, names) = (self.bytes >> 20, self.largest.join(", "));
        Some(format!(
            "{mib} MiB of non-transactional tables changed while they were copied (largest: {names}): \
             copying them again under the lock would take about {:.1} s, but {option} allows {:.1} s",
            forecast.as_secs_f64(),
            held_max.as_secs_f64()
        ))
    }

    /// Fails in that case.
    pub(super) fn refuse_beyond(&self, limit: &Limit) -> Result<()> {
        match self.beyond(limit) {
            None => Ok(()),
            Some(said) => Err(Error::failed(said)
                .hinted("back up while they are idle, convert them to InnoDB, or raise that option")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{
        Role,
        files::{Entry, Stat},
    };

    fn rewritten(sizes_mib: &[u64], took: Duration) -> Rewritten {
        let here = Stat::of(std::path::Path::new(".")).unwrap();
        let file = |(n, mib): (usize, &u64)| {
            let entry = Entry {
                path: format!("db/t{n}.MYD"),
                real: ".".into(),
                outside: false,
                size_bytes: mib << 20,
                is_dir: false,
                mode: 0o640,
                stat: here,
            };
            PlainFile::whole(entry, Role::EngineFile)
        };
        Rewritten::of(&sizes_mib.iter().enumerate().map(file).collect::<Vec<_>>()).in_time(took)
    }

    /// Files that cannot be copied in time are refused, naming the largest.
    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let limit = &Limit { held_max: Duration::from_secs(10), option: "--lock-max", passes_tell: true };
        let slow = &Limit { passes_tell: false, ..*limit };
        let refused = |rewritten: &Rewritten, limit| {
            rewritten.refuse_beyond(limit).err().map(|error| error.to_string())
        };
        let much = rewritten(&[1, 300, 20, 700], Duration::from_secs(20));
        let text = refused(&much, limit).unwrap();
        assert!(text.starts_with("1021 MiB of non-transactional tables"), "{text}");
        assert!(
            text.contains("db/t3.MYD, db/t1.MYD, db/t2.MYD)") && text.ends_with("--lock-max allows 10.0 s"),
            "{text}"
        );
        assert_eq!(refused(&much, slow), None);
        // Half as much took 6 s under the lock.
        let tried = |secs| Some(rewritten(&[510], Duration::from_secs(secs)));
        let text = refused(&much.clone().after(tried(6)), slow).unwrap();
        assert!(text.contains("would take about 12.0 s"), "{text}");
        assert_eq!(refused(&much.clone().after(tried(4)), slow), None);
        assert_eq!(refused(&much.clone().after(tried(4)), limit), None);
        let little = Some(rewritten(&[1], Duration::from_secs(1)));
        assert_eq!(refused(&much.clone().after(little), slow), None);
        let quick = rewritten(&[1, 300, 20, 700], Duration::from_secs(2));
        assert_eq!(refused(&quick.after(tried(6)), limit), None);
        assert_eq!(refused(&rewritten(&[1, 300, 20, 700], Duration::from_secs(14)), limit), None);
        assert_eq!(refused(&rewritten(&[1, 10], Duration::from_secs(100)), limit), None);
    }
}
