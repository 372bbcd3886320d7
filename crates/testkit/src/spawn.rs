//! Starts server processes that die with this process.
//!
//! A test that is killed must not leave servers behind. The kernel can kill a child when its parent ends, but
//! "parent" means the *thread* that started it, and a test's thread may end before its server should. So a
//! single thread, which lives as long as the process, starts them all.

use std::process::{Child, Command};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;

use anyhow::{Context, Result, anyhow};

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Starts `program` with the arguments and files that `configure` gives it.
pub(crate) fn spawn(program: &std::path::Path, configure: impl FnOnce(&mut Command)) -> Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                // If the requester is gone it has panicked, and nobody would end its server.
                if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                    child.kill().ok();
                    child.wait().ok();
                }
            }
        });
        Mutex::new(orders)
    });
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "SIGKILL", "--"]).arg(program);
    configure(&mut command);
    let (answer, child) = mpsc::channel();
    let orders = spawner.lock().map_err(|_| anyhow!("the spawner panicked"))?;
    orders.send((command, answer)).context("the spawner is gone")?;
    drop(orders);
    child.recv().context("the spawner is gone")?.with_context(|| format!("starting {}", program.display()))
}
