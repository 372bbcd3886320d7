//! Our sessions on the target, and their settings. Nothing is set for anyone else.

use std::{sync::Mutex, time::Duration};

use holdfast_formats::Flavor;
use holdfast_pipe::lock::lock;

use super::{LoadOptions, target::Target};
use crate::{
    error::{Error, ErrorKind, Result},
    server::{
        ConnectOptions, HeldSession, Purpose, Session, SqlError, WAIT_TIMEOUT,
        bulk::{self, Done},
    },
};

/// The lock of the whole load: the process that has it is the load. Each of its sessions also has one with a
/// number.
const LOCK: &str = "holdfast_load";
/// Used in place of a number.
const CONTROL: &str = "control";
/// The mode that a load's statements are executed under. Directories that they name are the source's; on the
/// target, the server decides where files are.
pub(super) const SQL_MODE: &str =
    "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION,NO_DIR_IN_CREATE";
/// How many warnings of a statement a server keeps at most, and so counts.
const WARNINGS_MAX: u16 = u16::MAX;
/// How many it must keep, if the account may not set that.
const WARNINGS_MIN: u16 = 64;
/// MySQL: what some settings of a session need.
const SETS_VARIABLES: &str = "SESSION_VARIABLES_ADMIN";
/// How many sessions one load has at most.
pub(super) const SESSIONS_MAX: usize = 256;
/// How long the server waits for rows that come slowly from the repository.
const NET_TIMEOUT_S: u64 = 3_600;
/// How long a change of a definition waits for other users of the table; others wait behind it meanwhile.
const LOCK_WAIT_S: u64 = 60;
/// How long it waits where hours of work would be lost.
const LONG_LOCK_WAIT_S: u64 = 3_600;
/// How long sessions of a load that died may take to end.
const GONE_AFTER: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A session that changes the target.
pub(super) struct Link {
    pub(super) session: Session,
    /// The database in use.
    schema: Option<String>,
    /// Whether it sends bytes (`character_set_client`), not `utf8mb4`.
    sends_bytes: bool,
    /// Whether it computes by the source's `sql_mode`.
    computes: bool,
}

impl Link {
    /// Connects, before anything is known of the target.
    pub(super) fn first(options: &LoadOptions) -> Result<Link> {
        let mut session = Session::open(&options.connect, Purpose::Load)?;
        bulk::be_patient(&mut session)?;
        Ok(Link { session, schema: None, sends_bytes: false, computes: false })
    }

    /// Connects and makes the settings that a load needs, for work that remains when no other session may be
    /// left.
    pub(super) fn again(options: &LoadOptions, target: &Target) -> Result<Link> {
        let mut session = Session::open_patiently(&options.connect, Purpose::Load)?;
        bulk::be_patient(&mut session)?;
        let mut link = Link { session, schema: None, sends_bytes: false, computes: false };
        link.configure(options, target)?;
        Ok(link)
    }

    /// Connects for rows; `number` distinguishes the sessions of a load.
    pub(super) fn open(options: &LoadOptions, target: &Target, number: usize) -> Result<Link> {
        let mut link = Link::again(options, target)?;
        // The session that had it before may still be ending.
        let take = format!("SELECT GET_LOCK('{LOCK}.{number}', {LOCK_WAIT_S})");
        if link.session.value(&take)?.as_deref() != Some("1") {
            return Err(active(&mut link.session, &format!("{LOCK}.{number}")));
        }
        Ok(link)
    }

    /// Executes a statement that takes long and needs its table exclusively at the end.
    pub(super) fn exec_patiently(&mut self, sql: &[u8]) -> Result<Done, SqlError> {
        self.session.exec(&format!("SET SESSION lock_wait_timeout = {LONG_LOCK_WAIT_S}"))?;
        let done = self.exec(sql);
        let again = self.session.exec(&format!("SET SESSION lock_wait_timeout = {LOCK_WAIT_S}"));
        let done = done?;
        again.map(|()| done)
    }

