//! Checks for room before anything is stored: refuses what certainly does not fit, and warns about what
//! probably does not.
//!
//! Only certainties are refused, because the user cannot override a refusal: how well data compresses and how
//! much of it has changed is known only when the backup is over.

use std::path::Path;

use holdfast_pipe::Compression;
use holdfast_repo::{LogName, Repo, log::history::History};

use super::{BackupOptions, reach::Reached};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::{Event, Listener},
    head::read_head,
    size::ByteSize,
};

/// Percentage of its size to which the data of any real server compresses at best.
const LEAST_PERCENT: u64 = 5;
/// Assumed percentage of the data that changed since the previous backup, if nothing tells.
const CHANGED_PERCENT: u64 = 10;

/// What the repository holds of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// Nothing that can be reused.
    Nothing,
    /// Data that a run without a base stored before it ended early.
    Part,
    /// A backup, and what the last one added if it had a base itself.
    Backup { added_bytes: Option<u64> },
}

/// What a backup will add to the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Forecast {
    least_bytes: u64,
    likely_bytes: u64,
}

impl Forecast {
    fn new(data_bytes: u64, compression: Compression, stored: Stored) -> Self {
        let (least, likely) = match compression {
            Compression::None => (100, 100),
            // Cautious: pages of tables shrink to a third or less more often than not.
            Compression::Lz4 => (LEAST_PERCENT, 50),
            Compression::Zstd { .. } | Compression::Gzip { .. } => (LEAST_PERCENT, 40),
        };
        let whole_bytes = percent(data_bytes, likely);
        match stored {
            Stored::Nothing => Self { least_bytes: percent(data_bytes, least), likely_bytes: whole_bytes },
            Stored::Part => Self { least_bytes: 0, likely_bytes: whole_bytes },
            Stored::Backup { added_bytes } => Self {
                least_bytes: 0,
                likely_bytes: added_bytes.unwrap_or(percent(whole_bytes, CHANGED_PERCENT)),
            },
        }
    }
}

fn percent(bytes: u64, percent: u64) -> u64 {
    bytes / 100 * percent
}

/// Refuses to begin if the backup, or the redo captured meanwhile, cannot fit.
pub(crate) fn room(
    repo: &Repo,
    log: &LogName,
    reached: &Reached,
    options: &BackupOptions,
    listener: &dyn Listener,
) -> Result<()> {
    let redo_bytes = reached.redo_capacity_bytes().min(options.redo_spool_max_bytes);
    room_for_redo(options.spool_dir(), redo_bytes, reached.spool_reserve_bytes(options))?;
    let Some(free) = repo.store().free_bytes().map_err(holdfast_repo::RepoError::from)? else {
        return Ok(());
    };
    let forecast =
        Forecast::new(reached.data_bytes(), options.writer.compression, stored(repo, log, options.full)?);
    if free < forecast.least_bytes {
        let (free, data) = (ByteSize(free), ByteSize(reached.data_bytes()));
        let hint = match options.writer.compression {
            Compression::None => "make room, choose another repository, or compress (--compress)",
            _ => "make room, or choose another repository",
        };
        let text = format!("only {free} free, too little for a full backup of {data}");
        return Err(Error::new(ErrorKind::Store, text).hinted(hint));
    }
    if free < forecast.likely_bytes {
        let (free, likely) = (ByteSize(free), ByteSize(forecast.likely_bytes));
        let location = repo.store().location();
        let text = format!("{location} has {free} free; this backup may need about {likely}");
        listener.event(Event::Warning { text });
    }
    Ok(())
}

fn stored(repo: &Repo, log: &LogName, full: bool) -> Result<Stored> {
    let history = History::read(repo, log)?;
    let Some(newest) = history.newest_base(repo, None).filter(|_| !full) else {
        return Ok(if history.adoptable().is_empty() { Stored::Nothing } else { Stored::Part });
    };
    // A forecast must not fail because of a damaged record.
    let head = read_head(repo, &history, newest).ok();
    let added_bytes = head.filter(|head| head.base.is_some()).map(|head| head.totals.bytes_stored);
    Ok(Stored::Backup { added_bytes })
}

