//! What a server that we run has logged, in bounded memory.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::FileExt,
};

use crate::error::{Context, Result};

/// How much of a log is kept: this much of its beginning, this much of its end, and from the middle up to
/// this much of lines that are not notes.
const LOG_PART_MAX: u64 = 4 << 20;
/// A longer line is treated as several.
const LOG_LINE_MAX: u64 = 64 << 10;
pub(super) const ERROR_LOG: &str = "error.log";
pub(super) const OUTPUT: &str = "output.log";

/// The files that the process logs to, in the order in which they are read.
#[derive(Debug)]
pub(super) struct Logs {
    /// Standard output and error.
    pub(super) output: File,
    /// The error log, which the server opens by name.
    pub(super) error: File,
}

impl Logs {
    /// Everything that the run is judged by.
    pub(super) fn read(&self) -> Result<Vec<String>> {
        self.lines(bounded)
    }

    /// The end of the log, which shows its progress.
    pub(super) fn newest(&self) -> Result<Vec<String>> {
        self.lines(end_of)
    }

    fn lines(&self, read: fn(&File) -> io::Result<String>) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for (name, file) in [(OUTPUT, &self.output), (ERROR_LOG, &self.error)] {
            let text = read(file).context(format_args!("read the server's {name}"))?;
            lines.extend(text.lines().map(str::to_owned));
        }
        Ok(lines)
    }
}

fn end_of(file: &File) -> io::Result<String> {
    let at = file.metadata()?.len().saturating_sub(LOG_PART_MAX);
    let mut bytes = Vec::new();
    Reading { file, at }.take(LOG_PART_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The text of a log. If it is long, notes in its middle are left out. All other lines are kept, because the
/// run is judged by them; too many of them in the middle are an error.
fn bounded(file: &File) -> io::Result<String> {
    let end_begins = file.metadata()?.len().saturating_sub(LOG_PART_MAX);
    let mut lines = BufReader::new(Reading { file, at: 0 });
    let (mut kept, mut line) = (Vec::new(), Vec::new());
    let (mut at, mut kept_of_middle, mut left_out) = (0, 0, 0);
    while lines.by_ref().take(LOG_LINE_MAX).read_until(b'\n', &mut line)? > 0 {
        let (begin, bytes) = (at, line.len() as u64);
        at += bytes;
        let is_middle = begin >= LOG_PART_MAX && at <= end_begins;
        if is_middle && is_note(&line) {
            left_out += bytes;
        } else {
            if left_out > 0 {
                kept.extend_from_slice(format!("[{left_out} bytes of notes left out]\n").as_bytes());
                left_out = 0;
            }
            if is_middle {
                kept_of_middle += bytes;
            }
            if kept_of_middle > LOG_PART_MAX {
                return Err(io::Error::other(format!(
                    "it is more than {LOG_PART_MAX} bytes, not counting notes"
                )));
            }
            kept.extend_from_slice(&line);
        }
        line.clear();
    }
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// Whether a line only reports the normal course of events, as both flavors mark it.
fn is_note(line: &[u8]) -> bool {
    const MARK: &[u8] = b" [Note] ";
    line.windows(MARK.len()).any(|bytes| bytes == MARK)
}

/// Reads without moving the file offset, which the process shares.
struct Reading<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A long log keeps its beginning, its end, and every line of its middle that is not a note.
    #[test]
    fn long_logs() {
        const ERROR: &str = "2026-11-24T14:00:00Z 0 [ERROR] [MY-012345] [InnoDB] a page is gone\n";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let note = format!("2026-11-24T14:00:00Z 0 [Note] [MY-012345] [InnoDB] {}\n", "x".repeat(47));
        let (part, read) = (LOG_PART_MAX as usize, || bounded(&File::open(&path).unwrap()));
        let short = note.repeat(part / note.len());
        fs::write(&path, &short).unwrap();
        assert_eq!(read().unwrap(), short);
        // The error is in the middle; the notes around it begin or end a part.
        let long = [&*short, &note, &note, ERROR, &note, &note, &short].concat();
        fs::write(&path, &long).unwrap();
        let kept = read().unwrap();
        assert!(kept.starts_with(&short) && kept.ends_with(&short) && kept.len() < long.len());
        assert_eq!(kept.matches(ERROR).count(), 1);
        assert!(kept.contains("bytes of notes left out]\n"));
        // Lines other than notes are never left out silently.
        fs::write(&path, "a word that says nothing\n".repeat(part / 8)).unwrap();
        assert!(read().unwrap_err().to_string().contains("not counting notes"));
    }
}
