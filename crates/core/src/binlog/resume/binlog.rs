//! A server's binlog: what it has committed, and its files.

use holdfast_formats::{Flavor, Gtids, gtid::MariaDbGtidPos};

use super::events::{Events, First};
use crate::{
    binlog::{
        recorder::FILE_BEGIN,
        stream::{StreamBegin, StreamOptions},
        stretch::{BinlogServer, Logged, Place, parse_gtids},
    },
    error::{Context as _, Error, ErrorKind, Result},
    server::{ConnectOptions, Session, SqlCause, SqlError, facts::Identity},
};

/// Size of the header before an encrypted binlog of MySQL.
const ENCRYPTION_HEADER_BYTES: u64 = 512;

/// A server's binlog. The server tells everything but the list of its files
/// even while its commits wait for an acknowledgement.
pub(in crate::binlog) struct Binlog {
    pub(in crate::binlog) server: BinlogServer,
    pub(in crate::binlog) identity: Identity,
    /// Leads to this server only.
    pub(in crate::binlog) connect: ConnectOptions,
    /// GTIDs of all transactions, where the server assigns them.
    pub(in crate::binlog) gtids: Option<Gtids>,
    /// The last transaction of each server in each domain that its binlog has had (MariaDB).
    pub(super) logged: Logged,
    /// The last replicated transaction of each domain that its binlog never had (MariaDB): a server that was
    /// restored has those from the backup.
    pub(super) held: MariaDbGtidPos,
    pub(super) events: Events,
    session: Session,
    files: Option<Files>,
    /// Whether it was asked for its files and has not answered, or is not to be asked.
    is_silent: bool,
}

/// A server's binlog files and where they end, oldest first.
pub(in crate::binlog) struct Files(Vec<(String, u64)>);

impl Binlog {
    /// Asks the server for its identity, and for what it has committed. Its events will be read over connections by
    /// `connect` that lead to the same server.
    pub(in crate::binlog) fn read(
        mut session: Session,
        connect: &ConnectOptions,
        options: StreamOptions,
    ) -> Result<Self> {
        let version = session.version().clone();
        let is_on = session.variable("log_bin")?.is_some_and(|value| value != "0");
        if !is_on {
            return Err(Error::new(ErrorKind::Server, "the server writes no binlog")
                .hinted("set log_bin in its configuration, and restart it"));
        }
        let identity = session.identity()?;
        let server = BinlogServer::of(version, &identity);
        let gtids = executed(&mut session)?;
        let (logged, held) = logged(&mut session)?;
        let connect = connect.leading_to(&identity);
        let events = Events::new(&connect, options);
        Ok(Self {
            server,
            identity,
            connect,
            gtids,
            logged,
            held,
            events,
            session,
            files: None,
            is_silent: false,
        })
    }

    /// Its files. They may hold more than the GTIDs that were read before, never less.
    pub(in crate::binlog) fn files(&mut self) -> Result<&Files> {
        let files = match self.files.take() {
            Some(files) => files,
            None if self.is_silent => return Err(unlisted()),
            None => Files::list(&mut self.session).map_err(|error| {
                self.is_silent = *error.cause() == SqlCause::Lost;
                if self.is_silent { unlisted().caused_by(error) } else { error.into() }
            })?,
        };
        Ok(self.files.insert(files))
    }

    /// The first transaction that it sends. If there is none, it has said which files it has.
    pub(super) fn first_after(&mut self, begin: &StreamBegin) -> Result<First> {
        let first = self.events.first_transaction(begin)?;
        if !matches!(first, First::End) || self.files.is_some() {
            return Ok(first);
        }
        // Requesting a place acknowledges everything before it. What is committed until the files are listed
        // may be before their end, and is sent now.
        self.files()?;
        self.events.first_transaction(begin)
    }

    /// Its files, if they were asked for.
    pub(in crate::binlog) fn into_files(self) -> Option<Files> {
        self.files
    }

    /// From now on it is not asked for its files: it would not answer.
    pub(in crate::binlog) fn silence(&mut self) {
        self.is_silent = true;
    }

    /// Whether it does not answer which files it has.
    pub(in crate::binlog) fn is_silent(&self) -> bool {
        self.is_silent
    }

