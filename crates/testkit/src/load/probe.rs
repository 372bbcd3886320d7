//! Executes small statements all the time, to find out how long anything blocks them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use mysql::prelude::Queryable;

use super::Crew;
use crate::server::Server;

/// Executes one statement after the other, and times each.
#[derive(Debug)]
pub struct Prober {
    crew: Crew<Latencies>,
}

/// One statement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When it was sent.
    pub sent_at: Instant,
    /// The time until it was answered.
    pub latency: Duration,
}

/// The measurements in chronological order.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Of every statement.
    pub all: Vec<Sample>,
}

impl Prober {
    /// Creates `probe.commits`, and commits a row to it every millisecond.
    pub fn of_commits(server: &Server) -> Result<Prober> {
        server.exec_all([
            "CREATE DATABASE IF NOT EXISTS probe",
            "CREATE TABLE IF NOT EXISTS probe.commits (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB",
        ])?;
        Self::start(server, Duration::from_millis(1), &["INSERT INTO probe.commits VALUES ()"])
    }

    /// Creates and drops a view, `probe.shown`, every few milliseconds.
    pub fn of_definitions(server: &Server) -> Result<Prober> {
        server.exec("CREATE DATABASE IF NOT EXISTS probe")?;
        let statements = &["CREATE OR REPLACE VIEW probe.shown AS SELECT 1 AS one", "DROP VIEW probe.shown"];
        Self::start(server, Duration::from_millis(20), statements)
    }

    /// Executes the statements in turn, each `interval` after the one before, or as soon as that has ended.
    fn start(server: &Server, interval: Duration, statements: &'static [&'static str]) -> Result<Prober> {
        let mut conn = server.conn()?;
        let mut crew = Crew::new();
        crew.add(move |stop| {
            let mut latencies = Latencies::default();
            for statement in statements.iter().cycle() {
                if stop.requested() {
                    break;
                }
                let sent_at = Instant::now();
                conn.query_drop(statement)?;
                let latency = sent_at.elapsed();
                latencies.all.push(Sample { sent_at, latency });
                thread::sleep(interval.saturating_sub(latency));
            }
            Ok(latencies)
        });
        Ok(Prober { crew })
    }

    /// Stops the probe; returns the measurements.
    pub fn stop(mut self) -> Result<Latencies> {
        Ok(self.crew.finish()?.pop().unwrap_or_default())
    }
}

impl Latencies {
    /// The longest latency; zero if there is none.
    pub fn max(&self) -> Duration {
        self.all.iter().map(|it| it.latency).max().unwrap_or_default()
    }

    /// The latency that `percent` percent do not exceed.
    pub fn percentile(&self, percent: f64) -> Duration {
        let mut sorted: Vec<Duration> = self.all.iter().map(|it| it.latency).collect();
        sorted.sort_unstable();
        let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Those that were in progress at any time between the two instants.
    pub fn during(&self, begin: Instant, end: Instant) -> Latencies {
        let overlaps = |it: &&Sample| it.sent_at <= end && it.sent_at + it.latency >= begin;
        Latencies { all: self.all.iter().filter(overlaps).copied().collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Latencies, Sample};

    /// Percentiles use the nearest rank; a statement belongs to every window that it overlaps.
    #[test]
    fn latencies_are_summed_up_rightly() {
        let begin = Instant::now();
        let ms = Duration::from_millis;
        let all = (1..=100).map(|i| Sample { sent_at: begin + ms(10 * i), latency: ms(i) }).collect();
        let latencies = Latencies { all };
        assert_eq!(latencies.max(), ms(100));
        assert_eq!(latencies.percentile(50.0), ms(50));
        assert_eq!(latencies.percentile(95.0), ms(95));
        assert_eq!(Latencies::default().percentile(95.0), Duration::ZERO);
        // Number 5 (50 to 55 ms) and number 6 (60 to 66 ms).
        assert_eq!(latencies.during(begin + ms(55), begin + ms(62)).all.len(), 2);
    }
}
