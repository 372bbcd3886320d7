//! Names quoted for use in statements.

/// Quotes a name for use in a statement.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A table's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Database.
    pub schema: String,
    /// Table.
    pub table: String,
}

impl TableName {
    /// The name, quoted for use in a statement.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.table))
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names survive quoting.
    #[test]
    fn quoting() {
        let name = TableName { schema: "a`b".into(), table: "c.d".into() };
        assert_eq!(name.quoted(), "`a``b`.`c.d`");
    }
}
