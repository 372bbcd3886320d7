//! Whether a server can be backed up.

use std::{fs::File, sync::Arc, time::Duration};

use holdfast_formats::Flavor;
use holdfast_repo::{Kind, LogName, Repo};

use super::finding::{Finding, Findings};
use crate::{
    backup::{self, BackupOptions, Judge, Reached, forecast},
    error::{Error, Result},
    event::Cancel,
    server::{LockPolicy, Purpose, ServerFacts, Session, Tunnel, check_binlog_grants},
    size::ByteSize,
    source::options::map_path,
    taking::identity,
};

/// A smaller redo log is overwritten, or stalls its server, while a large backup reads other files.
const REDO_SMALL_BYTES: u64 = 256 << 20;

/// Checks whether the server can be backed up with these options, into `repo` if given. Changes nothing and
/// holds no lock.
#[must_use]
pub fn server(options: &BackupOptions, repo: Option<&Arc<Repo>>) -> Vec<Finding> {
    let findings = Findings::default();
    let judge: Judge<'_> = &|error: Error| {
        findings.add(error);
        Ok(())
    };
    if let Some(tunnel) = &options.connect.tunnel {
        findings.check(through(tunnel, options, &findings));
        return findings.into_vec();
    }
    // A question is not worth the patience of a backup.
    let locks = LockPolicy { tries: 1, patience: Duration::ZERO, ..options.locks };
    let options = &BackupOptions { locks, ..options.clone() };
    match backup::reach(options, &findings, &Cancel::default(), judge) {
        Ok(mut reached) => {
            findings.check(examine_events(reached.session(), &findings));
            examine(&reached, options, repo, &findings);
        }
        Err(error) => findings.add(error),
    }
    findings.into_vec()
}

/// Examines a server that only connections can reach: its files are on another host.
fn through(tunnel: &Tunnel, options: &BackupOptions, findings: &Findings) -> Result<()> {
    let mut session = Session::open(&options.connect, Purpose::Control)?;
    let facts = ServerFacts::probe(&mut session)?;
    findings.add(Finding::good(format!(
        "{} at {}, {tunnel}: logical backups and a binlog archive are possible this way",
        facts.version, facts.identity.hostname
    )));
    examine_binlog(&facts, findings);
    findings.check(examine_events(&mut session, findings));
    if facts.binlog.is_some() {
        findings.check(check_binlog_grants(&mut session));
    }
    Ok(())
}

fn examine_binlog(facts: &ServerFacts, findings: &Findings) {
    match &facts.binlog {
        Some(_) => findings.add(Finding::good("the binlog is on: a restored copy can become a replica")),
        None => findings.add(Finding::notice(
            "the binlog is off: a restored copy cannot become a replica or be recovered to a later moment",
            "switch it on (log_bin), or accept that nothing after a backup can be recovered",
        )),
    }
}

/// MariaDB shows its events to nobody if their scheduler is disabled, not just off.
fn examine_events(session: &mut Session, findings: &Findings) -> Result<()> {
    if session.flavor() == Flavor::MariaDb
        && session.variable("event_scheduler")?.as_deref() == Some("DISABLED")
    {
        findings.add(Finding::notice(
            "event_scheduler is DISABLED: the server shows no events, so a logical backup of it, and a load \
             into it, would fail",
            "start the server with event_scheduler=OFF, unless backups are physical only",
        ));
    }
    Ok(())
}

fn examine(reached: &Reached, options: &BackupOptions, repo: Option<&Arc<Repo>>, findings: &Findings) {
    findings.check(readable(reached, options));
    let facts = reached.facts();
    examine_binlog(facts, findings);
    if facts.innodb.redo_size < REDO_SMALL_BYTES {
        findings.add(Finding::notice(
            format!(
                "the redo log has only {}: a burst of writes can overwrite it before it is captured, or has \
                 to wait until it is",
                ByteSize(facts.innodb.redo_size)
            ),
            match facts.flavor() {
                Flavor::MariaDb => "make it larger (innodb_log_file_size): a gigabyte is cheap",
                Flavor::MySql => "make it larger (innodb_redo_log_capacity): a gigabyte is cheap",
            },
        ));
    }
    if facts.innodb.flush_log_at_trx_commit != 1 {
        findings.add(Finding::notice(
            format!(
                "innodb_flush_log_at_trx_commit is {}: a crash of the host loses transactions that no backup has either",
                facts.innodb.flush_log_at_trx_commit
            ),
            "set it to 1, unless losing a second of transactions is accepted",
        ));
    }
    if let Some(repo) = repo {
        let log = LogName { source: reached.name.clone(), kind: Kind::Physical };
        findings.check(reached.refuse_repository_inside(repo));
        findings.check(identity::check(repo, &log, reached.identity(), options, findings).map(drop));
        findings.check(forecast::room(repo, &log, reached, options, findings));
    }
}

/// Opens one file of each kind: being able to list files does not mean being able to read them.
fn readable(reached: &Reached, options: &BackupOptions) -> Result<()> {
    let system = reached.facts().system_files()?;
    let system = system.iter().map(|path| map_path(&options.path_map, path));
    let redo = std::fs::read_dir(reached.redo_dir()).ok().into_iter().flatten().flatten();
    let redo = redo.map(|entry| entry.path()).filter(|path| {
        path.file_name()
            .is_some_and(|name| name == "ib_logfile0" || name.as_encoded_bytes().starts_with(b"#ib_redo"))
    });
    for path in system.chain(redo) {
        File::open(&path).map_err(|error| {
            Error::failed(format!("open {}", path.display())).caused_by(error).hinted(
                "run holdfast as a user who may read all data files: the server's own user or root; \
                 membership in its group suffices for MySQL only",
            )
        })?;
    }
    Ok(())
}
