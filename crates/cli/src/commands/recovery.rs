//! Recovery of a backup, which `restore`, loads and exports have in common: the moment, the options, and what
//! was reached.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Result,
    recovery::{self, Recovery, Until},
    restore::{Reached, RestoreOptions},
};
use holdfast_repo::{Repo, SourceName};

use super::{Context, search_path, select};
use crate::{
    args::{
        backup_ref::{BackupNo, BackupRef},
        owner::Owner,
        recovery::RecoveryArgs,
    },
    output::text,
};

/// Recovery to a moment, starting from the named backup, or from the last one before the moment, which is
/// what `latest` means. A number without a kind is that of a physical backup if the source has any.
pub(super) fn choose(
    context: &Context<'_>,
    repo: &Arc<Repo>,
    id: Option<&BackupRef>,
    name: Option<&SourceName>,
    until: Until,
) -> Result<Recovery> {
    let (source, named) = match id {
        Some(id) if id.which != BackupNo::Latest => {
            let chosen = select::backup(context, repo, id, name)?;
            let log = chosen.log();
            (log.source.clone(), Some((log.kind, Some(chosen.run))))
        }
        id => {
            let name = id.and_then(|id| id.source.as_ref()).or(name);
            let kind = id.and_then(|id| id.kind);
            (select::log(context, repo, name, kind)?.source, kind.map(|kind| (kind, None)))
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
        search_path: search_path(),
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
