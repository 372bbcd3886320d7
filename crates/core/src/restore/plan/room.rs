//! How much room a restore needs, and where it is to come from.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use holdfast_repo::format::{
    columns::PageEntry,
    item::{ItemPath, leaf_count},
};

use super::{
    layout::{Decision, Layout, Root},
    planner::Planner,
};
use crate::{
    error::{Error, Result},
    event::Cancel,
    restore::{
        planned::PlannedRoom,
        redo::{RedoLayout, RestOfRedo},
        target::{Room, Tree, io_failed},
    },
    size::ByteSize,
};

/// Room for what no plan knows: directories, the marker, the server's small files.
pub(in crate::restore) const ROOM_EXTRA_BYTES: u64 = 16 << 20;
/// Temporary tablespaces and logs that a recovering server makes.
const ROOM_PREPARE_BYTES: u64 = 64 << 20;

impl Planner<'_> {
    pub(super) fn room(
        &self,
        redo: &RedoLayout,
        delete: &[ItemPath],
        cancel: &Cancel,
    ) -> Result<Vec<PlannedRoom>> {
        let mut rooms: BTreeMap<u64, (PlannedRoom, Vec<Root>)> = BTreeMap::new();
        let mut growth = self.growth.clone();
        let own = growth.entry(Root::Target).or_default();
        // The server makes a log of its own size before it drops the captured one.
        let own_redo = if self.options.prepare { self.opened.server.innodb.redo_size } else { 0 };
        let prepare = if self.options.prepare { ROOM_PREPARE_BYTES } else { 0 };
        let moved = redo.rest.iter().map(RestOfRedo::moved_bytes).max().unwrap_or(0);
        *own = [redo.captured_bytes, moved, own_redo, prepare, ROOM_EXTRA_BYTES]
            .into_iter()
            .fold(*own, u64::saturating_add);
        for (root, bytes) in growth {
            let path = match root {
                Root::Target => &self.target,
                Root::Mapped(map) => &self.options.maps[map].1,
            };
            let (existing, room) = room_at(path)?;
            let entry = rooms.entry(room.device).or_insert_with(|| {
                (PlannedRoom { path: existing, needed_bytes: 0, free_bytes: room.free_bytes }, Vec::new())
            });
            entry.0.needed_bytes = entry.0.needed_bytes.saturating_add(bytes);
            entry.1.push(root);
        }
        let freed: u64 = delete
            .iter()
            .filter_map(|path| self.survey.found.get(path))
            .filter(|found| found.links == 1)
            .fold(0, |sum, found| sum.saturating_add(found.allocated_bytes));
        for (room, roots) in rooms.values_mut() {
            if roots.contains(&Root::Target) {
                room.needed_bytes = room.needed_bytes.saturating_sub(freed);
            }
            if room.needed_bytes > room.free_bytes {
                // Sizes count holes; the page maps know how many there are.
                let holes = self.hole_bytes(roots, cancel)?;
                room.needed_bytes = room.needed_bytes.saturating_sub(holes);
            }
            if room.needed_bytes > room.free_bytes {
                return Err(too_little(room));
            }
        }
        Ok(rooms.into_values().map(|(room, _)| room).collect())
    }

    fn hole_bytes(&self, roots: &[Root], cancel: &Cancel) -> Result<u64> {
        let mut layout = Layout::of(self.opened, self.options)?;
        let mut bytes = 0_u64;
        for item in self.opened.backup.items() {
            cancel.check()?;
            let item = item?;
            let root = match layout.decide(&item)? {
                Decision::File { place, .. } | Decision::Mapped { place, .. } => place.root,
                _ => continue,
            };
            if !roots.contains(&root) {
                continue;
            }
            let is_hole = |entry: &&PageEntry| match entry {
                PageEntry::Hole => true,
                PageEntry::Zero => self.options.sparse,
                PageEntry::Stored(_) => false,
            };
            for leaf in 0..leaf_count(item.page_count()) {
                let holes = self.opened.backup.leaf(&item, leaf)?.iter().filter(is_hole).count();
                bytes = bytes.saturating_add((holes as u64).saturating_mul(item.page_size.bytes() as u64));
            }
        }
        Ok(bytes)
    }
}

/// The error for a filesystem that is too full.
pub(in crate::restore) fn too_little(room: &PlannedRoom) -> Error {
    Error::failed(format!(
        "{} has {} free, and the restore needs {}",
        room.path.display(),
        ByteSize(room.free_bytes),
        ByteSize(room.needed_bytes)
    ))
    .hinted("make room, or restore into another filesystem")
}

/// Room at `path`, or where it will be made.
pub(in crate::restore) fn room_at(path: &Path) -> Result<(PathBuf, Room)> {
    let failed = |error| io_failed("look at", path, error);
    for existing in path.ancestors() {
        match Tree::open(existing) {
            Ok(tree) => return Ok((tree.path().to_owned(), tree.room().map_err(failed)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(std::io::ErrorKind::NotFound.into()))
}
