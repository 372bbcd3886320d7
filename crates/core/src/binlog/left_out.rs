//! What a server does not write into its binlog: an archive of it continues without that, and shows no gap.

use crate::{
    error::{Error, ErrorKind, Result},
    server::{
        Session,
        status::{REPLICA_FILTERS, ReplicaChannel, binlog_status},
    },
};

/// Refuses a server whose binlog lacks what it applies as a replica; one that `stands_in` for others also if
/// it applies nothing yet. Refuses one that leaves out some of what it replicates, unless it `may_filter`.
pub(super) fn require_all(session: &mut Session, stands_in: bool, may_filter: bool) -> Result<()> {
    if stands_in || channels(session)?.is_some_and(|channels| !channels.is_empty()) {
        require_replica_updates(session)?;
    }
    let filters = replica_filters(session)?;
    if may_filter || filters.is_empty() {
        return Ok(());
    }
    let text =
        format!("this server has replication filters, so its binlog is incomplete: {}", filters.join(", "));
    Err(Error::new(ErrorKind::Usage, text).hinted(
        "archive the server that it replicates from; or, if what is filtered out may be missing, allow that \
         with --allow-replica-filters",
    ))
}

/// Why a replica's binlog does not advance: it has stopped applying. A writable server was promoted, whatever
/// remains of its replica configuration; and a server whose account may not see
/// the channels is given the benefit of the doubt.
pub(super) fn stopped_replica(session: &mut Session) -> Result<Option<String>> {
    if matches!(session.variable("read_only")?.as_deref(), None | Some("0" | "OFF")) {
        return Ok(None);
    }
    let Some(channels) = channels(session)? else { return Ok(None) };
    let applies = channels.iter().any(|channel| channel.is_applying);
    Ok(channels.into_iter().next().filter(|_| !applies).map(|of| {
        let (host, port) = (of.host, of.port);
        format!("this server is a replica of {host}:{port}, and has stopped applying changes from it")
    }))
}

/// The channels that a server replicates; `None` if the account may not see them.
fn channels(session: &mut Session) -> Result<Option<Vec<ReplicaChannel>>> {
    match ReplicaChannel::read_all(session) {
        Err(error) if error.is_denied() => Ok(None),
        channels => Ok(Some(channels?)),
    }
}

/// The filters by which a server leaves out some of what it replicates. On MariaDB, every account may see the
/// settings of its main channel.
fn replica_filters(session: &mut Session) -> Result<Vec<String>> {
    if let Some(channels) = channels(session)? {
        return Ok(channels.into_iter().flat_map(|channel| channel.filters).collect());
    }
    let mut filters = Vec::new();
    for name in REPLICA_FILTERS.map(str::to_lowercase) {
        if let Some(what) = session.variable(&name)?.filter(|what| !what.is_empty()) {
            filters.push(format!("{name} {what}"));
        }
    }
    Ok(filters)
}

/// Requires that what a server applies as a replica is in its binlog.
fn require_replica_updates(session: &mut Session) -> Result<()> {
    for name in ["log_replica_updates", "log_slave_updates"] {
        match session.variable(name)?.as_deref() {
            None => {}
            Some("0" | "OFF") => {
                let text = format!(
                    "this server does not write to its binlog what it applies as a replica: {name} is off"
                );
                return Err(Error::new(ErrorKind::Usage, text).hinted(format!(
                    "archive the server that it replicates from; or set {name}=ON in this server's \
                     configuration, and restart it"
                )));
            }
            Some(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Settings by which a server leaves something out of its binlog, with their values.
pub(super) fn filters(session: &mut Session) -> Result<Option<String>> {
    let mut filters = Vec::new();
    if let Some(row) = binlog_status(session)? {
        for column in ["Binlog_Do_DB", "Binlog_Ignore_DB"] {
            if let Some(databases) = row.text_or_null(column)?.filter(|databases| !databases.is_empty()) {
                filters.push(format!("{} {databases}", column.to_lowercase()));
            }
        }
    }
    filters.extend(replica_filters(session)?);
    Ok((!filters.is_empty()).then(|| filters.join(", ")))
}

/// A warning that says what these settings mean.
pub(super) fn of_filters(filters: &str) -> String {
    format!(
        "the server leaves changes out of its binlog ({filters}): these cannot be recovered from the archive"
    )
}
