//! What a server does not write into its binlog: an archive of it goes on without that, and without a gap.

use crate::{
    error::{Error, ErrorKind, Result},
    server::{
        Session,
        status::{ReplicaChannel, binlog_status},
    },
};

/// Refuses a server whose binlog lacks what it applies as a replica; of one that `stands_in` for others also where it applies
/// nothing yet.
pub(super) fn require_all(session: &mut Session, stands_in: bool) -> Result<()> {
    if stands_in || is_replica(session)? {
        require_replica_updates(session)?;
    }
    Ok(())
}

/// Why a replica's binlog does not go on: it has stopped applying. One that can be written to was promoted, whatever is left
/// of its being a replica; and one whose account may not see that is believed.
pub(super) fn stopped_replica(session: &mut Session) -> Result<Option<String>> {
    if matches!(session.variable("read_only")?.as_deref(), None | Some("0" | "OFF")) {
        return Ok(None);
    }
    let channels = match ReplicaChannel::read_all(session) {
        Err(error) if error.is_denied() => return Ok(None),
        channels => channels?,
    };
    let applies = channels.iter().any(|channel| channel.is_applying);
    Ok(channels.into_iter().next().filter(|_| !applies).map(|of| {
        let (host, port) = (of.host, of.port);
        format!("this server is a replica of {host}:{port}, and has stopped applying what comes from there")
    }))
}

/// Whether a server replicates another. One whose account may not see that is taken for one that does not.
fn is_replica(session: &mut Session) -> Result<bool> {
    match ReplicaChannel::read_all(session) {
        Ok(channels) => Ok(!channels.is_empty()),
        Err(error) if error.is_denied() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// That what a server applies as a replica is in its binlog.
fn require_replica_updates(session: &mut Session) -> Result<()> {
    for name in ["log_replica_updates", "log_slave_updates"] {
        match session.variable(name)?.as_deref() {
            None => {}
            Some("0" | "OFF") => {
                let text = format!("what this server replicates is not in its binlog: {name} is off");
                return Err(Error::new(ErrorKind::Usage, text).hinted(format!(
                    "archive the server that it replicates; or set {name}=ON in the server's configuration, and start it anew"
                )));
            }
            Some(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Which databases are left out by `binlog_do_db` or `binlog_ignore_db`, in words.
pub(super) fn filters(session: &mut Session) -> Result<Option<String>> {
    let Some(row) = binlog_status(session)? else { return Ok(None) };
    let mut filters = Vec::new();
    for column in ["Binlog_Do_DB", "Binlog_Ignore_DB"] {
        if let Some(databases) = row.text_or_null(column)?.filter(|databases| !databases.is_empty()) {
            filters.push(format!("{} {databases}", column.to_lowercase()));
        }
    }
    Ok((!filters.is_empty()).then(|| {
        format!(
            "the server leaves databases out of its binlog ({}): what happens there cannot be recovered from the archive",
            filters.join(", ")
        )
    }))
}
