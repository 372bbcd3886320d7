//! Finds out by a race whether a store keeps its promise about creation.
//!
//! Everything that keeps two writers apart depends on [`Store::create_if_absent`].
//! Some stores accept the condition and ignore it; some look first and write then. Neither shows in a single
//! request, but both show in a race.

use std::sync::{
    Barrier,
    atomic::{AtomicUsize, Ordering},
};

use super::{ObjectPath, Store, StoreError, StoreErrorKind, read_all};
use crate::store::writers::PROBES;

const ROUNDS: usize = 4;
const RACERS: usize = 8;

/// What a store does when several callers create one name at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// One succeeds, and the others are told that they did not: fit for several writers.
    Exclusive,
    /// Several were told that they had succeeded, or a later one replaced the
    /// object: fit for one writer at a time.
    Shared,
}

/// Lets threads race for some names. `salt` makes the names unique to this probe.
pub fn probe_creation(store: &dyn Store, salt: &str) -> Result<Creation, StoreError> {
    let names: Option<Vec<ObjectPath>> =
        (0..ROUNDS).map(|round| ObjectPath::new(format!("{PROBES}{salt}-{round}"))).collect();
    let Some(names) = names else {
        let kind = StoreErrorKind::Io(std::io::ErrorKind::InvalidFilename.into());
        return Err(StoreError::new(format!("{PROBES}{salt}"), kind));
    };
    let probed = names.iter().try_fold(Creation::Exclusive, |so_far, name| {
        Ok(match race(store, name)? {
            Creation::Shared => Creation::Shared,
            Creation::Exclusive => so_far,
        })
    });
    let deleted = store.delete(&names);
    let creation = probed?;
    deleted.map(|()| creation)
}

fn race(store: &dyn Store, name: &ObjectPath) -> Result<Creation, StoreError> {
    let (winners, start) = (AtomicUsize::new(0), Barrier::new(RACERS));
    let run = |racer: u8| -> Result<Option<u8>, StoreError> {
        start.wait();
        match store.create_if_absent(name, &[racer]) {
            Ok(_) => {
                winners.fetch_add(1, Ordering::Relaxed);
                Ok(Some(racer))
            }
            Err(error) if error.is_exists() => Ok(None),
            Err(error) => Err(error),
        }
    };
    let outcomes: Vec<Result<Option<u8>, StoreError>> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS as u8).map(|racer| scope.spawn(move || run(racer))).collect();
        racers.into_iter().map(|racer| racer.join().unwrap_or(Ok(None))).collect()
    });
    let mut winner = None;
    for outcome in outcomes {
        winner = outcome?.or(winner);
    }
    let (1, Some(winner)) = (winners.into_inner(), winner) else { return Ok(Creation::Shared) };
    // A later creation must be refused, and must not have replaced the object either.
    let late = store.create_if_absent(name, &[RACERS as u8]);
    let is_refused = late.is_err_and(|error| error.is_exists());
    let stands = read_all(store, name, 1)? == [winner];
    Ok(if is_refused && stands { Creation::Exclusive } else { Creation::Shared })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        forward_store,
        store::{ObjectInfo, mem::MemStore},
    };

    /// Looks first, and writes then.
    pub(crate) struct Careless(pub(crate) MemStore);

    impl Store for Careless {
        forward_store!(
            self => self.0;
            location, put, read_exact_at, head, list, list_folders, delete, now, free_bytes
        );

        fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
            if self.0.head(path).is_ok() {
                return Err(StoreError::new(path, StoreErrorKind::Exists));
            }
            std::thread::sleep(Duration::from_millis(5));
            self.0.delete(std::slice::from_ref(path))?;
            self.0.create_if_absent(path, bytes)
        }
    }

    #[test]
    fn a_store_that_lets_several_win_is_told_from_one_that_does_not() {
        let good = MemStore::new();
        assert_eq!(probe_creation(&good, "x").unwrap(), Creation::Exclusive);
        assert_eq!(good.used_bytes(), 0, "a probe leaves nothing");
        let bad: Arc<dyn Store> = Arc::new(Careless(MemStore::new()));
        assert_eq!(probe_creation(&*bad, "x").unwrap(), Creation::Shared);
    }
}
