//! Checks that it is still the same server. A name holds the history of one server: a restore of its latest
//! backup must yield that server's data, and retention must not count another's backups.
//!
//! This does not decide which pages are shared: only their hashes do.

use holdfast_repo::{LogName, Repo, log::history::History};

use super::{BackupOptions, Kept};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Event, Listener},
    head,
    server::facts::Identity,
};

/// Flag of a backup that is of another server than the one before it, as the user confirmed.
pub(crate) const NEW_IDENTITY: &str = "new-identity";

/// Refuses a server other than the one in the newest backup of the name, unless the user has confirmed the
/// change. Returns whether it is another.
pub(crate) fn check(
    repo: &Repo,
    log: &LogName,
    found: &Identity,
    options: &BackupOptions,
    listener: &dyn Listener,
) -> Result<bool> {
    let history = History::read(repo, log)?;
    let Some(newest) = history.newest_backup() else { return Ok(false) };
    let Some(head) = Kept::open(repo, log, options)?.head(repo, &history, newest)? else {
        if !options.new_identity {
            let name = &log.source;
            let text = format!(
                "cannot tell whether {name} is this server: this key cannot read backup {newest}, and no \
                 page maps of it are kept on this host"
            );
            listener.event(Event::Warning { text });
        }
        return Ok(options.new_identity);
    };
    let Some(known) = head::identity(&head).filter(|known| !known.is_same(found)) else { return Ok(false) };
    let (was, is, name) = (known.described(), found.described(), &log.source);
    if options.new_identity {
        let text = format!("{name} was {was} up to backup {newest}, and is {is} from now on");
        listener.event(Event::Note { text });
        return Ok(true);
    }
    let text = format!("{name} is another server: backup {newest} is of {was}, and this is {is}");
    Err(Error::new(ErrorKind::Usage, text).hinted(
        "give this server a name of its own (--name); or, if it has replaced the other for good, as after a \
         restore or a failover, confirm that once with --new-identity",
    ))
}

/// The server in the newest backup of the name, as far as it is known.
pub(crate) fn known(repo: &Repo, log: &LogName, options: &BackupOptions) -> Result<Option<Identity>> {
    let history = History::read(repo, log)?;
    let Some(newest) = history.newest_backup() else { return Ok(None) };
    Ok(Kept::open(repo, log, options)?.head(repo, &history, newest)?.as_ref().and_then(head::identity))
}
