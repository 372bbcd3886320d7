//! What a statement can fail with, typed where a caller must tell causes apart.

use std::{fmt, io};

use crate::error::{Error, ErrorKind};

/// Server error numbers that something is decided upon.
pub(crate) mod code {
    /// `max_connections` are there.
    pub(crate) const TOO_MANY_CONNECTIONS: u16 = 1040;
    /// The account has no right to the database.
    pub(crate) const ACCESS_DENIED_DATABASE: u16 = 1044;
    /// The account may not log in, or not do this.
    pub(crate) const ACCESS_DENIED: u16 = 1045;
    /// There is no such database.
    pub(crate) const NO_SUCH_SCHEMA: u16 = 1049;
    /// The server is going down.
    pub(crate) const SERVER_SHUTDOWN: u16 = 1053;
    /// There is no such column.
    pub(crate) const NO_SUCH_COLUMN: u16 = 1054;
    /// The server does not know such a statement.
    pub(crate) const SYNTAX_ERROR: u16 = 1064;
    /// There is no such session.
    pub(crate) const UNKNOWN_THREAD: u16 = 1094;
    /// Nobody may log in from this host.
    pub(crate) const HOST_NOT_ALLOWED: u16 = 1130;
    /// The account has no right to the table.
    pub(crate) const TABLE_ACCESS_DENIED: u16 = 1142;
    /// The account has no right to the column.
    pub(crate) const COLUMN_ACCESS_DENIED: u16 = 1143;
    /// There is no such table.
    pub(crate) const NO_SUCH_TABLE: u16 = 1146;
    /// The server has no variable of this name.
    pub(crate) const UNKNOWN_SYSTEM_VARIABLE: u16 = 1193;
    /// `max_user_connections` of the account are there.
    pub(crate) const TOO_MANY_USER_CONNECTIONS: u16 = 1203;
    /// A lock was not granted in time.
    pub(crate) const LOCK_WAIT_TIMEOUT: u16 = 1205;
    /// Those who wait would wait for ever.
    pub(crate) const LOCK_DEADLOCK: u16 = 1213;
    /// A limit of the account is reached.
    pub(crate) const USER_LIMIT_REACHED: u16 = 1226;
    /// The account lacks a privilege, which is named.
    pub(crate) const SPECIFIC_ACCESS_DENIED: u16 = 1227;
    /// The server does not have in its binlog what is asked for.
    pub(crate) const READING_FAILED: u16 = 1236;
    /// A literal has bytes that its character set does not have.
    pub(crate) const NOT_OF_CHARSET: u16 = 1300;
    /// Somebody ended the statement.
    pub(crate) const QUERY_INTERRUPTED: u16 = 1317;
    /// The account lacks a right on a program.
    pub(crate) const PROGRAM_DENIED: u16 = 1370;
    /// The definition is not that of the view any more.
    pub(crate) const DEFINITION_CHANGED: u16 = 1412;
    /// Noted of an event whose time has passed: it is there, and does not run.
    pub(crate) const EVENT_DISABLED: u16 = 1544;
    /// MariaDB shows no events: they are disabled, or their table was damaged at the start.
    pub(crate) const EVENTS_NOT_SHOWN: u16 = 1577;
    /// Noted of an event whose time has passed: it is gone again.
    pub(crate) const EVENT_GONE: u16 = 1588;
    /// The account may not log in by this means.
    pub(crate) const ACCESS_DENIED_NO_PASSWORD: u16 = 1698;
    /// No statement before the password is a new one.
    pub(crate) const PASSWORD_EXPIRED: u16 = 1820;
    /// No login with this password any more.
    pub(crate) const PASSWORD_EXPIRED_LOGIN: u16 = 1862;
    /// Somebody ended the session (MariaDB).
    pub(crate) const CONNECTION_KILLED: u16 = 1927;
    /// The account is locked (MySQL).
    pub(crate) const ACCOUNT_LOCKED: u16 = 3118;
    /// The server wants TLS, or a socket.
    pub(crate) const SECURE_TRANSPORT_REQUIRED: u16 = 3159;
    /// The account is locked (MariaDB).
    pub(crate) const ACCOUNT_LOCKED_MARIADB: u16 = 4151;
    /// A foreign key leads to columns that are not unique (MySQL).
    pub(crate) const NOT_UNIQUE: u16 = 6125;
}

/// Why a statement, or a connection, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlCause {
    /// The server answered with this error number.
    Refused(u16),
    /// The connection is gone, or the server did not answer in time; what the session held is released.
    Lost,
    /// The server's answer makes no sense to us.
    Protocol,
    /// A session's own deadline passed (`--lock-max`): it has let go of what it held.
    Expired,
    /// Asked for in an order in which it cannot be had; the server was not asked.
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

