//! By which account we talk to a server that runs on restored files: one of our own, made when it starts and dropped when
//! it ends.

use std::{
    io::Write,
    thread,
    time::{Duration, Instant},
};

use holdfast_repo::{hex::to_hex, item::ItemPath};

use super::{layout::own_path, own_server::Ground, target::io_failed};
use crate::{
    error::{Context, Result},
    event::Cancel,
    server::{ConnectOptions, Purpose, Secret, Session, process::RunningServer},
};

/// What creates the account.
const INIT_FILE: &str = "#holdfast-init.sql";
const POLL: Duration = Duration::from_millis(50);
/// A start needs no recovery any more.
const START_LIMIT: Duration = Duration::from_secs(300);

/// An account of ours.
pub(super) struct Account {
    name: String,
    password: Secret,
}

impl Account {
    /// One whose name and password nobody knows.
    pub(super) fn random() -> Result<Account> {
        let mut bytes = [0; 20];
        getrandom::fill(&mut bytes).context("draw a random number")?;
        let hex = to_hex(&bytes);
        let (name, password) = hex.split_at(12);
        // Of every kind of character, for policies that ask.
        Ok(Account { name: format!("holdfast_{name}"), password: Secret::new(format!("{password}-X!")) })
    }

    /// Statements for the server's start, one in each line.
    pub(super) fn creation(&self) -> String {
        let Account { name, password } = self;
        format!(
            "SET SESSION sql_log_bin = 0;\nCREATE USER '{name}'@'localhost' IDENTIFIED BY '{}';\n\
             GRANT ALL ON *.* TO '{name}'@'localhost' WITH GRANT OPTION;\n",
            password.reveal()
        )
    }

    /// Puts these statements where a server that is started on the target finds them.
    pub(super) fn write_creation(&self, ground: &Ground<'_>) -> Result<ItemPath> {
        let tree = ground.tree();
        let init = own_path(INIT_FILE)?;
        let write = || {
            tree.create_file(&init, 0o600)?.write_all(self.creation().as_bytes())?;
            ground.plan.owner.map_or(Ok(()), |owner| tree.give(&init, owner))
        };
        write().map_err(|error| io_failed("write", tree.path_of(&init), error))?;
        Ok(init)
    }

    /// How to connect to `server`.
    pub(super) fn options(&self, server: &RunningServer) -> ConnectOptions {
        ConnectOptions {
            socket: Some(server.socket()),
            user: Some(self.name.clone()),
            password: Some(self.password.clone()),
            connect_timeout: Some(Duration::from_secs(5)),
            ..ConnectOptions::default()
        }
    }

    /// Waits until the server is up.
    pub(super) fn connect(
        &self,
        server: &mut RunningServer,
        doing: &str,
        cancel: &Cancel,
    ) -> Result<Session> {
        let options = self.options(server);
        let began = Instant::now();
        loop {
            cancel.check()?;
            match Session::open(&options, Purpose::Control) {
                Ok(session) => return Ok(session),
                Err(error) if server.has_ended() || began.elapsed() > START_LIMIT => {
                    return Err(server.explain(error, doing));
                }
                Err(_) => thread::sleep(POLL),
            }
        }
    }

    /// Leaves no trace of itself, and has the server end.
    pub(super) fn end(&self, mut session: Session) -> Result<()> {
        session.exec("SET SESSION sql_log_bin = 0")?;
        session.exec(&format!("DROP USER '{}'@'localhost'", self.name))?;
        session.exec("SHUTDOWN")?;
        Ok(())
    }
}