    /// Makes the settings that a load needs.
    pub(super) fn configure(&mut self, options: &LoadOptions, target: &Target) -> Result<()> {
        bulk::one_statement_at_a_time(&mut self.session)?;
        let mut settings = vec![
            format!("sql_mode = '{SQL_MODE}', sql_notes = 1"),
            // MariaDB would fill an empty table in a way that locks all other sessions out, and is no faster.
            "foreign_key_checks = 0, unique_checks = 1".to_owned(),
            format!("lock_wait_timeout = {LOCK_WAIT_S}, wait_timeout = 31536000"),
            format!("net_read_timeout = {NET_TIMEOUT_S}, net_write_timeout = {NET_TIMEOUT_S}"),
        ];
        settings.push(match target.flavor {
            Flavor::MariaDb => "check_constraint_checks = 0, innodb_strict_mode = 0".to_owned(),
            Flavor::MySql => "innodb_ddl_buffer_size = 67108864".to_owned(),
        });
        self.session.exec(&format!("SET SESSION {}", settings.join(", ")))?;
        self.keep_warnings(target)?;
        for (name, value) in &target.computing.set {
            self.session.exec(&format!("SET SESSION {name} = {value}"))?;
        }
        // The server must not add anything that the statements of a backup do not say.
        for (variable, wanted, found) in &target.to_be_set {
            if wanted != found {
                self.session.exec(&format!("SET SESSION {variable} = {wanted}")).map_err(|error| {
                    let or = format!("or set {variable} = {wanted} for the time of the load, which needs it");
                    hinted_by_grant(error, target, &or)
                })?;
            }
        }
        // MySQL 8.4 and later: keys may lead to columns that are not unique, as before. An account that may
        // not set this learns of it when there is such a key.
        if self.session.variable("restrict_fk_on_non_standard_key")?.is_some() {
            match self.session.exec("SET SESSION restrict_fk_on_non_standard_key = 0") {
                Err(error) if !error.is_denied() => return Err(error.into()),
                _ => {}
            }
        }
        if options.without_binlog {
            self.session.exec("SET SESSION sql_log_bin = 0").map_err(|error| {
                error
                    .hinted("--without-binlog needs BINLOG ADMIN (MariaDB) or SYSTEM_VARIABLES_ADMIN (MySQL)")
            })?;
        }
        Ok(())
    }

    /// Lets the server keep all warnings of a statement. MySQL asks a privilege for it; without it the
    /// server's own number must do, by default a thousand, and a load that cannot see all warnings of a
    /// statement that may change values fails.
    fn keep_warnings(&mut self, target: &Target) -> Result<()> {
        let Err(error) = self.session.exec(&format!("SET SESSION max_error_count = {WARNINGS_MAX}")) else {
            return Ok(());
        };
        let kept = self.session.variable("max_error_count")?.and_then(|count| count.parse::<u16>().ok());
        if error.is_denied() && kept.is_some_and(|kept| kept >= WARNINGS_MIN) {
            return Ok(());
        }
        Err(hinted_by_grant(error, target, &format!("or set max_error_count to {WARNINGS_MIN} or more")))
    }

    /// Sets whether rows are written from now on, and computed as the source would; otherwise they are read
    /// as they are stored, which no `sql_mode` may change. All other settings stay.
    pub(super) fn compute(&mut self, target: &Target, computes: bool) -> Result<(), SqlError> {
        let modes = &target.computing.sql_modes;
        if self.computes == computes || modes.is_empty() {
            return Ok(());
        }
        let more = if computes { format!(",{modes}") } else { String::new() };
        self.session.exec(&format!("SET SESSION sql_mode = '{SQL_MODE}{more}'"))?;
        self.computes = computes;
        Ok(())
    }

    /// Executes a statement of any bytes.
    pub(super) fn exec(&mut self, statement: &[u8]) -> Result<Done, SqlError> {
        bulk::exec(&mut self.session, statement)
    }

    /// Makes a database the current one.
    pub(super) fn enter(&mut self, schema: &str) -> Result<(), SqlError> {
        if self.schema.as_deref() != Some(schema) {
            self.session.exec(&format!("USE {}", crate::logical::sql::quoted(schema)))?;
            self.schema = Some(schema.to_owned());
        }
        Ok(())
    }

    /// Sets whether bytes are sent from now on: parameters that the server need not look into. Statements in
    /// ASCII, and names in UTF-8, are the same in bytes; text in quotes is not.
    pub(super) fn send_bytes(&mut self, sends_bytes: bool) -> Result<(), SqlError> {
        if self.sends_bytes != sends_bytes {
            let charset = if sends_bytes { "binary" } else { "utf8mb4" };
            self.session.exec(&format!("SET SESSION character_set_client = {charset}"))?;
            self.sends_bytes = sends_bytes;
        }
        Ok(())
    }

