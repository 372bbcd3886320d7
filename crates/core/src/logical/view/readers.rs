//! Step 2: the sessions that will read rows, and their metadata locks on all tables.

use std::{collections::BTreeMap, thread};

use holdfast_formats::Flavor;

use super::{READER_SILENCE_MAX, View, ViewRequest, stopped::Stopped};
use crate::{
    event::Cancel,
    logical::{
        catalog::{
            listing::{Listed, TableKind},
            tables::{self, EngineKind},
        },
        selection::Selection,
    },
    server::{Purpose, Session, SqlCause, SqlError, bulk},
};

/// How many tables one statement touches; servers join at most 61.
const TOUCHED_AT_ONCE: usize = 50;
/// The longest time that a server waits for a client to take what it sends.
const NET_TIMEOUT_MAX_S: u64 = 31_536_000;
/// If a server sorts after all, how many bytes of each key value it compares: more than an index holds of
/// one.
const SORTED_BYTES_MAX: u32 = 65_536;

impl View {
    /// Runs `work` for all readers at once.
    pub(super) fn with_all_readers(
        &mut self,
        work: impl Fn(&mut Session) -> Result<(), SqlError> + Sync,
    ) -> Result<(), SqlError> {
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.readers.iter_mut().map(|reader| scope.spawn(move || work(reader))).collect();
            let lost = || SqlError::new(SqlCause::Lost, "a thread ended early");
            let outcomes: Vec<_> =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(lost()))).collect();
            outcomes.into_iter().collect()
        })
    }

    /// Tables that readers touch and read.
    pub(super) fn touched(&self) -> impl Iterator<Item = &Listed> {
        self.listing.with_rows().filter(|table| is_touched(table))
    }

    /// Tables whose engine has no views.
    pub(super) fn locked_while_read(&self) -> impl Iterator<Item = &Listed> {
        let is_table = |table: &&Listed| matches!(table.kind, TableKind::Base | TableKind::Versioned);
        let kind = |table: &Listed| table.engine.as_deref().map(EngineKind::of);
        self.listing.with_rows().filter(is_table).filter(move |table| kind(table) == Some(EngineKind::Locked))
    }

    /// The statements that touch all tables that are read.
    pub(super) fn touches(&self) -> Vec<String> {
        let names: Vec<String> = self.touched().map(|table| table.name.quoted()).collect();
        let chunks = names.chunks(TOUCHED_AT_ONCE);
        chunks.map(|names| format!("SELECT 1 FROM {} LIMIT 0", names.join(", "))).collect()
    }

    /// Step 2: begins transactions and touches all tables.
    pub(super) fn touch_all(&mut self) -> Result<(), Stopped> {
        for reader in &mut self.readers {
            reader.exec("START TRANSACTION READ ONLY")?;
        }
        self.touch_all_in_transactions()
    }

    /// Touches all tables in a transaction of `session`.
    pub(super) fn touch_by(&self, session: &mut Session) -> Result<(), Stopped> {
        session.exec("START TRANSACTION READ ONLY")?;
        self.touches().iter().try_for_each(|touch| session.exec(touch)).map_err(not_touched)
    }

    pub(super) fn touch_all_in_transactions(&mut self) -> Result<(), Stopped> {
        let statements = self.touches();
        let touched =
            self.with_all_readers(|reader| statements.iter().try_for_each(|touch| reader.exec(touch)));
        touched.map_err(not_touched)
    }

    /// Reads the definitions of the tables whose metadata locks the readers hold.
    pub(super) fn read_tables(
        &mut self,
        control: &mut Session,
        selection: &Selection,
        cancel: &Cancel,
    ) -> Result<(), Stopped> {
        let mut by_schema = BTreeMap::<&str, Vec<&Listed>>::new();
        for listed in self.listing.with_rows().filter(|listed| listed.kind != TableKind::Sequence) {
            by_schema.entry(&listed.name.schema).or_default().push(listed);
        }
        for (schema, listed) in by_schema {
            cancel.check()?;
            self.tables.extend(tables::of_schema(control, schema, &listed, selection)?);
        }
        Ok(())
    }
}

/// Opens a session to read rows: as they are stored, in one view, and not dropped while it waits.
pub(super) fn open_reader(wanted: &ViewRequest<'_>) -> Result<Session, Stopped> {
    let mut session = Session::open_patiently(wanted.connect, Purpose::Rows)?;
    let silence = READER_SILENCE_MAX.as_secs();
    let stall = silence.saturating_add(wanted.hold_up_max.as_secs()).min(NET_TIMEOUT_MAX_S);
    session.exec(&format!(
        "SET SESSION character_set_results = NULL, sql_mode = 'ALLOW_INVALID_DATES', \
         max_sort_length = {SORTED_BYTES_MAX}, wait_timeout = {silence}, net_write_timeout = {stall}"
    ))?;
    if session.flavor() == Flavor::MariaDb {
        session.exec("SET SESSION idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0")?;
    }
    bulk::expect_many_rows(&mut session)?;
    Ok(session)
}

/// Why tables were not touched. One that may not be read is not a matter of locks.
fn not_touched(error: SqlError) -> Stopped {
    match Stopped::from(error) {
        Stopped::Less(error) => Stopped::Failed(error),
        other => other,
    }
}

/// Whether touching a table has an effect: there must be an engine that can open it.
fn is_touched(table: &Listed) -> bool {
    let kind = table.engine.as_deref().map(EngineKind::of);
    matches!(kind, Some(EngineKind::Views | EngineKind::Locked))
}
