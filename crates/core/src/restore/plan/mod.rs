//! What a restore will do, before it does anything.

pub(super) mod layout;
mod leads;
mod mapped;
mod paths;
mod planner;
pub(super) mod recovery;
mod room;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use holdfast_repo::{Repo, format::item::ItemPath};

pub(super) use mapped::MappedFile;
pub(super) use planner::is_reusable;
pub(super) use room::{ROOM_EXTRA_BYTES, room_at, too_little};

use super::{
    buffer_pool::buffer_pool_bytes,
    opened::Opened,
    options::RestoreOptions,
    planned::{PlannedOwner, PlannedPrepare, RestoreMode, RestorePlan},
    redo::{RedoLayout, lay_out},
    target::{
        marker::Marker,
        names::partial_of,
        survey::{Standing, Survey, changed, survey},
    },
};
use layout::{IN_THE_TARGET, Pointer};
use paths::join;
use planner::Planner;

use crate::{
    data_directory::{is_data_directory, refuse_inside},
    error::{Error, ErrorKind, Result},
    event::Cancel,
    real_path::real_path,
    server::{ServerVersion, programs::ServerBinary},
};

/// The plan, and what else carrying it out needs.
pub(super) struct Plan {
    pub(super) shown: RestorePlan,
    pub(super) survey: Survey,
    /// The owner of everything restored, if we may set it.
    pub(super) owner: Option<(u32, u32)>,
    pub(super) redo: RedoLayout,
    /// Directories of the target, in order.
    pub(super) directories: Vec<(ItemPath, u16)>,
    /// Files without which no server starts.
    pub(super) held: Vec<ItemPath>,
    /// Logs of Aria, which only the recovering server may find.
    pub(super) aria_logs: Vec<ItemPath>,
    pub(super) pointers: Vec<(Pointer, PathBuf)>,
    /// What to remove; the contents of a directory come before it.
    pub(super) delete: Vec<ItemPath>,
    /// Files in mapped places.
    pub(super) mapped: Vec<MappedFile>,
    /// Directories of mapped places that are not there yet, or that this restore made before it was
    /// interrupted.
    pub(super) made: Vec<PathBuf>,
    pub(super) binary: Option<ServerBinary>,
}

impl Plan {
    /// The names that files without which no server starts have until they get their final ones.
    pub(super) fn unnamed(&self) -> Result<Vec<ItemPath>> {
        self.redo.paths().chain(&self.held).map(partial_of).collect()
    }
}

/// Plans; changes nothing.
pub(super) fn make(repo: &Repo, opened: &Opened, options: &RestoreOptions, cancel: &Cancel) -> Result<Plan> {
    check_options(options)?;
    let binary = match options.prepare {
        true => Some(find_binary(&opened.server.version, options).map_err(without_prepare)?),
        false => None,
    };
    let survey = survey(&options.target_dir, options.delta, &opened.id)?;
    let redo = lay_out(opened, options.redo_file_bytes_max)?;
    let flavor = opened.server.version.flavor;
    let mut planner = Planner::new(opened, options, &survey)?;
    for item in opened.backup.items() {
        cancel.check()?;
        planner.add(&item?)?;
    }
    planner.refuse_unused_mappings()?;
    refuse_into_repository(repo, planner.mapped_paths())?;
    refuse_into_data_directory(planner.mapped_paths())?;
    planner.redo(&redo)?;
    let (delete, room) = match survey.standing {
        Standing::Complete => {
            planner.leave_all();
            Default::default()
        }
        Standing::Free | Standing::Ours | Standing::Other => {
            let delete = planner.delete()?;
            let room = planner.room(&redo, &delete, cancel)?;
            (delete, room)
        }
    };
    let buffer_pool = buffer_pool_bytes(options, redo.captured_bytes);
    let decided = planner.finish();
    let target_dir = real_path(&options.target_dir)?;
    let owner = owner_of(options, &survey);
    if let Some(binary) = &binary {
        binary.require_runs_as(owner, &target_dir).map_err(without_prepare)?;
    }
    let shown = RestorePlan {
        backup: opened.id.clone(),
        server_version: opened.server.version.clone(),
        mode: match survey.standing {
            Standing::Free => RestoreMode::Fresh,
            Standing::Ours => RestoreMode::Continue,
            Standing::Complete => RestoreMode::Complete,
            Standing::Other => RestoreMode::Delta,
        },
        owner: owner.map(|(uid, gid)| PlannedOwner { uid, gid }),
        files: decided.files,
        bytes: decided.bytes,
        rows: None,
        redo_bytes: redo.captured_bytes,
        create: decided.create,
        replace: decided.replace,
        delete: delete.iter().map(|path| join(&target_dir, path)).collect(),
        external: decided.external,
        dropped: decided.dropped,
        room,
        prepare: binary.as_ref().map(|binary| PlannedPrepare {
            program: binary.path.clone(),
            version: binary.version.clone(),
            buffer_pool_bytes: buffer_pool,
            least_ms: recovery::least_ms(flavor, redo.captured_bytes),
        }),
        server_options: decided.server_options,
        target_dir,
    };
    if options.agreed.as_ref().is_some_and(|agreed| !agreed.does_the_same(&shown)) {
        return Err(changed(&shown.target_dir));
    }
    Ok(Plan {
        shown,
        owner,
        redo,
        directories: decided.directories,
        held: decided.held,
        aria_logs: decided.aria_logs,
        pointers: decided.pointers,
        delete,
        made: made(&options.maps, &decided.mapped, survey.own_marker()),
        mapped: decided.mapped,
        binary,
        survey,
    })
}

/// The owner of everything restored, if we may set it.
pub(super) fn owner_of(options: &RestoreOptions, survey: &Survey) -> Option<(u32, u32)> {
    let is_root = rustix::process::geteuid().is_root();
    is_root.then(|| owner(options.owner, survey.owner, options.server_user))
}