/// Longest piece of a statement in a message.
const STATEMENT_SHOWN_MAX: usize = 100;

impl SqlError {
    pub(crate) fn new(cause: SqlCause, message: impl Into<String>) -> SqlError {
        SqlError { cause, message: message.into(), doing: String::new(), hint: None }
    }

    /// Reads what the client library says of a failed `statement`.
    pub(crate) fn of_statement(error: mysql::Error, statement: &str) -> SqlError {
        SqlError::from_client(error).doing(shown(statement))
    }

    /// Reads what the client library says.
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

    pub(in crate::server) fn from_io(error: &io::Error) -> SqlError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                SqlError::new(SqlCause::Lost, "the server did not answer in time")
            }
            // How the TLS library says that it does not like what it reads.
            io::ErrorKind::InvalidData => SqlError::tls(error),
            _ => SqlError::new(SqlCause::Lost, format!("connection lost: {error}")),
        }
    }

    fn tls(error: impl fmt::Display) -> SqlError {
        SqlError::new(SqlCause::Protocol, format!("TLS failed: {error}"))
            .hinted("name by --ssl-ca the authority that signed the server's certificate")
    }

    /// A value of an answer that is missing or of another type than it must be.
    pub(crate) fn unexpected(what: impl fmt::Display) -> SqlError {
        SqlError::new(SqlCause::Protocol, format!("unexpected answer of the server: {what}"))
    }

    /// What no caller may ask for now.
    pub(crate) fn misuse(what: impl fmt::Display) -> SqlError {
        SqlError::new(SqlCause::Misuse, what.to_string())
    }

    pub(crate) fn doing(mut self, doing: impl Into<String>) -> SqlError {
        self.doing = doing.into();
        self
    }

    /// With what somebody else said of it.
    pub(crate) fn because(mut self, words: impl fmt::Display) -> SqlError {
        self.message = format!("{}: {words}", self.message);
        self
    }

    pub(crate) fn hinted(mut self, hint: impl Into<String>) -> SqlError {
        self.hint = Some(hint.into());
        self
    }

    /// What kind of failure it is.
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

    /// Whether a lock was not granted in time, or not granted because others who wait would have waited for ever;
    /// nothing else is wrong.
    #[must_use]
    pub fn is_lock_timeout(&self) -> bool {
        matches!(self.code(), Some(code::LOCK_WAIT_TIMEOUT | code::LOCK_DEADLOCK))
    }

    /// Whether somebody ended the statement, or the session.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self.code(), Some(code::QUERY_INTERRUPTED | code::CONNECTION_KILLED))
    }

    /// Whether the server was there, and said no for a reason that is seldom over soon: who asks, or how.
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
                "check --user and --password or --server-password-file, and whether the account may log in from this \
                 host and by this means (socket or TCP); MariaDB says the same where it demands TLS: --ssl-mode=required"
            }
            code::TOO_MANY_CONNECTIONS => {
                "raise max_connections, or name by --host and --port a port that has connections of its own: extra_port \
                 of MariaDB, admin_port of MySQL (SERVICE_CONNECTION_ADMIN)"
            }
            code::TOO_MANY_USER_CONNECTIONS | code::USER_LIMIT_REACHED => {
                "raise the resource limits of the account: a backup needs up to six connections at a time"
            }
            code::SECURE_TRANSPORT_REQUIRED => {
                "use --ssl-mode=required, or the socket: the account or the server demands TLS"
            }
            code::PASSWORD_EXPIRED | code::PASSWORD_EXPIRED_LOGIN => "give the account a new password",
            code::ACCOUNT_LOCKED | code::ACCOUNT_LOCKED_MARIADB => "unlock it: ALTER USER ... ACCOUNT UNLOCK",
            code::SPECIFIC_ACCESS_DENIED | code::TABLE_ACCESS_DENIED | code::ACCESS_DENIED_DATABASE => {
                "the account lacks a privilege: SHOW GRANTS lists what it has"
            }
            code::EVENTS_NOT_SHOWN => {
                "start the server with event_scheduler=OFF instead of DISABLED, which hides its events; where it is not \
                 DISABLED, the table mysql.event is damaged: mariadb-upgrade mends it"
            }
            code::QUERY_INTERRUPTED | code::CONNECTION_KILLED | code::SERVER_SHUTDOWN => {
                "somebody ended our session, or the server was shut down"
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

/// The beginning of a statement; those with long lists of tables would bury the message.
pub(in crate::server) fn shown(statement: &str) -> String {
    match statement.char_indices().nth(STATEMENT_SHOWN_MAX) {
        Some((end, _)) => format!("{} ...", &statement[..end]),
        None => statement.to_owned(),
    }
}
