//! How a view can be made, from the best to the least, and which way is tried next.
//!
//! A lock that is waited for makes others wait behind it. So on MySQL it is looked first whether anybody would be in its
//! way, and the way is taken in which there is nobody:
//!
//! - `LOCK TABLES .. READ` waits for transactions that have written to the tables, not for queries, and leaves nothing
//!   behind when it is given up. But it opens each table while it blocks them.
//! - `FLUSH TABLES WITH READ LOCK` waits for every statement that has a table open, a long query too, and when it is given
//!   up, whoever wants to open that table waits until that query is over (verified on 9.7: a query of 12 s, and 9 s
//!   of waiting after the lock was given up). Open transactions are not in its way, and the count of tables is no matter.
//!
//! On MariaDB the stages wait for neither. `START` waits for as long as another backup is held.

use holdfast_formats::Flavor;
use serde::{Deserialize, Serialize};

use super::{in_the_way::InTheWay, privileges::Privileges};

/// With more tables `LOCK TABLES` takes long: servers may have to open each of them under it (verified on 9.7: 3,000
/// tables, more than its caches held, seconds).
const LOCKED_ONE_BY_ONE_MAX: usize = 500;

/// How the view was made, from the best to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// MariaDB: `BACKUP STAGE BLOCK_COMMIT` for a moment.
    BackupStages,
    /// `FLUSH TABLES WITH READ LOCK` for a moment.
    ReadLock,
    /// `LOCK TABLES .. READ` of the tables that are saved, for a moment.
    TableLocks,
    /// MariaDB: no lock; views of one binlog position.
    BinlogPosition,
    /// No lock; one reader.
    OneReader,
    /// Another tool's dump.
    Imported,
}

impl Method {
    /// What it promises, for people.
    #[must_use]
    pub fn promise(self) -> &'static str {
        match self {
            Self::BackupStages | Self::ReadLock => {
                "all tables are of one moment; the position, if the account may read it, is that moment's"
            }
            Self::TableLocks => {
                "all saved tables are of one moment; for them the position, if the account may read it, is that moment's; \
                 what else was written meanwhile may be before or after it"
            }
            Self::BinlogPosition => {
                "all tables with transactions are of one position of the binlog; transactions that were kept out of \
                 the binlog may be seen in part, and tables without transactions are as they were when they were read"
            }
            Self::OneReader => {
                "all tables with transactions are of one moment, whose position is not known; tables without \
                 transactions are as they were when they were read"
            }
            Self::Imported => {
                "its tables are of one moment if the dump's were, which a dump does not say; the position is the one that it \
                 names"
            }
        }
    }

    /// Whether tables of engines without views are held while they are read.
    pub(super) fn can_lock_tables(self) -> bool {
        matches!(self, Self::BackupStages | Self::ReadLock | Self::TableLocks)
    }
}

/// The methods that are left, as the account and the server allow.
#[derive(Debug)]
pub(super) struct Methods {
    /// Those that take a lock, the one that is preferred first.
    locking: Vec<Method>,
    /// What is left without one.
    free: Vec<Method>,
    /// Those that somebody was in the way of, since the last pause.
    refused: Vec<Method>,
    /// The last one that was begun.
    tried: Option<Method>,
}

impl Methods {
    /// What the account seems to be allowed; the server has the last word.
    pub(super) fn of(flavor: Flavor, privileges: &Privileges) -> Self {
        let (locking, free) = match flavor {
            Flavor::MariaDb if privileges.has("RELOAD") => (
                vec![Method::BackupStages, Method::TableLocks],
                vec![Method::BinlogPosition, Method::OneReader],
            ),
            Flavor::MariaDb => (vec![Method::TableLocks], vec![Method::BinlogPosition, Method::OneReader]),
            Flavor::MySql if privileges.has("RELOAD") || privileges.has("FLUSH_TABLES") => {
                (vec![Method::TableLocks, Method::ReadLock], vec![Method::OneReader])
            }
            Flavor::MySql => (vec![Method::TableLocks], vec![Method::OneReader]),
        };
        Self { locking, free, refused: Vec::new(), tried: None }
    }

    /// A new try begins. Returns what it does where nothing is locked.
    pub(super) fn begin(&mut self) -> Option<Method> {
        self.tried = match self.locking.is_empty() {
            true => self.free.first().copied(),
            false => None,
        };
        self.tried
    }