/// Root restores for others: a server that runs as a user of its own cannot start on what belongs to root.
fn owner(
    named: Option<(u32, u32)>,
    of_target: Option<(u32, u32)>,
    server_user: Option<(u32, u32)>,
) -> (u32, u32) {
    const ROOT: u32 = 0;
    let somebodys = of_target.filter(|(uid, _)| *uid != ROOT);
    named.or(somebodys).or(server_user).or(of_target).unwrap_or((ROOT, ROOT))
}

/// Directories of the mapped places that are the restore's own; others belong to somebody else, and stay so.
fn made(maps: &[(PathBuf, PathBuf)], mapped: &[MappedFile], own_marker: Option<&Marker>) -> Vec<PathBuf> {
    let before = own_marker.map_or(&[][..], |marker| &marker.made);
    let is_below = |dir: &Path| maps.iter().any(|(_, to)| dir.starts_with(to));
    let needed: BTreeSet<&Path> = mapped
        .iter()
        .flat_map(|file| file.path.ancestors().skip(1).take_while(|dir| is_below(dir)))
        .collect();
    let is_ours = |dir: &&Path| dir.symlink_metadata().is_err() || before.iter().any(|made| made == *dir);
    needed.into_iter().filter(is_ours).map(Path::to_owned).collect()
}

pub(super) fn check_options(options: &RestoreOptions) -> Result<()> {
    for (from, to) in &options.maps {
        if !from.is_absolute() || !to.is_absolute() {
            let text = format!("mapping {}={} needs absolute paths", from.display(), to.display());
            return Err(Error::new(ErrorKind::Usage, text));
        }
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let is_ours = |owner| owner == (user.as_raw(), group.as_raw());
    if !user.is_root() && options.owner.is_some_and(|owner| !is_ours(owner)) {
        return Err(Error::new(ErrorKind::Usage, "only root can give the restored files to another user"));
    }
    let target = real_path(&options.target_dir)?;
    // One that already is a data directory is there, whatever is done with it.
    if !is_data_directory(&target) {
        refuse_inside(&target)?;
    }
    for (_, to) in &options.maps {
        if real_path(to)?.starts_with(&target) {
            let text = format!("a mapping leads to {}, which is in the target", to.display());
            return Err(Error::new(ErrorKind::Usage, text).hinted(IN_THE_TARGET));
        }
    }
    Ok(())
}

/// Refuses a target that holds the repository, or is in it: a restore deletes what is not the backup's. And a
/// mapping into it.
pub(super) fn refuse_repository(repo: &Repo, options: &RestoreOptions) -> Result<()> {
    let Some(root) = repo.store().local_root() else { return Ok(()) };
    let (root, target) = (real_path(root)?, real_path(&options.target_dir)?);
    if root.starts_with(&target) && root != target {
        return Err(touches_repository(&target, "contains", &root));
    }
    let maps = options.maps.iter().map(|(_, to)| to.as_path());
    refuse_below(&root, [target.as_path()].into_iter().chain(maps))
}

/// Refuses places in a data directory.
fn refuse_into_data_directory<'a>(places: impl Iterator<Item = &'a Path>) -> Result<()> {
    let dirs: BTreeSet<_> = places.filter_map(Path::parent).collect();
    dirs.into_iter().try_for_each(|dir| refuse_inside(&real_path(dir)?))
}

/// Refuses places in the repository. A mapped place may be around it, and a file in it be mapped to the
/// repository.
fn refuse_into_repository<'a>(repo: &Repo, places: impl Iterator<Item = &'a Path>) -> Result<()> {
    match repo.store().local_root() {
        Some(root) => refuse_below(&real_path(root)?, places),
        None => Ok(()),
    }
}

fn refuse_below<'a>(root: &Path, places: impl Iterator<Item = &'a Path>) -> Result<()> {
    for place in places {
        let place = real_path(place)?;
        if place.starts_with(root) {
            return Err(touches_repository(&place, "is in", root));
        }
    }
    Ok(())
}

fn touches_repository(place: &Path, relation: &str, root: &Path) -> Error {
    let (place, root) = (place.display(), root.display());
    let text = format!("{place} {relation} the repository, {root}, which a restore must not touch");
    Error::new(ErrorKind::Usage, text).hinted("name another directory, or move the repository")
}

/// The server program that works on the files of a server of this version.
pub(super) fn find_binary(wanted: &ServerVersion, options: &RestoreOptions) -> Result<ServerBinary> {
    let binary = ServerBinary::find(options.server_binary.as_deref(), wanted, &options.search_path)?;
    if binary.version.flavor != wanted.flavor {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("{} is {}, but the backup is from {wanted}", binary.path.display(), binary.version),
        ));
    }
    if !options.allow_version {
        binary.require(wanted)?;
    }
    Ok(binary)
}

fn without_prepare(error: Error) -> Error {
    error.also_hinted("or use --no-prepare: the server that is started on the files recovers them then")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The owner that a user names counts first, then the existing one, then the usual one; root only if a
    /// user names it, or if there is no other.
    #[test]
    fn whose_it_will_be() {
        let (dba, mysql, root) = (Some((7, 8)), Some((101, 102)), Some((0, 0)));
        assert_eq!(owner(dba, mysql, mysql), (7, 8));
        assert_eq!(owner(root, mysql, mysql), (0, 0));
        assert_eq!(owner(None, dba, mysql), (7, 8));
        assert_eq!(owner(None, None, mysql), (101, 102));
        assert_eq!(owner(None, root, mysql), (101, 102));
        assert_eq!(owner(None, root, None), (0, 0));
        assert_eq!(owner(None, None, None), (0, 0));
    }
}
