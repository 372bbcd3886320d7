//! The server that extracted tables are to be loaded into.

use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        load::{self, LoadOptions, Unfinished},
        quoted_text,
    },
    server::{Purpose, Session},
};

/// A server that can be loaded into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What distinguishes it from other servers.
    pub(super) server: String,
    /// The load that has not finished there.
    pub(super) unfinished: Option<Unfinished>,
}

/// Checks, before anything is extracted, that a load could begin or continue: the server answers, and no
/// table of the wanted names exists.
pub fn look_at_target(options: &LoadOptions) -> Result<Target> {
    let mut session = Session::open(&options.connect, Purpose::Load)?;
    let query = "SHOW GLOBAL VARIABLES WHERE variable_name IN ('server_uuid', 'hostname', 'port', 'datadir')";
    let mut server = Vec::new();
    for row in session.rows(query)? {
        server.push(format!("{}={}", row.text("Variable_name")?, row.text("Value")?));
    }
    server.sort();
    let unfinished = load::unfinished(&mut session)?;
    let target = Target { server: server.join(" "), unfinished };
    // Existing tables may belong to the load that is to continue.
    if options.overwrite || target.unfinished.is_some() {
        return Ok(target);
    }
    for pattern in &options.selection.tables {
        let Some((schema, table)) = pattern.name() else { continue };
        let (schema, table) = options.renames.table(&schema, &table);
        let (quoted_schema, quoted_table) = (quoted_text(&schema), quoted_text(&table));
        let query = format!(
            "SELECT table_name AS t FROM information_schema.tables \
             WHERE table_schema = {quoted_schema} AND table_name = {quoted_table}"
        );
        if session.row(&query)?.is_some() {
            let text = format!("{schema}.{table} exists already");
            return Err(Error::new(ErrorKind::Usage, text)
                .hinted("load under another name (--as), or drop it: --overwrite"));
        }
    }
    Ok(target)
}
