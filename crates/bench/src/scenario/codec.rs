//! The speed of the codecs alone, on this data and this machine: the bound for every compressed backup.
//!
//! No files, no hashing, no encryption: chunks in memory pass through the codec that Holdfast uses, on one
//! core and on all.

use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};
use holdfast_pipe::Compression;
use holdfast_pipe::codec::Compressor;
use holdfast_testkit::ServerKind;
use rustix::time::{ClockId, clock_gettime};

use super::{Scenario, group};
use crate::args::Options;
use crate::pages;
use crate::results::{Cache, Load, Unit};
use crate::run::Bench;
use crate::source::Source;

/// Enough for roughly a second; spread over all files.
const SAMPLE_BYTES: u64 = 256 << 20;
const CODECS: [&str; 2] = ["zstd:1", "lz4"];

pub(crate) struct CodecSpeed;

impl Scenario for CodecSpeed {
    fn name(&self) -> &'static str {
        "codec"
    }

    fn about(&self) -> &'static str {
        "speed of the codecs alone, in memory"
    }

    fn expected_s(&self, _kind: ServerKind, options: &Options) -> f64 {
        const SAMPLE_ONCE_S: f64 = 4.0;
        f64::from(options.rounds) * SAMPLE_ONCE_S
    }

    fn run(&self, bench: &mut Bench, source: &mut Source) -> Result<()> {
        let group = group(self, source.kind(), Cache::Warm, Load::Idle);
        let chunks = pages::sample(&source.data_files()?, SAMPLE_BYTES)?;
        let plain_bytes: usize = chunks.iter().map(Vec::len).sum();
        for name in CODECS {
            let compression: Compression = name.parse()?;
            let (mut one_core, mut all_cores, mut ratio) = (Vec::new(), Vec::new(), 0.0);
            for _ in 0..bench.options.rounds {
                let begun_s = thread_cpu_s();
                let compressed_bytes = compress(&chunks, compression)?;
                one_core.push(plain_bytes as f64 / (thread_cpu_s() - begun_s));
                ratio = compressed_bytes as f64 / plain_bytes as f64;
                all_cores.push(on_all_cores(&chunks, compression)?);
            }
            let codec = name.replace(':', "-");
            let each = [
                ("core", Unit::BytesPerCpuS, one_core),
                ("all", Unit::BytesPerS, all_cores),
                ("ratio", Unit::Ratio, vec![ratio]),
            ];
            for (what, unit, values) in each {
                let label = match what {
                    "core" => format!("{name}, one core"),
                    "all" => format!("{name}, all cores together"),
                    _ => format!("{name}, compressed / plain"),
                };
                bench.figure(&group, &format!("{codec}-{what}"), &label, unit, values);
            }
        }
        Ok(())
    }
}

fn compress(chunks: &[Vec<u8>], compression: Compression) -> Result<u64> {
    let mut compressor = Compressor::new(compression)?;
    let (mut out, mut bytes) = (Vec::new(), 0);
    for chunk in chunks {
        compressor.compress(chunk, &mut out)?;
        bytes += out.len() as u64;
    }
    Ok(bytes)
}

/// Bytes per second when every core compresses a share.
fn on_all_cores(chunks: &[Vec<u8>], compression: Compression) -> Result<f64> {
    let cores = thread::available_parallelism()?.get();
    let begun = Instant::now();
    thread::scope(|scope| {
        let shares = chunks.chunks(chunks.len().div_ceil(cores).max(1));
        let workers: Vec<_> = shares.map(|share| scope.spawn(move || compress(share, compression))).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| anyhow!("a thread panicked"))?.map(drop))
    })?;
    let bytes: usize = chunks.iter().map(Vec::len).sum();
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

/// CPU time of this thread, which excludes time taken by other processes.
fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
