//! Commits once every millisecond, to find out how long anything blocks commits.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use mysql::prelude::Queryable;

use super::Crew;
use crate::server::Server;

const INTERVAL: Duration = Duration::from_millis(1);

/// Inserts one row per millisecond, sequentially, into its own table, and times each commit.
#[derive(Debug)]
pub struct CommitProber {
    crew: Crew<Latencies>,
}

/// One commit.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// When it was sent.
    pub sent_at: Instant,
    /// The time until it was acknowledged.
    pub latency: Duration,
}

/// The measurements in chronological order.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Every commit.
    pub commits: Vec<Commit>,
}

impl CommitProber {
    /// Creates `probe.commits` and starts.
    pub fn start(server: &Server) -> Result<CommitProber> {
        server.exec_all([
            "CREATE DATABASE IF NOT EXISTS probe",
            "CREATE TABLE IF NOT EXISTS probe.commits (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB",
        ])?;
        let mut conn = server.conn()?;
        let mut crew = Crew::new();
        crew.add(move |stop| {
            let mut latencies = Latencies::default();
            while !stop.requested() {
                let sent_at = Instant::now();
                conn.query_drop("INSERT INTO probe.commits VALUES ()")?;
                let latency = sent_at.elapsed();
                latencies.commits.push(Commit { sent_at, latency });
                thread::sleep(INTERVAL.saturating_sub(latency));
            }
            Ok(latencies)
        });
        Ok(CommitProber { crew })
    }

    /// Stops the probe; returns the measurements.
    pub fn stop(mut self) -> Result<Latencies> {
        Ok(self.crew.finish()?.pop().unwrap_or_default())
    }
}

impl Latencies {
    /// The longest commit latency; zero if there were no commits.
    pub fn max(&self) -> Duration {
        self.commits.iter().map(|commit| commit.latency).max().unwrap_or_default()
    }

    /// The latency that `percent` percent of the commits do not exceed.
    pub fn percentile(&self, percent: f64) -> Duration {
        let mut sorted: Vec<Duration> = self.commits.iter().map(|commit| commit.latency).collect();
        sorted.sort_unstable();
        let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// The commits that were in progress at any time between the two instants.
    pub fn during(&self, begin: Instant, end: Instant) -> Latencies {
        let overlaps = |commit: &&Commit| commit.sent_at <= end && commit.sent_at + commit.latency >= begin;
        Latencies { commits: self.commits.iter().filter(overlaps).copied().collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Commit, Latencies};

    /// Percentiles use the nearest rank; a commit belongs to every window that it overlaps.
    #[test]
    fn latencies_are_summed_up_rightly() {
        let begin = Instant::now();
        let ms = Duration::from_millis;
        let commits = (1..=100).map(|i| Commit { sent_at: begin + ms(10 * i), latency: ms(i) }).collect();
        let latencies = Latencies { commits };
        assert_eq!(latencies.max(), ms(100));
        assert_eq!(latencies.percentile(50.0), ms(50));
        assert_eq!(latencies.percentile(95.0), ms(95));
        assert_eq!(Latencies::default().percentile(95.0), Duration::ZERO);
        // Commits 5 (50 to 55 ms) and 6 (60 to 66 ms).
        assert_eq!(latencies.during(begin + ms(55), begin + ms(62)).commits.len(), 2);
    }
}
