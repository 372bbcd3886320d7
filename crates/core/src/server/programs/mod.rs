//! Servers that we run ourselves, to prepare restored files or to read a dump: how such a program is started
//! and stopped, which options it gets, and the account through which we talk to it.

mod install;
mod own_account;
mod own_options;
mod process;

pub(crate) use install::install;
pub(crate) use own_account::{OwnAccount, drop_installed_accounts, is_servers_own};
pub(crate) use own_options::{option_of, own_options};
pub use process::{Network, RunAs, RunningServer, ServerBinary, ServerExit, ServerRun};
pub(crate) use process::{SHORT_PLACE, takes_socket};
