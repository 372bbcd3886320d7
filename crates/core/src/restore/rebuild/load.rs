//! Loads the rows into the new data directory, and tells it which transactions it has.

use std::{ffi::OsString, sync::Arc};

use holdfast_formats::Flavor;
use holdfast_repo::{LogName, Repo, RunNo};

use super::super::{
    buffer_pool::buffer_pool_bytes,
    continuing::set_gtids,
    done::Loaded,
    options::RestoreOptions,
    own_server::PrivateFiles,
    serve::{self, Serving},
};
use super::zones;
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    logical::{
        load::{self, LoadOptions, LoadReport},
        selection::is_own_schema,
    },
    server::{ConnectOptions, Purpose, Session, TableName, programs::drop_installed_accounts},
    watch::{Watch, ms},
};

/// The memory of the server that loads, unless the user has said it.
const BUFFER_POOL_BYTES: u64 = 1 << 30;

pub(super) fn run(
    files: &PrivateFiles<'_>,
    repo: &Arc<Repo>,
    base: (&LogName, RunNo),
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<Loaded> {
    let mut orders = ["--local-infile=ON", "--max-allowed-packet=1G"].map(OsString::from).to_vec();
    if files.server.flavor() == Flavor::MySql {
        // Accounts may have passwords of the old kind.
        orders.push("--loose-mysql-native-password=ON".into());
        if gtids(files).is_some() {
            orders.extend(["--gtid-mode=ON", "--enforce-gtid-consistency=ON"].map(OsString::from));
        }
    }
    let serving = Serving {
        buffer_pool_bytes: buffer_pool_bytes(files.options, BUFFER_POOL_BYTES),
        orders,
        makes_accounts: true,
    };
    let begun = watch.elapsed();
    let mut done = None;
    serve::run(files, serving, cancel, &mut |connect| {
        done = Some(load_into(files, repo, base, connect, watch, cancel)?);
        Ok(())
    })?;
    let (report, in_memory) = done.ok_or_else(|| Error::failed("nothing was loaded"))?;
    let gone = in_memory.iter().map(|table| format!("table {table}: its rows are in memory, and gone"));
    if report.plan.accounts == 0 {
        let text = "the backup has no accounts, and so has the restored server: start it with \
                    --skip-grant-tables to make some";
        watch.event(Event::Warning { text: text.to_owned() });
    }
    Ok(Loaded {
        program: files.binary.path.clone(),
        version: files.binary.version.to_string(),
        tables: report.plan.tables,
        rows: report.rows_loaded,
        row_bytes: report.row_bytes_loaded,
        tables_verified: report.tables_verified,
        accounts: report.plan.accounts,
        adapted: report.plan.adapted.iter().map(ToString::to_string).chain(gone).collect(),
        left_out: report.plan.left_out.iter().map(ToString::to_string).collect(),
        ms: ms(watch.elapsed() - begun),
    })
}

fn load_into(
    files: &PrivateFiles<'_>,
    repo: &Arc<Repo>,
    (log, which): (&LogName, RunNo),
    connect: &ConnectOptions,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<(LoadReport, Vec<TableName>)> {
    let mut session = Session::open(connect, Purpose::Control)?;
    let us = connect.user.as_deref().unwrap_or_default();
    drop_installed_accounts(&mut session, &[us])?;
    zones::fill(&mut session)?;
    // It would not survive hours of loading.
    drop(session);
    let options = LoadOptions {
        disable_redo: files.server.flavor() == Flavor::MySql,
        leave_out: files.options.leave_out,
        events_as_of: files.position.at,
        parallel: files.options.parallel.max(1),
        ..LoadOptions::new(connect.clone())
    };
    let report = load::run(repo, log, which, &options, watch, cancel).map_err(|error| match error.kind() {
        // Refused before anything was loaded. The hints of a load into a running server do not help here.
        ErrorKind::Usage if !files.options.leave_out => error.hinted("--leave-out restores without it, and names it"),
        _ => error.also_hinted(
            "a restore into a directory begins again each time: options for the server that loads are given by \
             --prepare-option (such as --partial-revokes=ON), and what it cannot make is left out by --leave-out",
        ),
    })?;
    let mut session = Session::open(connect, Purpose::Control)?;
    for statement in gtids(files).into_iter().flatten() {
        session.exec(&statement)?;
    }
    if !files.knows_words()
        && let Some(text) = full_text(&mut session, files.options)?
    {
        watch.event(Event::Warning { text });
    }
    Ok((report, in_memory(&mut session)?))
}

/// What to tell about full-text indexes, if there are any and the user has given no options for them: they
/// hold the words that the settings of the server that builds them let in.
fn full_text(session: &mut Session, options: &RestoreOptions) -> Result<Option<String>> {
    let is_about_words =
        |option: &String| option.contains("ft_") || option.contains("ft-") || option.contains("ngram");
    if options.prepare_options.iter().any(is_about_words) {
        return Ok(None);
    }
    let query = "SELECT COUNT(DISTINCT table_schema, table_name) FROM information_schema.statistics \
                 WHERE index_type = 'FULLTEXT'";
    let tables: u64 = session.number(query)?;
    Ok((tables > 0).then(|| {
        format!(
            "the full-text indexes of {tables} tables are built under default settings: if the source has others \
             (lengths of words, stopwords, a parser), build them again on a server with these, or give them to this \
             one with --prepare-option=--innodb-ft-min-token-size=2 and the like"
        )
    }))
}

/// The statements by which a MySQL server learns which transactions it has.
fn gtids(files: &PrivateFiles<'_>) -> Option<[String; 3]> {
    files.position.gtid.as_ref().filter(|gtid| !gtid.trim().is_empty())?;
    set_gtids(&files.server.version, files.position)
}

/// Tables whose rows end with the server.
fn in_memory(session: &mut Session) -> Result<Vec<TableName>> {
    let query = "SELECT table_schema AS s, table_name AS t FROM information_schema.tables \
                 WHERE engine = 'MEMORY' AND table_type = 'BASE TABLE' ORDER BY 1, 2";
    let mut tables = Vec::new();
    for row in session.rows(query)?.iter() {
        let name = TableName { schema: row.text("s")?.to_owned(), table: row.text("t")?.to_owned() };
        if !is_own_schema(&name.schema) {
            tables.push(name);
        }
    }
    Ok(tables)
}
