//! Loads the rows into the new data directory, and tells it which transactions it has.

use std::{ffi::OsString, sync::Arc};

use holdfast_formats::Flavor;
use holdfast_repo::{LogName, Repo, RunNo};

use super::super::{
    continuing::set_gtids,
    own_server::{Ground, uses_gtids},
    prepare,
    report::Loaded,
    serve::{self, Serving},
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    logical::load::{self, LoadOptions, LoadReport},
    server::{ConnectOptions, Purpose, Session, programs::drop_installed_accounts},
    watch::Watch,
};

/// The memory of the server that loads, unless the user has said it.
const BUFFER_POOL_BYTES: u64 = 1 << 30;

pub(super) fn run(
    ground: &Ground<'_>,
    repo: &Arc<Repo>,
    base: (&LogName, RunNo),
    leave_out: bool,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<Loaded> {
    let serving = Serving {
        buffer_pool_bytes: prepare::buffer_pool_bytes(ground.options, BUFFER_POOL_BYTES),
        orders: ["--local-infile=ON", "--max-allowed-packet=1G"].map(OsString::from).to_vec(),
        makes_accounts: true,
    };
    let begun = watch.elapsed();
    let mut report = None;
    serve::run(ground, serving, cancel, &mut |connect| {
        report = Some(load_into(ground, repo, base, (connect, leave_out), watch, cancel)?);
        Ok(())
    })?;
    let report: LoadReport = report.ok_or_else(|| Error::failed("nothing was loaded"))?;
    if report.plan.accounts == 0 {
        let text = "the backup has no accounts, and so has the restored server: start it with \
                    --skip-grant-tables to make some";
        watch.event(Event::Warning { text: text.to_owned() });
    }
    Ok(Loaded {
        program: ground.binary.path.clone(),
        version: ground.binary.version.to_string(),
        tables: report.plan.tables,
        rows: report.rows_loaded,
        row_bytes: report.row_bytes_loaded,
        tables_verified: report.tables_verified,
        accounts: report.plan.accounts,
        adapted: report.plan.adapted.iter().map(ToString::to_string).collect(),
        left_out: report.plan.left_out.iter().map(ToString::to_string).collect(),
        ms: u64::try_from((watch.elapsed() - begun).as_millis()).unwrap_or(u64::MAX),
    })
}

fn load_into(
    ground: &Ground<'_>,
    repo: &Arc<Repo>,
    (log, which): (&LogName, RunNo),
    (connect, leave_out): (&ConnectOptions, bool),
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<LoadReport> {
    let mut session = Session::open(connect, Purpose::Control)?;
    let us = connect.user.as_deref().unwrap_or_default();
    drop_installed_accounts(&mut session, &[us])?;
    // It would not survive hours of loading.
    drop(session);
    let options = LoadOptions {
        disable_redo: ground.server.flavor() == Flavor::MySql,
        leave_out,
        parallel: ground.options.parallel.max(1),
        ..LoadOptions::new(connect.clone())
    };
    let report = load::run(repo, log, which, &options, watch, cancel).map_err(|error| keys(error, ground))?;
    if uses_gtids(ground.server) {
        let mut session = Session::open(connect, Purpose::Control)?;
        for statement in set_gtids(&ground.server.version, ground.position).into_iter().flatten() {
            session.exec(&statement)?;
        }
    }
    Ok(report)
}

/// Adds a hint about keys, if the source had some and the server that loads was not told of any.
fn keys(error: Error, ground: &Ground<'_>) -> Error {
    let providers = &ground.server.encryption.key_providers;
    if providers.is_empty() || !ground.options.prepare_options.is_empty() {
        return error;
    }
    error.also_hinted(format_args!(
        "the source encrypts with keys from {}, which no backup contains: give the server that loads the \
         options for keys of its own with --prepare-option, or load into a running server (--to-server)",
        providers.join(", ")
    ))
}
