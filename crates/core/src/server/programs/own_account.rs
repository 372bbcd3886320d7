//! The account through which we talk to a server that we run ourselves. It is created when the server starts,
//! and nobody else knows its name and password.

use std::{
    thread,
    time::{Duration, Instant},
};

use holdfast_repo::format::hex::to_hex;

use super::process::RunningServer;
use crate::{
    error::{Context, Result},
    event::Cancel,
    server::{ConnectOptions, Purpose, Secret, Session},
};

const POLL: Duration = Duration::from_millis(50);
/// Enough for a start that needs no recovery, or has already done it.
const START_LIMIT: Duration = Duration::from_secs(300);

/// Accounts that the servers need themselves.
const SERVERS_OWN: [&str; 2] = ["mysql.", "mariadb.sys"];

/// Whether an account is one that the servers need themselves.
pub(crate) fn is_servers_own(user: &str) -> bool {
    let user = user.to_lowercase();
    SERVERS_OWN.iter().any(|own| user.starts_with(own))
}

/// Drops all accounts that the installation has made, except those that the server itself needs, and `ours`.
pub(crate) fn drop_installed_accounts(session: &mut Session, ours: &[&str]) -> Result<()> {
    for row in session.rows("SELECT User AS user, Host AS host FROM mysql.user")? {
        let (user, host) = (row.text("user")?, row.text("host")?);
        if !is_servers_own(user) && !ours.contains(&user) {
            session.exec(&format!("DROP USER '{user}'@'{host}'"))?;
        }
    }
    Ok(())
}

/// An account of our own.
pub(crate) struct OwnAccount {
    name: String,
    password: Secret,
}

impl OwnAccount {
    /// Creates an account whose name and password nobody can guess.
    pub(crate) fn random() -> Result<OwnAccount> {
        let mut bytes = [0; 20];
        getrandom::fill(&mut bytes).context("draw a random number")?;
        let hex = to_hex(&bytes);
        let (name, password) = hex.split_at(12);
        // Contains every kind of character, for servers with a password policy.
        Ok(OwnAccount { name: format!("holdfast_{name}"), password: Secret::new(format!("{password}-X!")) })
    }

    /// The user name, without the host.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The account as statements name it.
    pub(crate) fn quoted(&self) -> String {
        format!("'{}'@'localhost'", self.name)
    }

    /// Statements that create the account with all rights when the server starts: one per line.
    pub(crate) fn creation(&self) -> String {
        self.created("ALL", " WITH GRANT OPTION")
    }

    /// Like [`creation`](Self::creation), but with only these rights.
    pub(crate) fn creation_with(&self, rights: &str) -> String {
        self.created(rights, "")
    }

    fn created(&self, rights: &str, option: &str) -> String {
        let (account, password) = (self.quoted(), self.password.reveal());
        format!(
            "CREATE USER {account} IDENTIFIED BY '{password}';\nGRANT {rights} ON *.* TO {account}{option};\n"
        )
    }

    /// How to connect to `server`.
    pub(crate) fn options(&self, server: &RunningServer) -> ConnectOptions {
        ConnectOptions {
            socket: Some(server.socket()),
            user: Some(self.name.clone()),
            password: Some(self.password.clone()),
            connect_timeout: Some(Duration::from_secs(5)),
            ..ConnectOptions::default()
        }
    }

    /// Waits until the server is up. `doing` says what it was started for.
    pub(crate) fn connect(
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
}
