//! Runs a server on restored files for a caller that asks it something. Its log is not judged: the files were
//! judged already, and the caller sees the answers.

use super::{account, own_server::Ground, prepare, target::io_failed};
use crate::{
    error::{Error, Result},
    event::Cancel,
    points::point,
    server::{
        ConnectOptions,
        programs::{OwnAccount, option_of},
    },
};

/// Starts the server, lets `ask` talk to it, and shuts it down.
pub(super) fn run(
    ground: &Ground<'_>,
    cancel: &Cancel,
    ask: &mut dyn FnMut(&ConnectOptions) -> Result<()>,
) -> Result<()> {
    const DOING: &str = "start a server on the restored files";
    let tree = ground.tree();
    let own = OwnAccount::random()?;
    let init = account::write_creation(&own, ground)?;
    let mut orders = vec![option_of("--init-file=", &tree.path_of(&init))];
    orders.extend(ground.without_plugins());
    let mut server = ground.start(prepare::buffer_pool_bytes(ground.options, 0), orders, None)?;
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
