//! Errors of statements, typed where a caller must distinguish their causes.

use std::{fmt, io};

use super::code;
use crate::error::{Error, ErrorKind};

/// A file is not there (ENOENT).
const NOT_THERE: u32 = 2;
/// What a storage engine says of a broken table: its index is corrupted, it is of the wrong type, has wrong rows or an
/// old format, a repair of it has failed, or it is marked as crashed.
const BROKEN_BY_ENGINE: [u32; 6] = [126, 127, 130, 132, 144, 145];

/// Why a statement, or a connection, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlCause {
    /// The server answered with this error number.
    Refused(u16),
    /// The connection is gone, or the server did not answer in time; whatever the session held is released.
    Lost,
    /// The server's answer violates what we expect of it.
    Protocol,
    /// The session's own deadline passed (`--lock-max`): it has released what it held.
    Expired,
    /// An operation was requested in an invalid order; the server was not asked.
    Misuse,
}

/// A failed statement or connection attempt. Becomes an [`Error`] of kind [`ErrorKind::Server`].
#[derive(Clone, Debug)]
pub struct SqlError {
    cause: SqlCause,
    message: String,
    doing: String,
    hint: Option<String>,
}

/// Longest part of a statement that a message shows.
const STATEMENT_SHOWN_MAX: usize = 100;

impl SqlError {
    pub(crate) fn new(cause: SqlCause, message: impl Into<String>) -> SqlError {
        SqlError { cause, message: message.into(), doing: String::new(), hint: None }
    }

    /// Converts the client library's error for a failed `statement`.
    pub(crate) fn of_statement(error: mysql::Error, statement: &str) -> SqlError {
        SqlError::from_client(error).doing(shown(statement))
    }

    /// Converts the client library's error.
    pub(crate) fn from_client(error: mysql::Error) -> SqlError {
        use mysql::Error as E;
        match error {
            E::MySqlError(error) => {
                let message = format!("{} (error {})", error.message, error.code);
                SqlError::new(SqlCause::Refused(error.code), message)
            }
            E::IoError(error) => SqlError::from_io(&error),
            E::CodecError(error) => match std::error::Error::source(&error).and_then(|e| e.downcast_ref()) {
                Some(error) => SqlError::from_io(error),
                None => SqlError::new(SqlCause::Protocol, error.to_string()),
            },
            E::DriverError(error) => SqlError::new(SqlCause::Protocol, error.to_string()),
            other => SqlError::new(SqlCause::Protocol, other.to_string()),
        }
    }

    /// Parses the server's error packet, without its first byte: number, `#` and state, text.
    pub(crate) fn from_packet(packet: &[u8]) -> SqlError {
        let Some((number, rest)) = packet.split_first_chunk::<2>() else {
            return SqlError::unexpected("an error without a number");
        };
        let number = u16::from_le_bytes(*number);
        let text = rest.strip_prefix(b"#").and_then(|rest| rest.get(5..)).unwrap_or(rest);
        let text = String::from_utf8_lossy(text);
        SqlError::new(SqlCause::Refused(number), format!("{} (error {number})", text.trim_end()))
    }

