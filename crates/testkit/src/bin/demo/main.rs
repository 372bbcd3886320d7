//! `make demo`: backs up a busy server, restores the backup, attaches it as a replica, and
//! proves that both are equal.
//!
//! Every Holdfast operation is a call of the `holdfast` program with the options that an operator would type.
//! All figures are measured from outside: by the clock, by the size of directories, and
//! by clients of the server.

mod screen;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_testkit::data::shop;
use holdfast_testkit::load::{WriteLoad, writes};
use holdfast_testkit::observe::{directory_bytes, observe};
use holdfast_testkit::program::{self, Holdfast};
use holdfast_testkit::replica;
use holdfast_testkit::{Server, ServerKind, ServerOptions, assert_equal_checksums};

use screen::{Screen, bytes, seconds};

const USAGE: &str =
    "usage: demo [--server mariadb-10.11|mariadb-11.8|mysql-9.7] [--size-mib N] [--holdfast PROGRAM]";

/// The writers leave the server some headroom, as an application does.
const WRITERS: u32 = 4;
const TRANSACTIONS_PER_WRITER_PER_SECOND: u32 = 50;
/// How long the load runs without a backup, for comparison, and the time between backups.
const UNDISTURBED: Duration = Duration::from_secs(5);
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(300);

struct Options {
    kind: ServerKind,
    size_mib: u64,
    program: PathBuf,
}

fn options() -> Result<Options> {
    let mut options =
        Options { kind: ServerKind::MariaDb1011, size_mib: 512, program: program::built_program()? };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().context(USAGE)?;
        match argument.as_str() {
            "--server" => options.kind = value.parse().map_err(anyhow::Error::msg).context(USAGE)?,
            "--size-mib" => options.size_mib = value.parse().context(USAGE)?,
            "--holdfast" => options.program = PathBuf::from(value),
            _ => bail!(USAGE),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let screen = Screen::default();
    match options().and_then(|options| run(&options, &screen)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            screen.error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options, screen: &Screen) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("holdfast-demo-").tempdir()?;
    screen.title(&format!("Holdfast: a hot backup of a busy {}, restored and proven equal", options.kind));

    let begun = Instant::now();
    let source = start_source(options, scratch.path())?;
    let loaded = directory_bytes(&source.datadir().join("shop"))?;
    screen.step(
        "server",
        &format!("{} of tables in the schema shop, loaded in {}", bytes(loaded), seconds(begun)),
    );

    let load = WriteLoad::start_paced(&source, WRITERS, 1, Some(TRANSACTIONS_PER_WRITER_PER_SECOND))?;
    let ((), quiet) = observe(&source, &load, || {
        thread::sleep(UNDISTURBED);
        Ok(())
    })?;
    screen.step("load", &format!("{WRITERS} writers, from here to the end: {quiet}"));

    let holdfast = Holdfast::new(options.program.clone(), scratch.path())?;
    let init = holdfast.init()?;
    screen.command(&init, "encrypted, compressed repository");

    for what in ["first backup: everything", "second backup: what changed"] {
        let stored_before = directory_bytes(holdfast.repo())?;
        let (backup, busy) = observe(&source, &load, || holdfast.backup(&source, "demo"))?;
        let stored = directory_bytes(holdfast.repo())?.saturating_sub(stored_before);
        screen.command(&backup, &format!("{what}; {} added to the repository", bytes(stored)));
        screen.detail(&backup.last_line);
        screen.detail(&format!("meanwhile {busy}"));
        thread::sleep(UNDISTURBED);
    }

    let target = scratch.path().join("restored");
    let restore = holdfast.restore(options.kind, "latest", &target)?;
    screen.command(
        &restore,
        &format!("{} restored and recovered by the server's own program", bytes(directory_bytes(&target)?)),
    );
    prove(&source, load, options.kind, &target, scratch.path(), screen)
}

fn start_source(options: &Options, parent: &Path) -> Result<Server> {
    let server_options = ServerOptions {
        buffer_pool_mib: Some(512),
        redo_mib: Some(512),
        lean: false,
        ..ServerOptions::default()
    };
    let source = Server::start(options.kind, server_options.parent(parent))?;
    shop::load(&source, shop::ShopOptions { size_mib: options.size_mib, ..shop::ShopOptions::default() })?;
    Ok(source)
}

/// Starts a server on the restored directory, lets it replicate from the busy source, and compares the two.
fn prove(
    source: &Server,
    load: WriteLoad,
    kind: ServerKind,
    target: &Path,
    home: &Path,
    screen: &Screen,
) -> Result<()> {
    let begun = Instant::now();
    let restored = Server::attach(kind, target, ServerOptions::default().parent(home))?;
    let moves = writes::check_ledger(&restored).context("the restored books do not balance")?;
    screen.step(
        "start",
        &format!("a server runs on it after {}; its books balance: {moves} transfers", seconds(begun)),
    );

    let begun = Instant::now();
    let position = program::restored_position(target)?;
    let began_at = replica::follow(source, &restored, &position)?;
    replica::wait(source, &restored, CATCH_UP_DEADLINE)?;
    screen.step("replica", &format!("of the busy server, from the recorded position {began_at}"));
    screen.detail(&format!("caught up after {}", seconds(begun)));

    let counts = load.stop()?;
    replica::wait(source, &restored, CATCH_UP_DEADLINE)?;
    let tables = assert_equal_checksums(source, &restored)?;
    screen.step("proof", &format!("the checksums of all {tables} tables are equal on both servers,"));
    screen.detail(&format!("after {} transactions of the writers", counts.committed));
    screen.end("Everything ran in a temporary directory, which is removed now.");
    Ok(())
}