    pub(super) fn oldest(&mut self) -> Result<Place> {
        self.files()?.oldest()
    }

    /// Whether it has said that a file is longer than an event can tell.
    pub(super) fn is_long(&self, file: &str) -> bool {
        let size = self.files.as_ref().and_then(|files| files.size(file));
        size.is_some_and(|size| size > u64::from(u32::MAX))
    }
}

fn unlisted() -> Error {
    Error::new(ErrorKind::Server, "the server did not say in time which binlog files it has")
}

/// GTIDs of all transactions that a server has, where it assigns them.
pub(in crate::binlog) fn executed(session: &mut Session) -> Result<Option<Gtids>> {
    let flavor = session.flavor();
    let executed = session.value(match flavor {
        Flavor::MySql => "SELECT @@GLOBAL.gtid_executed",
        Flavor::MariaDb => "SELECT @@GLOBAL.gtid_binlog_pos",
    })?;
    let gtids = parse_gtids(flavor, &executed.unwrap_or_default())?;
    Ok((!gtids.is_empty()).then_some(gtids))
}

/// What the binlog of a MariaDB server has had, and what it has replicated in other domains.
fn logged(session: &mut Session) -> Result<(Logged, MariaDbGtidPos)> {
    if session.flavor() == Flavor::MySql {
        return Ok(Default::default());
    }
    let mut read = |variable: &str| -> Result<MariaDbGtidPos> {
        let value = session.value(&format!("SELECT @@GLOBAL.{variable}"))?.unwrap_or_default();
        value.parse().context("read the state of the server's binlog")
    };
    let (logged, mut held) = (Logged(read("gtid_binlog_state")?), read("gtid_slave_pos")?);
    logged.0.iter().for_each(|gtid| held.leave_out(gtid.domain));
    Ok((logged, held))
}

impl Files {
    /// Asks the server. It may not answer while commits wait for an acknowledgement: the lock that this needs
    /// is held on MariaDB by the second waiting commit, on MySQL by whoever ends a file meanwhile.
    pub(in crate::binlog) fn list(session: &mut Session) -> Result<Self, SqlError> {
        let mut files = Vec::new();
        for row in session.rows("SHOW BINARY LOGS")? {
            let size: u64 = row.number("File_size")?;
            let is_encrypted = row.has("Encrypted") && row.text("Encrypted")? == "Yes";
            // Offsets in a file do not count MySQL's encryption header.
            let hidden = if is_encrypted { ENCRYPTION_HEADER_BYTES } else { 0 };
            files.push((row.text("Log_name")?.to_owned(), size.saturating_sub(hidden)));
        }
        Ok(Self(files))
    }

    pub(super) fn size(&self, file: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == file).map(|(_, size)| *size)
    }

    /// Whether the place exists.
    pub(in crate::binlog) fn has(&self, place: &Place) -> bool {
        self.size(&place.file).is_some_and(|size| size >= place.position)
    }

    pub(super) fn first(&self) -> Option<&str> {
        self.0.first().map(|(name, _)| name.as_str())
    }

    /// The beginning of the oldest file.
    fn oldest(&self) -> Result<Place> {
        let file =
            self.first().ok_or_else(|| Error::new(ErrorKind::Server, "the server has no binlog files"))?;
        Ok(Place { file: file.to_owned(), position: FILE_BEGIN })
    }

    /// The file that follows another.
    pub(super) fn file_after(&self, file: &str) -> Option<&str> {
        let at = self.0.iter().position(|(name, _)| name == file)?;
        self.0.get(at + 1).map(|(name, _)| name.as_str())
    }

    /// Where the newest file ends.
    pub(in crate::binlog) fn end(&self) -> Option<Place> {
        let (file, size) = self.0.last()?;
        Some(Place { file: file.clone(), position: *size })
    }

    /// Bytes from a place on; `None` if its file does not exist.
    pub(in crate::binlog) fn bytes_from(&self, place: &Place) -> Option<u64> {
        let at = self.0.iter().position(|(name, _)| *name == place.file)?;
        let bytes: u64 = self.0[at..].iter().map(|(_, size)| size).sum();
        Some(bytes.saturating_sub(place.position))
    }
}
