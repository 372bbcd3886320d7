//! Switches MySQL's redo log off while rows are loaded: for servers that hold nothing else yet.
//!
//! A server that crashes without its redo log does not start again. So this is done only if asked for, and
//! the log is on again before a load has ended, successfully or not.

use holdfast_formats::Flavor;

use super::{LoadOptions, link::Link, target::Target};
use crate::{
    error::{Error, ErrorKind, Result},
    server::{Purpose, Session},
};

const STATUS: &str = "SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'";

/// A redo log that is switched off.
#[must_use]
pub(super) struct RedoOff;

fn is_on(link: &mut Link) -> Result<bool> {
    Ok(link.session.row(STATUS)?.is_none_or(|row| row.text("Value").is_ok_and(|value| value == "ON")))
}

/// Before anything is touched, refuses an impossible option, and a server whose log is off unless it is to be
/// off.
pub(super) fn refuse(link: &mut Link, target: &Target, options: &LoadOptions) -> Result<()> {
    const RIGHT: &str = "INNODB_REDO_LOG_ENABLE";
    if target.flavor != Flavor::MySql {
        return match options.disable_redo {
            true => Err(Error::new(ErrorKind::Usage, "--disable-redo: MariaDB always writes its redo log")),
            false => Ok(()),
        };
    }
    if options.disable_redo {
        return match target.privileges.has(RIGHT) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Server,
                "--disable-redo: the account may not switch the redo log off",
            )
            .hinted(format!("GRANT {RIGHT} ON *.* TO the account"))),
        };
    }
    if !is_on(link)? {
        let text = "the server's redo log is off, as an interrupted load may have left it";
        return Err(Error::new(ErrorKind::Server, text)
            .hinted("ALTER INSTANCE ENABLE INNODB REDO_LOG; or load with --disable-redo"));
    }
    Ok(())
}

/// Switches it off, if asked for.
pub(super) fn switch_off(link: &mut Link, options: &LoadOptions) -> Result<Option<RedoOff>> {
    if !options.disable_redo {
        return Ok(None);
    }
    if is_on(link)? {
        link.session.exec("ALTER INSTANCE DISABLE INNODB REDO_LOG")?;
    }
    Ok(Some(RedoOff))
}

impl RedoOff {
    /// Switches it on again. The session that switched it off may be gone.
    pub(super) fn switch_on(self, link: &mut Link, options: &LoadOptions) -> Result<()> {
        const ENABLE: &str = "ALTER INSTANCE ENABLE INNODB REDO_LOG";
        if link.session.exec(ENABLE).is_ok() {
            return Ok(());
        }
        let again = Session::open_patiently(&options.connect, Purpose::Load)
            .and_then(|mut session| Ok(session.exec(ENABLE)?));
        again.map_err(|error| {
            error.context("switch the redo log on again").hinted(
                "run ALTER INSTANCE ENABLE INNODB REDO_LOG: until then the server must not crash or be killed",
            )
        })
    }
}
