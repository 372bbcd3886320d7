//! The warnings of a restore.

use holdfast_formats::Flavor;

use super::{opened::Opened, options::RestoreOptions, plan::Plan, prepare};
use crate::{
    event::{Event, Listener},
    key_files::KeyFiles,
};

/// Warns of what a user should know before using the result.
pub(super) fn warn(opened: &Opened, plan: &Plan, options: &RestoreOptions, listener: &dyn Listener) {
    warn_of_root(plan.owner, options, listener);
    if opened.has_damaged_pages() {
        let text = "the backup contains pages that were already damaged on the source, and so will the \
                    restored server: \"holdfast report\" lists them; if recovery fails on one, see \
                    --no-prepare";
        listener.event(Event::Warning { text: text.to_owned() });
    }
    for key in KeyFiles::of(&opened.server).below() {
        let place = plan.shown.target_dir.join(key);
        if !place.exists() {
            let text = format!(
                "the source had the key file {} in its data directory, and backups never contain keys: put \
                 a copy into the restored directory, or configure the server with another path",
                key.display()
            );
            listener.event(Event::Warning { text });
        }
    }
    if !options.prepare && prepare::may_be_undecided(opened) {
        listener.event(Event::Warning { text: prepare::BY_HAND.to_owned() });
    }
    if opened.server.flavor() == Flavor::MySql
        && let Some(first) = opened.position.replica_of.first()
    {
        let text = format!(
            "the source was a replica, and the restored tables say so: start the restored server with \
             --skip-replica-start, or it will connect to {}:{} in place of the source",
            first.host, first.port
        );
        listener.event(Event::Warning { text });
    }
}

pub(super) fn warn_of_root(owner: Option<(u32, u32)>, options: &RestoreOptions, listener: &dyn Listener) {
    if options.owner.is_none() && owner.is_some_and(|(uid, _)| uid == 0) {
        let text = "everything restored will belong to root, and no server that runs as another user can be \
                    started on it: name the server's user with --owner";
        listener.event(Event::Warning { text: text.to_owned() });
    }
}
