//! Indexes of the tables in `shop`, which others write to meanwhile.

use anyhow::Result;
use mysql::prelude::Queryable;

use super::Connection;

/// Tables, and columns that an index can be made of.
const KEYS: [(&str, &str); 4] = [
    ("customers", "name"),
    ("customers", "balance, country"),
    ("orders", "total"),
    ("events", "kind, order_id"),
];

impl Connection {
    /// Makes an index of such a table, if it has none of this connection, and otherwise drops that.
    pub(super) fn index_in_use(&mut self) -> Result<()> {
        let (table, columns) = KEYS[self.rng.index(KEYS.len())];
        let key = format!("{}in_use", self.prefix);
        let query = format!(
            "SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = 'shop' AND table_name = '{table}'
             AND index_name = '{key}'"
        );
        if self.conn.query_first::<u64, _>(query)?.is_some_and(|count| count > 0) {
            return self.try_run(&format!("ALTER TABLE shop.{table} DROP KEY {key}")).map(drop);
        }
        // What is written while a build is under way may be more than the server keeps for it; and a unique index
        // fails at the end, once there are two equal values.
        const ONLINE_LOG_TOO_BIG: u16 = 1799;
        const DUPLICATE_ENTRY: u16 = 1062;
        // MySQL: an entry that the server cannot name; seen of an index that is not unique, too.
        const DUPLICATE_UNNAMED: u16 = 1859;
        let unique = self.rng.pick(&["", "", "", "UNIQUE "]);
        let lock = self.rng.pick(&["NONE", "NONE", "SHARED"]);
        let statement = format!(
            "ALTER TABLE shop.{table} ADD {unique}KEY {key} ({columns}), ALGORITHM=INPLACE, LOCK={lock}"
        );
        self.try_run_or(&statement, &[ONLINE_LOG_TOO_BIG, DUPLICATE_ENTRY, DUPLICATE_UNNAMED]).map(drop)
    }
}
