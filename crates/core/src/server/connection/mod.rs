//! How to reach a server, and the session that queries it: options, ways to connect (a socket, TLS, another
//! host), statements one at a time, and their errors.

pub(crate) mod code;
mod connect;
mod endpoint;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod option_file;
mod options;
mod relay;
mod secret;
mod session;
mod socket_dir;
mod sql_error;
mod tls;
mod tunnel;

pub use endpoint::Endpoint;
pub use option_file::{CLIENT_GROUPS, OptionFile, OptionFileError};
pub use options::{ConnectOptions, Protocol, Purpose, SslMode};
pub use secret::Secret;
pub(super) use session::{ANSWER_MARGIN, STATEMENT_TIMEOUT};
pub use session::{ByteRow, Row, Session};
pub(super) use sql_error::shown;
pub use sql_error::{SqlCause, SqlError};
pub use tunnel::{SshHost, SshOptions, Tunnel};

/// The program name in the connection attributes of our sessions.
pub(super) const PROGRAM_NAME: &str = "holdfast";
/// The connection attribute that names the run.
pub(super) const RUN_ATTRIBUTE: &str = "holdfast_run";
/// The connection attribute that names a session's [`Purpose`].
pub(super) const PURPOSE_ATTRIBUTE: &str = "holdfast_purpose";
