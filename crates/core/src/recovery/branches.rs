//! XA branches in what is replayed after a logical backup.
//!
//! A branch is logged twice: what it changed when it is prepared, and its name when it is committed or rolled
//! back. A logical backup has what was committed, so a branch that was prepared before it and ended after it is
//! unknown to a server that has loaded the backup. A physical backup has its branches.

use std::collections::HashSet;

use holdfast_formats::binlog::Body;

/// The branches that are prepared at some place in the binlog, as far as they were prepared behind the backup.
#[derive(Debug, Default)]
pub(super) struct Branches {
    /// As servers write their names into statements: `X'61',X'',1`.
    prepared: HashSet<Vec<u8>>,
}

impl Branches {
    /// Takes the next event. Returns the branch that it ends, if that was prepared before the backup.
    pub(super) fn next(&mut self, body: &Body<'_>) -> Option<String> {
        match body {
            Body::Query(query) => self.statement(&query.statement),
            Body::Payload(payload) => {
                // What cannot be decompressed cannot be replayed either, and the server says so.
                let _unreadable = payload.look_at_first(&mut |first| {
                    if let Ok(Body::Query(query)) = first.body() {
                        let _prepares = self.statement(&query.statement);
                    }
                });
                None
            }
            _ => None,
        }
    }

    fn statement(&mut self, statement: &[u8]) -> Option<String> {
        // MySQL logs both; compressed, the first is enough. MariaDB logs the second only.
        let prepared = statement.strip_prefix(b"XA START ").or_else(|| statement.strip_prefix(b"XA END "));
        if let Some(branch) = prepared {
            self.prepared.insert(branch.to_owned());
            return None;
        }
        let ended =
            statement.strip_prefix(b"XA COMMIT ").or_else(|| statement.strip_prefix(b"XA ROLLBACK "))?;
        (!self.prepared.remove(ended)).then(|| String::from_utf8_lossy(ended).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_that_was_prepared_before() {
        let mut branches = Branches::default();
        for statement in [
            "BEGIN",
            "XA START X'61',X'',1",
            "XA END X'61',X'',1",
            "XA END X'62',X'',1",
            "XA COMMIT X'61',X'',1",
            "XA ROLLBACK X'62',X'',1",
            "XA END X'61',X'',1",
            "XA COMMIT X'61',X'',1",
        ] {
            assert_eq!(branches.statement(statement.as_bytes()), None, "{statement}");
        }
        for statement in ["XA COMMIT X'61',X'',1", "XA ROLLBACK X'61',X'',1"] {
            assert_eq!(
                branches.statement(statement.as_bytes()).as_deref(),
                Some("X'61',X'',1"),
                "{statement}"
            );
        }
    }
}
