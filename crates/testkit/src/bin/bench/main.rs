//! `make bench`: what backup and restore cost, beside MariaDB's own tool on the same busy server.
//!
//! On a machine that others use, only interleaved runs can be compared: each round runs every contestant once, and the
//! table shows medians over the rounds.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_testkit::data::shop;
use holdfast_testkit::load::WriteLoad;
use holdfast_testkit::observe::{directory_bytes, observe};
use holdfast_testkit::program::{self, Holdfast};
use holdfast_testkit::{Server, ServerKind, ServerOptions};

const USAGE: &str =
    "usage: bench [--server mariadb-10.11|mariadb-11.8|mysql-9.7] [--size-mib N] [--rounds N]";
const WRITERS: u32 = 4;
const TRANSACTIONS_PER_WRITER_PER_SECOND: u32 = 50;
const UNDISTURBED: Duration = Duration::from_secs(5);

/// One run of one contestant, in the units of the table.
#[derive(Clone, Copy)]
struct Figures {
    wall_s: f64,
    cpu_s: f64,
    stored_mib: f64,
    transactions_per_second: f64,
    latency_max_ms: f64,
}

/// Runs by contestant, in the order of the table.
type Runs = BTreeMap<&'static str, Vec<Figures>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the bench failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let (mut kind, mut size_mib, mut rounds) = (ServerKind::MariaDb1011, 1024, 3);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().context(USAGE)?;
        match argument.as_str() {
            "--server" => {
                kind =
                    ServerKind::all_kinds().into_iter().find(|kind| kind.name() == value).context(USAGE)?;
            }
            "--size-mib" => size_mib = value.parse().context(USAGE)?,
            "--rounds" => rounds = value.parse().context(USAGE)?,
            _ => bail!(USAGE),
        }
    }
    let scratch = tempfile::Builder::new().prefix("holdfast-bench-").tempdir()?;
    let options = ServerOptions { buffer_pool_mib: 512, redo_mib: 1024, ..ServerOptions::default() };
    let source = Server::start(kind, options.parent(scratch.path()))?;
    shop::load(&source, shop::ShopOptions { size_mib, ..shop::ShopOptions::default() })?;
    let load = WriteLoad::start_paced(&source, WRITERS, 1, Some(TRANSACTIONS_PER_WRITER_PER_SECOND))?;
    let tables_bytes = directory_bytes(&source.datadir().join("shop"))?;
    println!("{kind}, {:.0} MiB of tables, {rounds} rounds, medians", mib(tables_bytes));
    let mut runs = Runs::new();
    for round in 0..rounds {
        let dir = scratch.path().join(format!("round-{round}"));
        fs::create_dir(&dir)?;
        one_round(&source, &load, kind, &dir, &mut runs)?;
        fs::remove_dir_all(&dir)?;
    }
    load.stop()?;
    print_table(&runs);
    Ok(())
}

fn one_round(source: &Server, load: &WriteLoad, kind: ServerKind, dir: &Path, runs: &mut Runs) -> Result<()> {
    let measure = |runs: &mut Runs, name, stored_in: &Path, what: &dyn Fn() -> Result<()>| -> Result<()> {
        let size = |dir: &Path| if dir.exists() { directory_bytes(dir) } else { Ok(0) };
        let stored_before = size(stored_in)?;
        let cpu_before = children_cpu()?;
        let begun = Instant::now();
        let ((), seen) = observe(source, load, what).with_context(|| name)?;
        runs.entry(name).or_default().push(Figures {
            wall_s: begun.elapsed().as_secs_f64(),
            cpu_s: (children_cpu()? - cpu_before).as_secs_f64(),
            stored_mib: mib(size(stored_in)?.saturating_sub(stored_before)),
            transactions_per_second: seen.transactions_per_second,
            latency_max_ms: seen.latency_max.as_secs_f64() * 1000.0,
        });
        Ok(())
    };
    measure(runs, "0 no backup", dir, &|| {
        thread::sleep(UNDISTURBED);
        Ok(())
    })?;

    let holdfast = Holdfast::new(program::built_program()?, dir)?;
    holdfast.init()?;
    let repo = holdfast.repo();
    let restored = dir.join("restored");
    measure(runs, "1 holdfast, first backup", repo, &|| holdfast.backup(source).map(drop))?;
    measure(runs, "2 holdfast, next backup", repo, &|| holdfast.backup(source).map(drop))?;
    measure(runs, "3 holdfast, restore", &restored, &|| holdfast.restore(kind, &restored).map(drop))?;
    fs::remove_dir_all(&restored)?;

    if kind.is_mariadb() {
        let peer = kind.program("mariadb-backup")?;
        let mbstream = kind.program("mbstream")?;
        let file = dir.join("peer");
        fs::create_dir(&file)?;
        let (peer, mbstream, socket) = (peer.display(), mbstream.display(), source.socket().display());
        let backup = format!(
            "{peer} --no-defaults --backup --stream=xbstream --parallel=2 --socket={socket} --user=root \
             --target-dir={0} | zstd -q -1 -T2 > {0}/backup.zst",
            file.display()
        );
        let unpack = format!(
            "mkdir {1} && zstd -q -d -c {0}/backup.zst | {mbstream} -x -C {1} && \
             {peer} --no-defaults --prepare --use-memory=256M --target-dir={1}",
            file.display(),
            restored.display()
        );
        measure(runs, "4 mariadb-backup | zstd -1", &file, &|| shell(&backup))?;
        measure(runs, "5 mariadb-backup, restore", &restored, &|| shell(&unpack))?;
    }
    Ok(())
}

fn shell(script: &str) -> Result<()> {
    let output =
        Command::new("bash").args(["-c", "set -eo pipefail; eval \"$1\"", "bash", script]).output()?;
    ensure!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Processor time of all children that have ended.
fn children_cpu() -> Result<Duration> {
    /// The unit of these fields, whatever the kernel's own clock.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in parentheses, may contain anything; cutime and cstime are fields 16 and 17.
    let fields = stat.rsplit_once(')').context("no name in /proc/self/stat")?.1;
    let ticks: f64 =
        fields.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(Duration::from_secs_f64(ticks / TICKS_PER_SECOND))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn print_table(runs: &Runs) {
    println!(
        "{:<28}{:>9}{:>9}{:>12}{:>9}{:>16}",
        "", "wall s", "CPU s", "stored MiB", "tx/s", "longest commit"
    );
    for (name, figures) in runs {
        let median = |of: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = figures.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!(
            "{:<28}{:>9.1}{:>9.1}{:>12.0}{:>9.0}{:>13.0} ms",
            &name[2..],
            median(|run| run.wall_s),
            median(|run| run.cpu_s),
            median(|run| run.stored_mib),
            median(|run| run.transactions_per_second),
            median(|run| run.latency_max_ms),
        );
    }
}
