//! The binlog archive: the contents of a server's binlog, in the repository after about a second, as one
//! sequence from backup to backup and from server to server.
//!
//! [`archive()`] registers as a replica does and records the events as they arrive; [`Archive`] reads them
//! back, in order, together with the gaps between them.
//! The stored form is in `docs/reference/repository.md` sections 6a and 9.
//!
//! Invariants:
//! - The bytes of a stretch are those of the server's file between two offsets. Nothing is added, left out or
//!   changed, except that MariaDB's event that says how the rest of the file is encrypted is not stored.
//! - What is acknowledged is durable: in the repository or,
//!   if the user says that this suffices, on this host.
//! - An archive continues at exactly the next event, identified by the bytes of the last one,
//!   or else names what is missing.
//!
//! Where what is:
//!
//! - the form: [`stretch`] (what heads, segments and tails say), [`batch`] (the records of a segment);
//! - from the server: [`wire`] (the protocol), [`stream`] (the binlog by it), [`queue`] (what is read ahead);
//! - storing: [`recorder`] (events into stretches), [`segments`] and [`spool`] (durable at once), [`run`] (one
//!   run, with both), [`stored`] (what is there), [`filing`] and [`mod@close`] (segments that were left go into
//!   packs);
//! - deciding: [`resume`] (where to continue), [`left_out`] (what the server does not log), [`semi_sync`] (what
//!   it promises);
//! - [`mod@archive`] does all of this, as long as it is told to, with warnings by [`recurring`]; [`read`] gives
//!   everything back.

mod archive;
mod backoff;
mod batch;
mod close;
mod filing;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod left_out;
mod queue;
mod read;
mod recorder;
mod recurring;
mod resume;
mod run;
mod segments;
mod semi_sync;
mod spool;
mod stored;
mod stream;
mod stretch;
mod wire;

pub use archive::{ArchiveOptions, ArchiveReport, Away, archive};
pub use close::{Closed, close};
pub use filing::{Filed, file_segments, plan_filing};
pub(crate) use read::Occurrence;
pub use read::{
    After, Archive, ArchivedEvent, ArchivedStretch, Base, Chain, EachEvent, FileContent, Search, Taken,
    TransactionSummary, Unreadable,
};
pub use spool::SpoolOptions;
pub use stored::{Unfiled, unfiled};
pub use stretch::{BinlogServer, Gap, GapKind, Place, Stretch};
