//! Ways to make a view, from the best to the least, and which one to try next.
//!
//! A session that waits for a lock makes others wait behind it. So on MySQL, sessions that would block each
//! lock are looked for first, and a lock that nobody blocks is taken:
//!
//! - `LOCK TABLES .. READ` waits for transactions that have written to the tables, not for queries, and has
//!   no aftereffect when it is given up. But it opens each table while it blocks them.
//! - `FLUSH TABLES WITH READ LOCK` waits for every statement that has a table open, even a long query. After
//!   it is given up, sessions that want to open that table wait until the query ends (verified on 9.7: a
//!   query of 12 s, and 9 s of waiting after the lock was given up). Open transactions do not block it, and
//!   the number of tables does not matter.
//!
//! On MariaDB the backup stages wait for neither. `START` waits for as long as another backup holds it.
//!
//! If every lock is blocked and all tables have transactions, views are begun without a lock until all of
//! them have the same binlog position.

use holdfast_formats::Flavor;
use serde::{Deserialize, Serialize};

use super::in_the_way::{InTheWay, Look};
use crate::logical::catalog::privileges::Privileges;

/// With more tables than this, `LOCK TABLES` takes long: while it locks, the server opens those that are not
/// open in this session's part of its table cache, which has room for 250 (verified on 9.7: milliseconds for
/// 250 tables that were just used, seconds for 1,000).
const LOCKED_ONE_BY_ONE_MAX: usize = 200;

/// How the view was made, from the best to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// MariaDB: `BACKUP STAGE BLOCK_COMMIT`, held for a moment.
    BackupStages,
    /// `FLUSH TABLES WITH READ LOCK`, held for a moment.
    ReadLock,
    /// `LOCK TABLES .. READ` of the saved tables, held for a moment.
    TableLocks,
    /// No lock; all views have one binlog position.
    BinlogPosition,
    /// No lock; a single reader.
    OneReader,
    /// Another tool's dump.
    Imported,
}

