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
    let Some(known) = head::identity(&head).filter(|known| !is_same(known, found)) else { return Ok(false) };
    let (was, is, name) = (described(&known), described(found), &log.source);
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

/// MySQL generates a UUID and keeps it. MariaDB has two halves of an identity: the uuid of Aria's logs, which
/// every copy of the data carries along, and `server_uid`, a hash of hardware address and port, which changes
/// with a network card, and which containers on different hosts may share.
pub(crate) fn is_same(known: &Identity, found: &Identity) -> bool {
    if known.server_uuid.is_some() || found.server_uuid.is_some() {
        return known.server_uuid == found.server_uuid;
    }
    let is_differing = |known: &Option<String>, found: &Option<String>| match (known, found) {
        (Some(known), Some(found)) => known != found,
        _ => false,
    };
    let has_same_address = (&known.hostname, known.port) == (&found.hostname, found.port);
    let has_same_uid = known.server_uid.is_some() && known.server_uid == found.server_uid;
    !is_differing(&known.aria_uuid, &found.aria_uuid) && (has_same_address || has_same_uid)
}

/// Refuses a server that has replaced the first one since: a name, an address or a proxy may lead elsewhere
/// by now.
pub(crate) fn still(begun_with: &Identity, found: &Identity) -> Result<()> {
    if is_same(begun_with, found) {
        return Ok(());
    }
    let (was, is) = (described(begun_with), described(found));
    let text = format!("this is not the server that the backup began with: that was {was}, this is {is}");
    Err(Error::new(ErrorKind::Server, text)
        .hinted("connect to the server itself, at an address that nothing else takes over"))
}

pub(crate) fn described(identity: &Identity) -> String {
    let evidence = [
        ("server_uuid", &identity.server_uuid),
        ("server_uid", &identity.server_uid),
        ("Aria's uuid", &identity.aria_uuid),
    ];
    let evidence: Vec<String> = evidence
        .into_iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name} {value}")))
        .collect();
    format!("{}:{} ({})", identity.hostname, identity.port, evidence.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mysql(uuid: &str, hostname: &str) -> Identity {
        Identity {
            server_uuid: Some(uuid.to_owned()),
            server_uid: None,
            aria_uuid: None,
            server_id: 1,
            hostname: hostname.to_owned(),
            port: 3306,
            socket: "/run/s".into(),
        }
    }

    fn mariadb(aria: &str, uid: Option<&str>, hostname: &str) -> Identity {
        Identity {
            server_uuid: None,
            server_uid: uid.map(str::to_owned),
            aria_uuid: Some(aria.to_owned()),
            ..mysql("", hostname)
        }
    }

    /// A server that moves or gets another network card keeps its identity; a copy of it is another server,
    /// and so is a namesake.
    #[test]
    fn who_is_who() {
        assert!(is_same(&mysql("a", "old"), &mysql("a", "new")));
        assert!(!is_same(&mysql("a", "db1"), &mysql("b", "db1")));
        assert!(!is_same(&mysql("a", "db1"), &mariadb("a", None, "db1")));

        let known = mariadb("a", Some("u"), "db1");
        assert!(is_same(&known, &mariadb("a", Some("u"), "renamed")));
        assert!(is_same(&known, &mariadb("a", Some("new card"), "db1")));
        assert!(!is_same(&known, &mariadb("a", Some("copied"), "db2")));
        assert!(!is_same(&known, &mariadb("b", Some("u"), "db1")), "containers share hardware addresses");
        assert!(!is_same(&mariadb("a", None, "db1"), &mariadb("a", None, "db2")));
        let moved = Identity { port: 3307, ..mariadb("a", None, "db1") };
        assert!(!is_same(&mariadb("a", None, "db1"), &moved));
    }
}
