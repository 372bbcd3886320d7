//! Runs a server for a caller that asks it something, or has it load rows. Its log is not judged: restored
//! files were judged already, and the caller sees the answers.

use std::ffi::OsString;

use super::{
    buffer_pool::buffer_pool_bytes,
    options::RestoreOptions,
    own_server::{PrivateFiles, account},
    target::io_failed,
};
use crate::{
    error::{Error, Result},
    event::Cancel,
    points::point,
    server::{
        ConnectOptions,
        programs::{OwnAccount, option_of},
    },
};

/// How the server is started.
pub(super) struct Serving {
    pub(super) buffer_pool_bytes: u64,
    /// Further options.
    pub(super) orders: Vec<OsString>,
    /// Whether our account may let others act as anybody.
    pub(super) makes_accounts: bool,
}

impl Serving {
    /// For questions.
    pub(super) fn answers(options: &RestoreOptions) -> Self {
        Self { buffer_pool_bytes: buffer_pool_bytes(options, 0), orders: Vec::new(), makes_accounts: false }
    }
}

/// Starts the server, lets `ask` talk to it, and shuts it down.
pub(super) fn run(
    files: &PrivateFiles<'_>,
    serving: Serving,
    cancel: &Cancel,
    ask: &mut dyn FnMut(&ConnectOptions) -> Result<()>,
) -> Result<()> {
    const DOING: &str = "start a server on the restored files";
    let tree = files.tree;
    let own = OwnAccount::random()?;
    let init = account::write_creation(&own, files, serving.makes_accounts)?;
    let mut orders = vec![option_of("--init-file=", &tree.path_of(&init))];
    orders.extend(serving.orders);
    orders.extend(files.without_plugins());
    let mut server = files.start(serving.buffer_pool_bytes, orders, None)?;
    // An idle session would not survive hours of asking.
    drop(own.connect(&mut server, DOING, cancel)?);
    point("restore.serving");
    let asked = ask(&own.options(&server));
    if let Err(error) = asked {
        return Err(if server.has_ended() { server.explain(error, "ask the server") } else { error });
    }
    account::end(&own, own.connect(&mut server, "end the server on the restored files", cancel)?)?;
    let exit = server.wait(cancel)?;
    if !exit.status.success() {
        return Err(Error::failed(format!("the server on the restored files ended with {}", exit.status)));
    }
    tree.remove(&init).map_err(|error| io_failed("remove", tree.path_of(&init), error))
}