    /// Becomes the server's one load, once all sessions of an earlier one are gone.
    pub(super) fn become_the_load(&mut self, options: &LoadOptions) -> Result<Lease> {
        let lease = Lease::take(&options.connect)?;
        // The process that had that lock is dead, or frozen. Work that its sessions still do, such as
        // building an index, is not waited for.
        let numbers = (0..SESSIONS_MAX).map(|number| number.to_string());
        let names: Vec<String> = numbers
            .chain([CONTROL.to_owned()])
            .map(|number| format!("IS_USED_LOCK('{LOCK}.{number}')"))
            .collect();
        let query = format!("SELECT CONCAT_WS(',', {})", names.join(", "));
        let mut waited = Duration::ZERO;
        loop {
            let left = self.session.value(&query)?.unwrap_or_default();
            if left.is_empty() {
                break;
            }
            if waited >= GONE_AFTER {
                let text = format!("sessions of an earlier load are still there: {left}");
                return Err(
                    Error::new(ErrorKind::Active, text).hinted("end them with KILL, or wait for them")
                );
            }
            for id in left.split(',').filter_map(|id| id.parse().ok()) {
                self.session.kill(id)?;
            }
            std::thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
        // So that this session can be ended, too, once another process becomes the load.
        let take = format!("SELECT GET_LOCK('{LOCK}.{CONTROL}', {LOCK_WAIT_S})");
        if self.session.value(&take)?.as_deref() != Some("1") {
            return Err(active(&mut self.session, &format!("{LOCK}.{CONTROL}")));
        }
        Ok(lease)
    }
}

/// Hints at the statement that lets the account make a setting, if that is what is missing.
fn hinted_by_grant(error: SqlError, target: &Target, or: &str) -> Error {
    let grant = target.privileges.missing(&[SETS_VARIABLES], "*").filter(|_| error.is_denied());
    let hint = grant.filter(|_| target.flavor == Flavor::MySql).map(|grant| format!("{grant}\n{or}"));
    error.hinted(hint.unwrap_or_else(|| or.to_owned())).into()
}

/// The lock of the load, in a session of its own that shows signs of life while all others work or wait: the
/// server releases it soon after our host, or the network, is gone.
pub(super) struct Lease {
    held: Mutex<HeldSession>,
    connect: ConnectOptions,
}

impl Lease {
    fn take(connect: &ConnectOptions) -> Result<Lease> {
        Ok(Lease { held: Mutex::new(hold(connect, Duration::ZERO)?), connect: connect.clone() })
    }

    /// Takes the lock again if it was lost for a moment. Only the epoch tells whether another process has
    /// been the load meanwhile.
    pub(super) fn keep(&self) -> Result<()> {
        let mut held = lock(&self.held);
        if held.alive().is_err() {
            *held = hold(&self.connect, 2 * WAIT_TIMEOUT)?;
        }
        Ok(())
    }
}

/// Opens a session that holds the lock. One that was just lost may still have it for a while.
fn hold(connect: &ConnectOptions, wait: Duration) -> Result<HeldSession> {
    let held = HeldSession::open(connect, Purpose::Load)?;
    let take = format!("SELECT GET_LOCK('{LOCK}', {})", wait.as_secs());
    if held.with(|session| session.value(&take))?.as_deref() == Some("1") {
        return Ok(held);
    }
    Err(held.with(|session| Ok(active(session, LOCK)))?)
}

/// The error if nothing can be loaded: it says who has the lock.
fn active(session: &mut Session, lock: &str) -> Error {
    let mut who = || -> Result<Option<String>, SqlError> {
        let Some(id) = session.value(&format!("SELECT IS_USED_LOCK('{lock}')"))? else { return Ok(None) };
        for row in session.byte_rows("SHOW PROCESSLIST")? {
            if row.text("Id")? == id {
                let (user, host) = (row.text("User")?, row.text("Host")?);
                return Ok(Some(format!(": session {id} of {user}@{host}")));
            }
        }
        Ok(Some(format!(": session {id}")))
    };
    // The load is refused even if the holder is not known.
    let who = who().ok().flatten().unwrap_or_default();
    Error::new(ErrorKind::Active, format!("another load into this server is running{who}")).hinted(format!(
        "wait for it to end; if its host or network is gone, another process can resume it after {} seconds",
        WAIT_TIMEOUT.as_secs()
    ))
}
