//! MySQL's redo log, switched off while rows are loaded: for servers that hold nothing else yet.
//!
//! A server that crashes without its redo log does not start again. So this is done only when it was asked for, and
//! the log is on again before a load has ended, well or not.

use holdfast_formats::Flavor;

use super::{LoadOptions, link::Link, target::Target};
use crate::{
    error::{Error, ErrorKind, Result},
    server::{Purpose, Session},
};

const STATUS: &str = "SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'";

/// A redo log that is off.
#[must_use]
pub(super) struct RedoOff;

/// Switches it off, if that is asked for.
pub(super) fn switch_off(link: &mut Link, target: &Target, options: &LoadOptions) -> Result<Option<RedoOff>> {
    if target.flavor != Flavor::MySql {
        if options.disable_redo {
            return Err(Error::new(ErrorKind::Usage, "--disable-redo: MariaDB always writes its redo log"));
        }
        return Ok(None);
    }
    let is_on =
        link.session.row(STATUS)?.is_none_or(|row| row.text("Value").is_ok_and(|value| value == "ON"));
    if !options.disable_redo {
        if !is_on {
            let text = "the server's redo log is off, as an interrupted load may have left it";
            return Err(Error::new(ErrorKind::Server, text)
                .hinted("ALTER INSTANCE ENABLE INNODB REDO_LOG; or go on with --disable-redo"));
        }
        return Ok(None);
    }
    if is_on {
        link.session
            .exec("ALTER INSTANCE DISABLE INNODB REDO_LOG")
            .map_err(|error| error.hinted("--disable-redo needs INNODB_REDO_LOG_ENABLE on the target"))?;
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
                "the server must not crash or be killed before: ALTER INSTANCE ENABLE INNODB REDO_LOG",
            )
        })
    }
}
