//! The thread that writes, in order, what is to be shown. So no operation waits for a reader while it holds
//! something on a server, and no signal is held up.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;

use super::progress::Look;

/// Lines that wait, from which on progress is left out: the reader is behind.
const BEHIND: usize = 16;
/// Bytes that wait, from which on all but results have to wait for the reader.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// How long a reader may read nothing after an interrupt before it is given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is written.
pub(super) enum Line {
    /// To standard output, for machines.
    Out(String),
    /// To standard output, for people.
    Text(String),
    /// To standard error, above the bar.
    Err(String),
    /// The bar has changed.
    Draw(Look),
    /// The bar is removed.
    EndBar,
}

impl Line {
    fn bytes(&self) -> usize {
        match self {
            Self::Out(text) | Self::Text(text) | Self::Err(text) => text.len(),
            Self::Draw(_) | Self::EndBar => 0,
        }
    }
}

/// Writes lines. Cheap to clone.
#[derive(Clone)]
pub(super) struct Writer(Arc<Shared>);

/// Does the writing; a line at a time.
type Sink = Box<dyn FnMut(Line) + Send>;

struct Shared {
    queue: Mutex<Queue>,
    moved: Condvar,
    sink: Mutex<Sink>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Line>,
    bytes: usize,
    is_writing: bool,
    written: u64,
    /// Started for the first line.
    has_thread: bool,
    is_interrupted: bool,
    has_no_reader: bool,
}

impl Writer {
    pub(super) fn new(sink: impl FnMut(Line) + Send + 'static) -> Self {
        Self(Arc::new(Shared {
            queue: Mutex::default(),
            moved: Condvar::new(),
            sink: Mutex::new(Box::new(sink)),
        }))
    }

    /// Whether progress is better left out, because the reader is behind.
    pub(super) fn is_behind(&self) -> bool {
        self.0.lock().waiting.len() >= BEHIND
    }

    /// Has a line written. Waits only if very much is unread, and not after an interrupt: what would have to wait
    /// then is left out.
    pub(super) fn write(&self, line: Line) {
        let mut queue = self.0.lock();
        while queue.bytes >= WAITING_BYTES_MAX && !queue.is_interrupted {
            queue = self.0.wait(queue, None);
        }
        if queue.bytes < WAITING_BYTES_MAX {
            self.push(queue, line);
        }
    }

    /// Has a line written without ever waiting.
    pub(super) fn write_soon(&self, line: Line) {
        self.push(self.0.lock(), line);
    }

    /// Waits until everything is written. False if an interrupt has arrived and nobody reads.
    pub(super) fn drain(&self) -> bool {
        let mut queue = self.0.lock();
        let (mut written, mut since) = (queue.written, None);
        while !queue.waiting.is_empty() || queue.is_writing {
            if queue.has_no_reader {
                return false;
            }
            let mut left = None;
            if queue.is_interrupted {
                let now = Instant::now();
                if written != queue.written {
                    (written, since) = (queue.written, None);
                }
                let waited = now.duration_since(*since.get_or_insert(now));
                queue.has_no_reader = waited >= PATIENCE;
                left = Some(PATIENCE.saturating_sub(waited));
            }
            queue = self.0.wait(queue, left);
        }
        true
    }

    /// From now on nothing waits for a reader for long.
    pub(super) fn interrupt(&self) {
        self.0.lock().is_interrupted = true;
        self.0.moved.notify_all();
    }

    fn push(&self, mut queue: MutexGuard<'_, Queue>, line: Line) {
        queue.bytes += line.bytes();
        queue.waiting.push_back(line);
        if !queue.has_thread {
            let shared = Arc::clone(&self.0);
            let started = thread::Builder::new().name("output".to_owned()).spawn(move || shared.go_on());
            queue.has_thread = started.is_ok();
        }
        let has_thread = queue.has_thread;
        drop(queue);
        match has_thread {
            true => self.0.moved.notify_all(),
            // Then whoever speaks writes.
            false => self.0.write_waiting(),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>, most: Option<Duration>) -> MutexGuard<'a, Queue> {
        match most {
            Some(most) => self.moved.wait_timeout(queue, most).unwrap_or_else(PoisonError::into_inner).0,
            None => self.moved.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Writes for as long as the program runs.
    fn go_on(&self) {
        loop {
            self.write_waiting();
            let mut queue = self.lock();
            while queue.waiting.is_empty() {
                queue = self.wait(queue, None);
            }
        }
    }

    /// Writes what waits.
    fn write_waiting(&self) {
        let mut sink = lock(&self.sink);
        let mut queue = self.lock();
        while let Some(line) = queue.waiting.pop_front() {
            let bytes = line.bytes();
            queue.is_writing = true;
            drop(queue);
            sink(line);
            queue = self.lock();
            queue.is_writing = false;
            queue.bytes -= bytes;
            queue.written += 1;
            self.moved.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A writer whose reader takes a line for each permission.
    fn slow() -> (Writer, Sender<()>, Receiver<String>) {
        let (permit, permitted) = channel::<()>();
        let (tell, told) = channel();
        let writer = Writer::new(move |line| {
            let _for_ever = permitted.recv();
            if let Line::Out(text) | Line::Err(text) = line {
                tell.send(text).unwrap();
            }
        });
        (writer, permit, told)
    }

    #[test]
    fn nobody_waits_for_a_slow_reader_and_nothing_is_lost() {
        let (writer, permit, told) = slow();
        assert!(!writer.is_behind());
        for number in 0..=BEHIND {
            writer.write(Line::Err(number.to_string()));
        }
        assert!(writer.is_behind());
        (0..=BEHIND).for_each(|_| permit.send(()).unwrap());
        assert!(writer.drain() && !writer.is_behind());
        assert!(told.try_iter().eq((0..=BEHIND).map(|number| number.to_string())));
    }

    /// A reader that reads nothing more holds up nothing once the program was asked to end.
    #[test]
    fn after_an_interrupt_nobody_waits_for_a_reader_that_stands_still() {
        let (writer, permit, _told) = slow();
        writer.write(Line::Err("x".repeat(WAITING_BYTES_MAX)));
        let blocked = writer.clone();
        let blocked = thread::spawn(move || blocked.write(Line::Err("left out".to_owned())));
        let owed = writer.clone();
        let owed = thread::spawn(move || owed.drain());
        writer.write_soon(Line::Out("the result".to_owned()));
        writer.interrupt();
        blocked.join().unwrap();
        assert!(!owed.join().unwrap());
        drop(permit);
    }

    /// One that reads slowly gets all of it all the same.
    #[test]
    fn a_reader_that_reads_on_is_waited_for_after_an_interrupt() {
        let (writer, permit, told) = slow();
        writer.interrupt();
        (0..3).for_each(|number| writer.write(Line::Err(number.to_string())));
        let reader = thread::spawn(move || {
            for _ in 0..3 {
                thread::sleep(PATIENCE / 2);
                permit.send(()).unwrap();
            }
        });
        assert!(writer.drain());
        assert_eq!(told.try_iter().count(), 3);
        reader.join().unwrap();
    }
}
