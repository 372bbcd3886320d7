//! Standard output for contents that may be long, whose reader may close it early.

use std::io::{self, StdoutLock, Write};

/// Standard output, which remembers whether its reader has closed it.
pub(crate) struct ClosableStdout {
    out: StdoutLock<'static>,
    has_gone: bool,
}

impl ClosableStdout {
    pub(crate) fn lock() -> Self {
        Self { out: io::stdout().lock(), has_gone: false }
    }

    /// Whether the reader has seen enough, as with "| head".
    pub(crate) fn has_gone(&self) -> bool {
        self.has_gone
    }

    fn noted<T>(&mut self, written: io::Result<T>) -> io::Result<T> {
        self.has_gone |= written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        written
    }
}

impl Write for ClosableStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.noted(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.noted(flushed)
    }
}
