//! The options of what makes a backup: `backup`, `import`, and what `doctor` tries of it.

use holdfast_core::{Error, ErrorKind, Result, backup::BackupOptions, server::LockPolicy};
use holdfast_repo::{SourceName, data::writer::WriterOptions};

use super::{Context, server};
use crate::{
    args::{
        backup::{BackupArgs, Tag},
        doctor::DoctorArgs,
        resources::ResourceArgs,
    },
    config::usual_cache_dir,
};

/// Merges the options: typed arguments override the configuration, which overrides expert defaults.
pub(super) fn of_backup(args: BackupArgs, context: &Context<'_>) -> Result<BackupOptions> {
    let typed = args.source.or(context.config.source.clone());
    let resources = args.resources.or(context.config.resources.clone());
    let chosen = BackupOptions::new(server::connect_options(&typed, context)?);
    let chosen = stored(chosen, args.name, args.tags, &resources, context)?;
    let held_max = resources.lock_max.map(|span| span.0);
    let locks = LockPolicy {
        held_max: held_max.unwrap_or(chosen.locks.held_max),
        ddl_held_max: resources.ddl_lock_max.map_or(chosen.locks.ddl_held_max, |span| span.0),
        wait_max: held_max.unwrap_or(chosen.locks.wait_max),
        ..chosen.locks
    };
    let rewrite = resources.max_rewrite.map_or(chosen.writer.max_rewrite_fraction, |it| it.fraction());
    let writer = WriterOptions { max_rewrite_fraction: rewrite, ..chosen.writer };
    Ok(BackupOptions {
        datadir: typed.datadir,
        path_map: typed.path_map.into_iter().map(|pair| (pair.from, pair.to)).collect(),
        read_bytes_per_s_max: resources.read_bytes_per_s_max().unwrap_or(chosen.read_bytes_per_s_max),
        spool_dir: resources.spool_dir.or(chosen.spool_dir),
        redo_spool_max_bytes: resources.spool_max.map_or(chosen.redo_spool_max_bytes, |it| it.0),
        locks,
        writer,
        full: args.full,
        new_identity: args.new_identity,
        allow_corrupt: args.allow_corrupt,
        hold_up_max: args.hold_up_max.map_or(chosen.hold_up_max, |span| span.0),
        ..chosen
    })
}

/// The options that a backup with no further arguments would use.
pub(super) fn of_doctor(args: DoctorArgs, context: &Context<'_>) -> Result<BackupOptions> {
    let DoctorArgs { name, source, .. } = args;
    of_backup(BackupArgs { name, source, ..BackupArgs::default() }, context)
}

/// Options that name and store a backup, whatever it is made from.
pub(super) fn stored(
    chosen: BackupOptions,
    name: Option<SourceName>,
    tags: Vec<Tag>,
    resources: &ResourceArgs,
    context: &Context<'_>,
) -> Result<BackupOptions> {
    if tags.len() > Tag::COUNT_MAX {
        let text = format!("a backup has at most {} tags, {} were given", Tag::COUNT_MAX, tags.len());
        return Err(Error::new(ErrorKind::Usage, text));
    }
    Ok(BackupOptions {
        name: name.or_else(|| context.config.name.clone()),
        parallel: resources.parallel.unwrap_or(chosen.parallel),
        writer: WriterOptions {
            compression: resources.compress.unwrap_or(chosen.writer.compression),
            compress_threads: resources.compress_threads.unwrap_or(chosen.writer.compress_threads),
            encrypt_threads: resources.encrypt_threads.unwrap_or(chosen.writer.encrypt_threads),
            ..chosen.writer
        },
        memory_bytes: match resources.memory {
            Some(size) => usize::try_from(size.0).unwrap_or(usize::MAX),
            None => chosen.memory_bytes,
        },
        cache_dir: resources.cache_dir.clone().or_else(usual_cache_dir),
        tags: tags.into_iter().map(|tag| tag.0).collect(),
        ..chosen
    })
}