impl Method {
    /// What the method promises, in words for people.
    #[must_use]
    pub fn promise(self) -> &'static str {
        match self {
            Self::BackupStages | Self::ReadLock => {
                "all tables are of one moment; a position that is given is that moment's"
            }
            Self::TableLocks => {
                "all saved tables are of one moment; for them, a position that is given is that moment's; \
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

    /// Whether tables whose engine has no views are locked while they are read.
    pub(crate) fn can_lock_tables(self) -> bool {
        matches!(self, Self::BackupStages | Self::ReadLock | Self::TableLocks)
    }
}

/// The methods that the account and the server still allow.
#[derive(Debug)]
pub(crate) struct Methods {
    /// Methods that take a lock, in order of preference.
    locking: Vec<Method>,
    /// Methods without a lock.
    free: Vec<Method>,
    /// Locking methods that were refused since the last pause.
    refused: Vec<Method>,
    /// The last method that was begun.
    tried: Option<Method>,
    /// Whether nothing that is saved needs a lock while it is read.
    may_agree: bool,
    /// Whether the next try compares binlog positions although locks are allowed.
    agrees_next: bool,
    /// Whether that was tried since the last pause.
    has_agreed: bool,
}

impl Methods {
    /// The methods that the account's privileges seem to allow; the server has the last word.
    pub(crate) fn of(flavor: Flavor, privileges: &Privileges) -> Self {
        let (locking, free) = match flavor {
            Flavor::MariaDb if privileges.has("RELOAD") => (
                vec![Method::BackupStages, Method::TableLocks],
                vec![Method::BinlogPosition, Method::OneReader],
            ),
            Flavor::MariaDb => (vec![Method::TableLocks], vec![Method::BinlogPosition, Method::OneReader]),
            Flavor::MySql => {
                let may_flush = privileges.has("RELOAD") || privileges.has("FLUSH_TABLES");
                let may_see_the_position = privileges.has("BACKUP_ADMIN");
                let locking = [(Method::TableLocks, true), (Method::ReadLock, may_flush)];
                let free = [(Method::BinlogPosition, may_see_the_position), (Method::OneReader, true)];
                let those = |methods: [(Method, bool); 2]| {
                    methods.into_iter().filter(|(_, may)| *may).map(|(method, _)| method).collect()
                };
                (those(locking), those(free))
            }
        };
        let refused = Vec::new();
        Self { locking, free, refused, tried: None, may_agree: false, agrees_next: false, has_agreed: false }
    }

    /// Begins a new try. Returns its method if that takes no lock.
    pub(crate) fn begin(&mut self) -> Option<Method> {
        self.tried = match self.locking.is_empty() {
            true => self.free.first().copied(),
            false if self.agrees_next => Some(Method::BinlogPosition),
            false => None,
        };
        self.agrees_next = false;
        self.tried
    }

    /// The lock to ask for; `None` if each one is blocked. `are_views`: the engines of all tables have views.
    pub(crate) fn lock(&mut self, tables: usize, are_views: bool, in_the_way: &InTheWay) -> Option<Method> {
        self.may_agree = are_views;
        if in_the_way.of_read_lock == Look::Unknown {
            // It is never asked for without knowing who is in the way.
            self.locking.retain(|method| *method != Method::ReadLock);
        }
        let may_be_asked_for = |method: &Method| match method {
            Method::TableLocks => !in_the_way.of_table_locks.is_somebody(),
            Method::ReadLock => in_the_way.of_read_lock.is_nobody(),
            _ => true,
        };
        let mut left: Vec<Method> =
            self.locking.iter().filter(|method| !self.refused.contains(method)).copied().collect();
        left.retain(may_be_asked_for);
        let is_better_elsewhere = match in_the_way.of_read_lock {
            Look::Nobody => left.contains(&Method::ReadLock),
            Look::Somebody(_) => are_views && self.locking.contains(&Method::ReadLock),
            Look::Unknown => false,
        };
        if tables > LOCKED_ONE_BY_ONE_MAX && is_better_elsewhere {
            left.retain(|method| *method != Method::TableLocks);
        }
        self.tried = left.first().copied();
        self.tried
    }

    /// Drops the method just tried, which the account may not use. Returns whether any is left.
    pub(crate) fn denied(&mut self) -> bool {
        let denied = self.tried.or(self.locking.first().copied());
        self.locking.retain(|method| Some(*method) != denied);
        self.free.retain(|method| Some(*method) != denied);
        !self.locking.is_empty() || !self.free.is_empty()
    }

    /// Notes that the method just tried was blocked, or held too long. Returns whether another way can be
    /// tried at once; if not, all of them may be tried again after a pause.
    pub(crate) fn refused(&mut self) -> bool {
        self.refused.extend(self.tried.filter(|tried| self.locking.contains(tried)));
        if self.tried.is_some()
            && self.locking.iter().any(|method| !self.refused.contains(method))
            && !self.has_agreed
        {
            return true;
        }
        if self.may_agree && !self.has_agreed && self.free.contains(&Method::BinlogPosition) {
            (self.agrees_next, self.has_agreed) = (true, true);
            return true;
        }
        self.refused.clear();
        self.has_agreed = false;
        false
    }

    /// Whether there is a lock that may be asked for.
    pub(crate) fn has_locks(&self) -> bool {
        !self.locking.is_empty()
    }

    /// Gives up locks for good, since none was granted for as long as one may be asked for. Returns whether
    /// that leaves another way.
    pub(crate) fn without_locks(&mut self) -> bool {
        let had_locks = !self.locking.is_empty();
        self.locking.clear();
        had_locks && !self.free.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods(flavor: Flavor) -> Methods {
        Methods::of(flavor, &Privileges::of_lines(&["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost`"]))
    }

    fn look(of_table_locks: Look, of_read_lock: Look) -> InTheWay {
        InTheWay { of_table_locks, of_read_lock }
    }

    fn somebody() -> Look {
        Look::Somebody("session 7".to_owned())
    }

    /// A lock is asked for only if nobody blocks it, and the one that others may have to wait behind only if
    /// that is known.
    #[test]
    fn the_lock_that_waits_for_nobody() {
        let cases = [
            (Look::Nobody, Look::Nobody, Some(Method::TableLocks), Some(Method::ReadLock)),
            (Look::Nobody, somebody(), Some(Method::TableLocks), None),
            (somebody(), Look::Nobody, Some(Method::ReadLock), Some(Method::ReadLock)),
            (somebody(), somebody(), None, None),
            (somebody(), Look::Unknown, None, None),
            (Look::Unknown, Look::Unknown, Some(Method::TableLocks), Some(Method::TableLocks)),
        ];
        for (of_table_locks, of_read_lock, few, many) in cases {
            let (look, mut methods) = (look(of_table_locks, of_read_lock), methods(Flavor::MySql));
            assert_eq!(methods.lock(3, true, &look), few, "{look:?}");
            assert_eq!(methods.lock(3_000, true, &look), many, "{look:?}");
        }
    }

    #[test]
    fn what_is_refused_is_followed_by_the_other_and_what_is_denied_by_less() {
        let nobody = look(Look::Nobody, Look::Nobody);
        let mut methods = methods(Flavor::MariaDb);
        assert_eq!(methods.begin(), None);
        assert_eq!(methods.lock(3, false, &nobody), Some(Method::BackupStages));
        assert!(methods.refused());
        assert_eq!(methods.lock(3, false, &nobody), Some(Method::TableLocks));
        assert!(!methods.refused(), "both: a pause");
        assert_eq!(methods.lock(3, false, &nobody), Some(Method::BackupStages));
        assert!(methods.denied());
        assert_eq!(methods.lock(3, false, &nobody), Some(Method::TableLocks));
        assert!(methods.without_locks());
        assert!(!methods.without_locks());
        assert_eq!(methods.begin(), Some(Method::BinlogPosition));
        assert!(!methods.refused());
        assert!(methods.denied());
        assert_eq!(methods.begin(), Some(Method::OneReader));
        assert!(!methods.denied());
    }

    #[test]
    fn what_may_be_in_the_way_in_the_dark_is_not_asked_for() {
        let grants = ["GRANT SELECT, RELOAD, LOCK TABLES ON *.* TO `b`@`%`"];
        let mut methods = Methods::of(Flavor::MySql, &Privileges::of_lines(&grants));
        assert!(methods.denied(), "locks of tables");
        assert_eq!(methods.lock(3, true, &look(Look::Unknown, Look::Unknown)), None);
        assert!(!methods.has_locks());
        assert!(methods.denied());
        assert_eq!(methods.begin(), Some(Method::OneReader));
    }

    /// While the locks are blocked, agreeing views are tried once before each pause.
    #[test]
    fn views_may_agree_instead() {
        let taken = look(somebody(), somebody());
        let mut methods = methods(Flavor::MySql);
        for _ in 0..2 {
            assert_eq!(methods.begin(), None);
            assert_eq!(methods.lock(3, true, &taken), None);
            assert!(methods.refused());
            assert_eq!(methods.begin(), Some(Method::BinlogPosition));
            assert!(!methods.refused(), "a pause");
        }
        assert_eq!(methods.begin(), None);
        assert_eq!(methods.lock(3, false, &taken), None, "a table must be locked while it is read");
        assert!(!methods.refused());
    }
}