    pub(in crate::server) fn from_io(error: &io::Error) -> SqlError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                SqlError::new(SqlCause::Lost, "the server did not answer in time")
            }
            // The TLS library's way to reject what it reads.
            io::ErrorKind::InvalidData => SqlError::tls(error),
            _ => SqlError::new(SqlCause::Lost, format!("connection lost: {error}")),
        }
    }

    fn tls(error: impl fmt::Display) -> SqlError {
        SqlError::new(SqlCause::Protocol, format!("TLS failed: {error}"))
            .hinted("use --ssl-ca to name the authority that signed the server's certificate")
    }

    /// An answer lacks a value, or has one of the wrong type.
    pub(crate) fn unexpected(what: impl fmt::Display) -> SqlError {
        SqlError::new(SqlCause::Protocol, format!("unexpected answer from the server: {what}"))
    }

    /// An operation that the caller may not request now.
    pub(crate) fn misuse(what: impl fmt::Display) -> SqlError {
        SqlError::new(SqlCause::Misuse, what.to_string())
    }

    pub(crate) fn doing(mut self, doing: impl Into<String>) -> SqlError {
        self.doing = doing.into();
        self
    }

    /// Appends what another program said about the failure.
    pub(crate) fn because(mut self, words: impl fmt::Display) -> SqlError {
        self.message = format!("{}: {words}", self.message);
        self
    }

    pub(crate) fn hinted(mut self, hint: impl Into<String>) -> SqlError {
        self.hint = Some(hint.into());
        self
    }

    /// The kind of failure.
    #[must_use]
    pub fn cause(&self) -> &SqlCause {
        &self.cause
    }

    /// The server's error number, if the server answered.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self.cause {
            SqlCause::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// Whether a lock was not granted in time, or was refused because of a deadlock; nothing else is wrong.
    #[must_use]
    pub fn is_lock_timeout(&self) -> bool {
        matches!(self.code(), Some(code::LOCK_WAIT_TIMEOUT | code::LOCK_DEADLOCK))
    }

    /// Whether the table that was asked for is broken, so that nobody can open it. What is not known to say that may
    /// say that the server is short of something at the moment, as of files that it may open: then others have the
    /// table open.
    pub(crate) fn is_of_a_broken_table(&self) -> bool {
        match self.code() {
            Some(
                code::NOT_A_KEY_FILE
                | code::OLD_KEY_FILE
                | code::WRONG_MERGE_TABLE
                | code::CRASHED
                | code::CRASHED_IN_REPAIR
                | code::UNKNOWN_ENGINE
                | code::ENGINE_DISABLED
                | code::NO_SUCH_TABLE_IN_ENGINE,
            ) => true,
            Some(
                code::CANNOT_STAT_FILE
                | code::FILE_NOT_FOUND
                | code::CANNOT_OPEN_FILE
                | code::CANNOT_FIND_FILE,
            ) => self.errno().is_some_and(|errno| errno == NOT_THERE || BROKEN_BY_ENGINE.contains(&errno)),
            // The storage engine's own number: MySQL passes it on when a table is opened.
            Some(code) => BROKEN_BY_ENGINE.contains(&code.into()),
            None => false,
        }
    }

    /// The number of an error of the system or of a storage engine that the message quotes.
    fn errno(&self) -> Option<u32> {
        let (_, after) = self.message.split_once("errno")?;
        let digits = after.trim_start_matches([':', ' ']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    }

    /// Whether the statement or the session was killed.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self.code(), Some(code::QUERY_INTERRUPTED | code::CONNECTION_KILLED))
    }

    /// Whether the server was reached, and failed us for a reason that seldom passes soon, such as the
    /// account or the way it logs in.
    pub(crate) fn lasts(&self) -> bool {
        match &self.cause {
            SqlCause::Refused(code) => {
                self.is_denied()
                    || matches!(
                        *code,
                        code::HOST_NOT_ALLOWED
                            | code::ACCESS_DENIED_NO_PASSWORD
                            | code::PASSWORD_EXPIRED
                            | code::PASSWORD_EXPIRED_LOGIN
                            | code::SECURE_TRANSPORT_REQUIRED
                            | code::ACCOUNT_LOCKED
                            | code::ACCOUNT_LOCKED_MARIADB
                    )
            }
            SqlCause::Protocol => true,
            _ => false,
        }
    }

    /// Whether a privilege is missing.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(
            self.code(),
            Some(
                code::SPECIFIC_ACCESS_DENIED
                    | code::TABLE_ACCESS_DENIED
                    | code::COLUMN_ACCESS_DENIED
                    | code::ACCESS_DENIED_DATABASE
                    | code::ACCESS_DENIED
            )
        )
    }

    fn standard_hint(&self) -> Option<&'static str> {
        Some(match self.code()? {
            code::ACCESS_DENIED | code::ACCESS_DENIED_NO_PASSWORD => {
                "check --user and --password or --server-password-file, and whether the account may log in \
                 from this host and by this means (socket or TCP); MariaDB says the same if it requires TLS: \
                 --ssl-mode=required"
            }
            code::TOO_MANY_CONNECTIONS => {
                "raise max_connections, or connect to a port with its own connection limit (--host, --port): \
                 extra_port on MariaDB, admin_port on MySQL (needs SERVICE_CONNECTION_ADMIN)"
            }
            code::TOO_MANY_USER_CONNECTIONS | code::USER_LIMIT_REACHED => {
                "raise the resource limits of the account: a backup needs up to six connections at a time"
            }
            code::SECURE_TRANSPORT_REQUIRED => {
                "use --ssl-mode=required, or the socket: the account or the server requires TLS"
            }
            code::PASSWORD_EXPIRED | code::PASSWORD_EXPIRED_LOGIN => "give the account a new password",
            code::ACCOUNT_LOCKED | code::ACCOUNT_LOCKED_MARIADB => "unlock it: ALTER USER ... ACCOUNT UNLOCK",
            code::SPECIFIC_ACCESS_DENIED
            | code::TABLE_ACCESS_DENIED
            | code::COLUMN_ACCESS_DENIED
            | code::ACCESS_DENIED_DATABASE => "the account lacks a privilege: SHOW GRANTS lists what it has",
            code::EVENTS_NOT_SHOWN => {
                "start the server with event_scheduler=OFF instead of DISABLED, which hides its events; if \
                 it is not DISABLED, the table mysql.event is damaged: repair it with mariadb-upgrade"
            }
            code::QUERY_INTERRUPTED | code::CONNECTION_KILLED | code::SERVER_SHUTDOWN => {
                "the session was killed, or the server was shut down"
            }
            _ => return None,
        })
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.doing.is_empty() {
            write!(f, "{}: ", self.doing)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for SqlError {}

impl From<SqlError> for Error {
    fn from(error: SqlError) -> Error {
        let result = Error::new(ErrorKind::Server, error.to_string());
        let result = match error.hint.as_deref().or(error.standard_hint()) {
            Some(hint) => result.hinted(hint),
            None => result,
        };
        result.caused_by(error)
    }
}

/// The beginning of a statement; a long list of tables would bury the message.
pub(in crate::server) fn shown(statement: &str) -> String {
    match statement.char_indices().nth(STATEMENT_SHOWN_MAX) {
        Some((end, _)) => format!("{} ...", &statement[..end]),
        None => statement.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_that_a_table_is_broken() {
        let is_broken =
            |code, message: &str| SqlError::new(SqlCause::Refused(code), message).is_of_a_broken_table();
        for (code, message) in [
            (1168, "Unable to open underlying table which is differently defined"),
            (145, "Table './d/t' is marked as crashed and should be repaired"),
            (1194, "Table './d/t' is marked as crashed and should be repaired"),
            (1016, "Can't open file: './d/t.MYI' (errno: 145 - Table was marked as crashed)"),
            (1017, "Can't find file: './d/t.MYI' (errno: 2 - No such file or directory)"),
            (29, "File './d/t.MYD' not found (OS errno 2 - No such file or directory)"),
            (13, "Can't get stat of './d/t.CSV' (OS errno 2 - No such file or directory)"),
        ] {
            assert!(is_broken(code, message), "{code}: {message}");
        }
        for (code, message) in [
            (1016, "Can't open file: './d/t.MYI' (errno: 24 - Too many open files)"),
            (1016, "Can't open file: './d/t.MYI'"),
            (23, "Out of resources when opening file './d/t.CSV' (OS errno 24 - Too many open files)"),
            (29, "File './d/t.MYD' not found (OS errno 24 - Too many open files)"),
            (29, "File './d/t.MYD' not found (OS errno 13 - Permission denied)"),
            (1105, "Unknown error"),
            (code::QUERY_INTERRUPTED, ""),
            (5, "Out of memory (Needed 8192 bytes)"),
        ] {
            assert!(!is_broken(code, message), "{code}: {message}");
        }
        assert!(!SqlError::new(SqlCause::Lost, "").is_of_a_broken_table());
    }
}
