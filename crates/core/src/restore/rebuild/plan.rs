//! What the restore of a logical backup will do, before it does anything.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use holdfast_formats::Flavor;
use holdfast_repo::format::item::ItemPath;

use super::{
    super::{
        buffer_pool::buffer_pool_bytes,
        options::RestoreOptions,
        own_server::{PrivateFiles, private::ARIA_CONTROL},
        plan::recovery,
        plan::{ROOM_EXTRA_BYTES, check_options, find_binary, owner_of, room_at, too_little},
        planned::{PlannedOwner, PlannedPrepare, PlannedRoom, PlannedRows, RestoreMode, RestorePlan},
        server_options::{new_options, system_files},
        target::{
            Tree,
            names::{MARKER, REDO_MARIADB, own_path},
            survey::{Standing, Survey, survey},
        },
    },
    backup::LogicalBackup,
};
use crate::{
    error::{Error, ErrorKind, Result},
    real_path::real_path,
    server::programs::ServerBinary,
};

/// The plan, and what else carrying it out needs.
pub(super) struct Plan {
    pub(super) shown: RestorePlan,
    pub(super) survey: Survey,
    /// The owner of everything restored, if we may set it.
    pub(super) owner: Option<(u32, u32)>,
    pub(super) binary: ServerBinary,
    /// Files without which no server starts.
    pub(super) held: Vec<ItemPath>,
    /// MariaDB's redo, which a server that finds it alone would take for its own.
    pub(super) redo: ItemPath,
}

impl Plan {
    /// The new data directory of the backup's server.
    pub(super) fn files<'a>(
        &'a self,
        backup: &'a LogicalBackup,
        new_dir: &'a Tree,
        options: &'a RestoreOptions,
    ) -> PrivateFiles<'a> {
        let of_source = (&backup.server, &backup.position);
        let server_options = &self.shown.server_options;
        PrivateFiles::elsewhere(new_dir, of_source, self.owner, &self.binary, options, server_options)
    }
}

/// Plans; changes nothing.
pub(super) fn make(backup: &LogicalBackup, options: &RestoreOptions) -> Result<Plan> {
    refuse_what_has_no_meaning(backup, options)?;
    refuse_without_keys(backup, options)?;
    check_options(options)?;
    let server = &backup.server;
    let binary = find_binary(&server.version, options)?;
    let survey = survey(&options.target_dir, false, &backup.id)?;
    let owner = owner_of(options, &survey);
    let target_dir = real_path(&options.target_dir)?;
    binary.require_runs_as(owner, &target_dir)?;
    let (path, room) = room_at(&options.target_dir)?;
    let needed_bytes =
        backup.read.row_bytes.saturating_add(server.innodb.redo_size).saturating_add(ROOM_EXTRA_BYTES);
    // What an interrupted restore left is removed first.
    let freed =
        survey.found.values().filter(|found| found.links == 1).map(|found| found.allocated_bytes).sum();
    let needed_bytes = needed_bytes.saturating_sub(freed);
    let room = PlannedRoom { path, needed_bytes, free_bytes: room.free_bytes };
    let is_complete = survey.standing == Standing::Complete;
    if room.needed_bytes > room.free_bytes && !is_complete {
        return Err(too_little(&room));
    }
    let mut held = system_files(server).iter().map(|name| own_path(name)).collect::<Result<Vec<_>>>()?;
    if server.flavor() == Flavor::MariaDb {
        held.push(own_path(ARIA_CONTROL)?);
    }
    held.sort();
    let shown = RestorePlan {
        backup: backup.id.clone(),
        server_version: server.version.clone(),
        mode: match survey.standing {
            Standing::Free => RestoreMode::Fresh,
            Standing::Complete => RestoreMode::Complete,
            Standing::Ours | Standing::Other => RestoreMode::Continue,
        },
        owner: owner.map(|(uid, gid)| PlannedOwner { uid, gid }),
        files: 0,
        bytes: 0,
        rows: Some(PlannedRows {
            tables: backup.read.tables,
            rows: backup.read.rows,
            bytes: backup.read.row_bytes,
        }),
        redo_bytes: 0,
        create: Vec::new(),
        replace: Vec::new(),
        delete: survey
            .found
            .keys()
            .rev()
            .filter(|path| !is_complete && is_removed(path, &held))
            .map(|path| target_dir.join(OsStr::from_bytes(path.as_bytes())))
            .collect(),
        external: Vec::new(),
        dropped: Vec::new(),
        room: vec![room],
        prepare: Some(PlannedPrepare {
            program: binary.path.clone(),
            version: binary.version.clone(),
            buffer_pool_bytes: buffer_pool_bytes(options, u64::MAX),
            least_ms: recovery::least_ms(server.flavor(), 0),
        }),
        server_options: new_options(server),
        target_dir,
    };
    Ok(Plan { shown, survey, owner, binary, held, redo: own_path(REDO_MARIADB)? })
}

/// Whether something that an interrupted restore left is removed: not the obstacles in place of the files
/// without which no server starts.
pub(super) fn is_removed(path: &ItemPath, held: &[ItemPath]) -> bool {
    path.as_bytes() != MARKER.as_bytes() && !held.contains(path)
}

/// What was ciphertext on the source must not be written in clear unless the user says so.
fn refuse_without_keys(backup: &LogicalBackup, options: &RestoreOptions) -> Result<()> {
    let providers = &backup.server.encryption.key_providers;
    if providers.is_empty() || !options.prepare_options.is_empty() {
        return Ok(());
    }
    let text = format!(
        "the source encrypts with keys from {}, which no backup contains, and a server is to make its files anew",
        providers.join(", ")
    );
    let in_clear = match backup.server.flavor() {
        Flavor::MariaDb => "--innodb-encrypt-tables=OFF",
        Flavor::MySql => "--default-table-encryption=OFF",
    };
    Err(Error::new(ErrorKind::Usage, text).hinted(format!(
        "give that server the options for keys of its own, and for what it is to encrypt, with --prepare-option; \
         for files in clear, say so: --prepare-option={in_clear}; or load into a running server (--to-server)"
    )))
}

/// Refuses options that are about files of a backup.
fn refuse_what_has_no_meaning(backup: &LogicalBackup, options: &RestoreOptions) -> Result<()> {
    let wrong = [
        (options.delta, "--delta"),
        (!options.prepare, "--no-prepare"),
        (!options.maps.is_empty(), "--map"),
        (options.sparse, "--sparse"),
        (options.keyring.is_some(), "--keyring"),
    ];
    match wrong.iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => {
            let text = format!(
                "{option} is about the files of a physical backup, and {} is a logical one: a server makes \
                 its files anew",
                backup.id
            );
            Err(Error::new(ErrorKind::Usage, text).hinted(format!("leave out {option}")))
        }
        None => Ok(()),
    }
}