/// On a busy server, the redo from one checkpoint on is as much as the log holds, and all of it is captured.
fn room_for_redo(dir: &Path, redo_bytes: u64, reserve_bytes: u64) -> Result<()> {
    const CHOOSE: &str =
        "choose a directory with enough room (--spool-dir), or allow less redo (--spool-max)";
    const ELSEWHERE: &str = "choose a directory on another file system (--spool-dir)";
    let space = rustix::fs::statvfs(dir)
        .context(format_args!("look at the directory {} for the redo spool", dir.display()))
        .map_err(|error| error.hinted(CHOOSE))?;
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    if free_bytes >= redo_bytes.saturating_add(reserve_bytes) {
        return Ok(());
    }
    let (free, needed) = (ByteSize(free_bytes), ByteSize(redo_bytes));
    let mut text = format!(
        "only {free} free in {}, too little for the {needed} of redo that a backup may have to capture",
        dir.display()
    );
    if reserve_bytes > 0 {
        text.push_str(&format!(" and {} for the server, which writes there, too", ByteSize(reserve_bytes)));
    }
    let less_would_do = free_bytes > reserve_bytes;
    Err(Error::failed(text).hinted(if less_would_do { CHOOSE } else { ELSEWHERE }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const ZSTD: Compression = Compression::Zstd { level: 1 };

    fn forecast(compression: Compression, stored: Stored) -> (u64, u64) {
        let it = Forecast::new(100 * GIB, compression, stored);
        (it.least_bytes.div_ceil(GIB), it.likely_bytes.div_ceil(GIB))
    }

    #[test]
    fn a_first_backup_needs_what_its_codec_leaves() {
        assert_eq!(forecast(Compression::None, Stored::Nothing), (100, 100));
        assert_eq!(forecast(Compression::Lz4, Stored::Nothing), (5, 50));
        assert_eq!(forecast(ZSTD, Stored::Nothing), (5, 40));
        assert_eq!(forecast(Compression::Gzip { level: 6 }, Stored::Nothing), (5, 40));
    }

    #[test]
    fn what_an_unfinished_run_has_stored_is_not_needed_again() {
        assert_eq!(forecast(Compression::None, Stored::Part), (0, 100));
    }

    #[test]
    fn a_later_backup_is_like_the_one_before_and_never_refused() {
        let stored = Stored::Backup { added_bytes: Some(7 * GIB) };
        assert_eq!(forecast(ZSTD, stored), (0, 7));
        assert_eq!(forecast(Compression::None, stored), (0, 7));
        let first = Stored::Backup { added_bytes: None };
        assert_eq!(forecast(ZSTD, first), (0, 4));
        assert_eq!(forecast(Compression::None, first), (0, 10));
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        let it = Forecast::new(u64::MAX, Compression::None, Stored::Nothing);
        assert!(it.least_bytes > u64::MAX - 100);
    }

    #[test]
    fn a_spool_without_room_for_the_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        room_for_redo(dir.path(), 1, 0).unwrap();
        for (redo_bytes, reserve_bytes) in [(1, u64::MAX), (u64::MAX, 1)] {
            let error = room_for_redo(dir.path(), redo_bytes, reserve_bytes).unwrap_err();
            assert!(error.to_string().contains("for the server, which writes there, too"), "{error}");
        }
        let error = room_for_redo(dir.path(), u64::MAX, 0).unwrap_err();
        assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
        assert!(error.hint().unwrap().contains("--spool-dir"), "{error:?}");
        let error = room_for_redo(&dir.path().join("absent"), 1, 1).unwrap_err();
        assert!(error.to_string().contains("absent") && error.hint().is_some(), "{error:?}");
    }
}
