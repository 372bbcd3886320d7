//! Recovery of a physical backup, which `restore`, loads and exports have in common: the moment, the options,
//! and what was reached.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Error, ErrorKind, Result,
    recovery::{self, Recovery, Until},
    restore::{Reached, RestoreOptions},
};
use holdfast_repo::{Kind, Repo, SourceName};

use super::{Context, select};
use crate::{
    args::{
        backup_ref::{BackupNo, BackupRef},
        owner::Owner,
        recovery::RecoveryArgs,
    },
    output::text,
};

/// Recovery to a moment, starting from the named physical backup or from the last one before the moment.
pub(super) fn choose(
    context: &Context<'_>,
    repo: &Arc<Repo>,
    id: Option<&BackupRef>,
    name: Option<&SourceName>,
    until: Until,
) -> Result<Recovery> {
    if let Some(id) = id
        && let Some(kind) = id.kind.filter(|kind| *kind != Kind::Physical)
    {
        let text = format!("a restore cannot recover to a moment after {id}: its kind is {kind}");
        let hint = match kind {
            Kind::Logical => format!(
                "load it (restore {id} --to-server) and let the server execute what follows \
                 (binlog cat --after {id}); or omit ID to start from the last physical backup before the \
                 moment"
            ),
            _ => "recovery to a moment begins with a physical backup: omit ID to start from the last one \
                  before it"
                .to_owned(),
        };
        return Err(Error::new(ErrorKind::Usage, text).hinted(hint));
    }
    let (source, named) = match id {
        Some(id) if id.which != BackupNo::Latest => {
            let id = BackupRef { kind: Some(Kind::Physical), ..id.clone() };
            let chosen = select::backup(context, repo, &id, name)?;
            (chosen.log().source.clone(), Some(chosen.run))
        }
        id => {
            let name = id.and_then(|id| id.source.as_ref()).or(name);
            (select::log(context, repo, name, None)?.source, None)
        }
    };
    recovery::choose(repo, &source, named, until)
}

/// Merges the recovery options: typed arguments override the configuration, which overrides expert defaults.
pub(super) fn options(
    chosen: RestoreOptions,
    args: RecoveryArgs,
    parallel: Option<usize>,
    context: &Context<'_>,
) -> RestoreOptions {
    let memory = args.memory.or(context.config.resources.memory);
    RestoreOptions {
        server_binary: args.server_binary,
        owner: args.owner.map(|owner| (owner.uid, owner.gid)),
        server_user: Owner::of_servers().map(|owner| (owner.uid, owner.gid)),
        parallel: parallel.unwrap_or(chosen.parallel),
        memory_bytes: memory.map_or(chosen.memory_bytes, |size| size.0),
        prepare_memory_bytes: args.prepare_memory.map(|size| size.0),
        allow_version: args.allow_version,
        prepare_options: args.prepare_option,
        keyring: args.keyring,
        time_zone: args.time_zone,
        ..chosen
    }
}

/// Where a replay arrived, or will arrive.
pub(super) fn show_reached(out: &mut String, label: &str, reached: &Reached, how: &str) -> fmt::Result {
    let mut said = text::count(reached.transactions, "transaction");
    if let Some(at) = reached.committed_at {
        write!(said, ", the last committed at {} UTC", text::instant(at))?;
    }
    said.push_str(how);
    text::fact(out, label, said)?;
    for filters in &reached.leaves_out {
        let what = format!("changes that the server kept out of its binlog by {filters}");
        text::fact(out, "NOT REPLAYED", what)?;
    }
    Ok(())
}
