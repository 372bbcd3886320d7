//! What a key that cannot read backups builds on: the page maps that it kept from its last backup.

use std::sync::Arc;

use holdfast_repo::{
    LogName, Repo, RunNo,
    data::{local_maps::LocalMaps, writer::Foundation},
    format::manifest::Head,
    log::{
        history::History,
        outcome::{Outcome, Part},
        run::Run,
    },
};

use super::BackupOptions;
use crate::{
    error::{Context, ErrorKind, Result},
    event::{Event, Listener},
    head::read_head,
};

/// The page maps kept for a history, if its key needs them.
pub(crate) struct Kept(Option<Arc<LocalMaps>>);

impl Kept {
    pub(crate) fn open(repo: &Repo, log: &LogName, options: &BackupOptions) -> Result<Self> {
        match &options.cache_dir {
            Some(directory) if !repo.can_read() => {
                Ok(Self(Some(Arc::new(LocalMaps::open(directory, repo, log)?))))
            }
            _ => Ok(Self(None)),
        }
    }

    /// Whether page maps are kept for this history, already or from now on.
    pub(crate) fn is_in_use(&self) -> bool {
        self.0.is_some()
    }

    /// What the backup of `run` builds on.
    pub(crate) fn foundation(
        &self,
        run: &Run,
        part: Option<Part>,
        options: &BackupOptions,
        listener: &dyn Listener,
    ) -> Foundation {
        let history = run.history();
        if run.repo().can_read() {
            if options.full {
                return Foundation::none(history);
            }
            let foundation = Foundation::newest_of(run.repo(), history, part);
            warn_of_others(run, foundation.base, listener);
            return foundation;
        }
        let local = self.0.as_ref();
        let remembered = local.map(|local| Foundation::remembered(history, Arc::clone(local)));
        let foundation = remembered.unwrap_or_default();
        if options.full {
            return Foundation { base: None, ..foundation };
        }
        if let (None, Some(newest)) = (foundation.base, history.newest_backup()) {
            let place = match local {
                Some(local) => {
                    format!("{} has no page maps of a backup that still stands", local.directory().display())
                }
                None => "no directory is known where page maps could be kept (--cache-dir)".to_owned(),
            };
            let text =
                format!("this key cannot read backup {newest}, and {place}: everything is stored again");
            listener.event(Event::Warning { text });
        }
        foundation
    }

    /// The head of a backup, read or remembered; `None` if the key can do neither.
    pub(super) fn head(&self, repo: &Repo, history: &History, run: RunNo) -> Result<Option<Head>> {
        if repo.can_read() {
            return read_head(repo, history, run).map(Some);
        }
        let Some(local) = &self.0 else { return Ok(None) };
        // What was kept of another backup says nothing about this one: a different host may have taken it.
        if local.backup(history) != Some(run) {
            return Ok(None);
        }
        let head = local.head(history, run).map(Head::decode).transpose();
        head.context_kind(ErrorKind::Damaged, format_args!("understand what was kept of backup {run}"))
    }

    /// Keeps what the next backup will build on. A failure to do so is only a warning: this backup is
    /// complete.
    pub(crate) fn keep(&self, outcome: &Outcome, head: &[u8], listener: &dyn Listener) {
        let Some(local) = &self.0 else { return };
        if let Err(error) = local.commit(outcome, head) {
            let place = local.directory().display();
            let text = format!(
                "its maps could not be kept in {place}: {error}; the next backup may store everything"
            );
            listener.event(Event::Warning { text });
        }
    }
}

/// Warns that there are backups newer than `base` that this key does not build on.
fn warn_of_others(run: &Run, base: Option<RunNo>, listener: &dyn Listener) {
    let history = run.history();
    let newest = history.standing().next_back();
    let Some(other) = newest.filter(|newest| !run.repo().may_build_on(&newest.author)) else { return };
    let (backup, role, key_id) = (other.run, other.author.role, other.author.key_id);
    let instead = match base {
        Some(base) => format!("everything changed since backup {base} is stored"),
        None => "everything is stored again".to_owned(),
    };
    let text = format!(
        "backup {backup} was added with the {role}'s key {key_id}, which this key does not trust as a base: \
         {instead}"
    );
    listener.event(Event::Warning { text });
}
