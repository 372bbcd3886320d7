//! Servers that we run ourselves, to prepare restored files or to read a dump: how such a program is started
//! and stopped, which options it gets, and the account through which we talk to it.

mod binary;
mod environment;
mod exit;
mod install;
mod log;
mod own_account;
mod own_options;
mod process;

pub use binary::ServerBinary;
pub use environment::{Network, Writes};
pub use exit::ServerExit;
pub(crate) use install::install;
pub(crate) use own_account::{OwnAccount, drop_installed_accounts, is_servers_own};
pub(crate) use own_options::{option_of, own_options};
pub use process::{RunAs, RunningServer, ServerRun};
pub(crate) use process::{SHORT_PLACE, takes_socket};

#[cfg(test)]
mod tests;
