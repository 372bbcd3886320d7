//! How a server is reached, and the session that asks it: options, the ways there (a socket, TLS, another host), statements
//! one at a time, and what they can fail with.

mod connect;
mod option_file;
mod relay;
mod secret;
mod session;
mod sql_error;
mod tls;
mod tunnel;

pub use connect::{ConnectOptions, Endpoint, Protocol, Purpose, SslMode};
pub use option_file::{CLIENT_GROUPS, OptionFile, OptionFileError};
pub use secret::Secret;
pub(super) use session::{ANSWER_MARGIN, STATEMENT_TIMEOUT};
pub use session::{ByteRow, Row, Session};
pub(crate) use sql_error::code;
pub(super) use sql_error::shown;
pub use sql_error::{SqlCause, SqlError};
pub use tunnel::{SshHost, SshOptions, Tunnel};

/// What our sessions are called in the server's connection attributes.
pub(super) const PROGRAM_NAME: &str = "holdfast";
/// The connection attribute that names the run.
pub(super) const RUN_ATTRIBUTE: &str = "holdfast_run";
/// The connection attribute that names a session's [`Purpose`].
pub(super) const PURPOSE_ATTRIBUTE: &str = "holdfast_purpose";