    /// The lock to ask for; `None` where somebody is in the way of each.
    pub(super) fn lock(&mut self, tables: usize, in_the_way: &InTheWay) -> Option<Method> {
        let may_be_asked_for = |method: &Method| match method {
            Method::TableLocks => !in_the_way.of_table_locks.is_somebody(),
            Method::ReadLock => in_the_way.of_read_lock.is_nobody(),
            _ => true,
        };
        let mut left: Vec<Method> =
            self.locking.iter().filter(|method| !self.refused.contains(method)).copied().collect();
        left.retain(may_be_asked_for);
        if tables > LOCKED_ONE_BY_ONE_MAX && left.contains(&Method::ReadLock) {
            left.retain(|method| *method != Method::TableLocks);
        }
        self.tried = left.first().copied();
        self.tried
    }

    /// The account may not do what was tried. Returns whether anything is left.
    pub(super) fn denied(&mut self) -> bool {
        let denied = self.tried.or(self.locking.first().copied()).or(self.free.first().copied());
        self.locking.retain(|method| Some(*method) != denied);
        self.free.retain(|method| Some(*method) != denied);
        !self.locking.is_empty() || !self.free.is_empty()
    }

    /// Somebody was in the way of what was tried, or it was held too long. Returns whether another lock may be had at
    /// once; if not, all may be asked for again, after a pause.
    pub(super) fn refused(&mut self) -> bool {
        let Some(tried) = self.tried.filter(|tried| self.locking.contains(tried)) else {
            self.refused.clear();
            return false;
        };
        self.refused.push(tried);
        let is_another_left = self.locking.iter().any(|method| !self.refused.contains(method));
        if !is_another_left {
            self.refused.clear();
        }
        is_another_left
    }

    /// No lock was to be had for as long as it may be asked for: without one, from now on. Returns whether that is
    /// another way.
    pub(super) fn without_locks(&mut self) -> bool {
        let had_locks = !self.locking.is_empty();
        self.locking.clear();
        had_locks && !self.free.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::in_the_way::Look, *};

    fn methods(flavor: Flavor) -> Methods {
        Methods::of(flavor, &Privileges::of_lines(&["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost`"]))
    }

    fn look(of_table_locks: Look, of_read_lock: Look) -> InTheWay {
        InTheWay { of_table_locks, of_read_lock }
    }

    fn somebody() -> Look {
        Look::Somebody("session 7".to_owned())
    }

    /// A lock is asked for only where nobody is in its way, the one that others may have to wait behind only where that
    /// is known.
    #[test]
    fn the_lock_that_waits_for_nobody() {
        let mut methods = methods(Flavor::MySql);
        let cases = [
            (Look::Nobody, Look::Nobody, Some(Method::TableLocks), Some(Method::ReadLock)),
            (Look::Nobody, somebody(), Some(Method::TableLocks), Some(Method::TableLocks)),
            (somebody(), Look::Nobody, Some(Method::ReadLock), Some(Method::ReadLock)),
            (somebody(), somebody(), None, None),
            (somebody(), Look::Unknown, None, None),
            (Look::Unknown, Look::Unknown, Some(Method::TableLocks), Some(Method::TableLocks)),
        ];
        for (of_table_locks, of_read_lock, few, many) in cases {
            let look = look(of_table_locks, of_read_lock);
            assert_eq!(methods.lock(3, &look), few, "{look:?}");
            assert_eq!(methods.lock(3_000, &look), many, "{look:?}");
        }
    }

    #[test]
    fn what_is_refused_is_followed_by_the_other_and_what_is_denied_by_less() {
        let nobody = look(Look::Nobody, Look::Nobody);
        let mut methods = methods(Flavor::MariaDb);
        assert_eq!(methods.begin(), None);
        assert_eq!(methods.lock(3, &nobody), Some(Method::BackupStages));
        assert!(methods.refused());
        assert_eq!(methods.lock(3, &nobody), Some(Method::TableLocks));
        assert!(!methods.refused(), "both: a pause");
        assert_eq!(methods.lock(3, &nobody), Some(Method::BackupStages));
        assert!(methods.denied());
        assert_eq!(methods.lock(3, &nobody), Some(Method::TableLocks));
        assert!(methods.without_locks());
        assert!(!methods.without_locks());
        assert_eq!(methods.begin(), Some(Method::BinlogPosition));
        assert!(!methods.refused());
        assert!(methods.denied());
        assert_eq!(methods.begin(), Some(Method::OneReader));
        assert!(!methods.denied());
    }
}
