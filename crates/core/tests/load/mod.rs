//! Logical backups loaded into running servers.
//! The reference is the servers themselves: their descriptions of each object, and checksums of their rows.

use holdfast_core::{
    Cancel, Result,
    logical::{
        Selection,
        load::{self, Conversions, LoadOptions, LoadReport, Rename, Renames, Way},
    },
};
use holdfast_repo::RunNo;
use holdfast_testkit::{Server, ServerKind};

use crate::{
    listeners::Told,
    logical::{
        Stage, assert_same_objects, assert_same_rows, load_file, load_torture, log, round_trip::histories,
        start,
    },
};

mod computed;
mod converted;
mod elsewhere;
mod full_text;
mod interrupted;
mod names;
mod other_servers;
mod passwords;
mod random;
mod redo;
mod refused;
mod round_trip;
mod shapes;
mod told;
mod ways;

/// A source with every type and kind of object, and its backup.
fn saved(kind: ServerKind) -> (Stage, u64) {
    let stage = Stage::new(kind);
    load_torture(&stage.source);
    let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    (stage, report.run.backup)
}

fn options(target: &Server) -> LoadOptions {
    LoadOptions { parallel: 3, ..LoadOptions::new(crate::server::options(target)) }
}

fn load(stage: &Stage, backup: u64, options: &LoadOptions) -> Result<LoadReport> {
    load::run(&stage.repo, &log(), RunNo(backup), options, &Told, &Cancel::default())
}

/// A server that has executed the statements, and its backup.
fn backed_up(kind: ServerKind, statements: &[&str]) -> (Stage, u64) {
    let stage = Stage::new(kind);
    stage.source.exec_all(statements).unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    (stage, backup)
}

/// Checks that none of our helper schemas is left.
pub(crate) fn assert_clean(target: &Server) {
    let schemas: Vec<String> = target.query("SHOW DATABASES LIKE 'holdfast%'").unwrap();
    assert!(schemas.is_empty(), "{schemas:?}");
}
