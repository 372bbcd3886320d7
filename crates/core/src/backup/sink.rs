//! Passes the capture's events to the writer of one repository.

use holdfast_repo::{
    data::writer::{BackupWriter, FileSpec as WriterFile},
    format::item::{FileRole, ItemPath, ItemType, Tablespace},
};

use crate::{
    captured_redo::REDO_ITEM,
    error::{Context, Error, Result},
    source::{FileId, FileSpec, Pages, Role, Sink},
};

/// A writer as a sink for events.
pub(super) struct WriterSink<'a> {
    writer: &'a BackupWriter,
}

impl<'a> WriterSink<'a> {
    pub(super) fn new(writer: &'a BackupWriter) -> Self {
        Self { writer }
    }
}

fn item_path(path: &str) -> Result<ItemPath> {
    ItemPath::new(path.as_bytes()).context(format_args!("{path} cannot be stored"))
}

fn role(role: Role) -> FileRole {
    match role {
        Role::Other => FileRole::Other,
        Role::Tablespace => FileRole::Tablespace,
        Role::Undo => FileRole::UndoTablespace,
        Role::System => FileRole::SystemTablespace,
        Role::AriaLog => FileRole::AriaLog,
        Role::AriaControl => FileRole::AriaControl,
        Role::Aria => FileRole::AriaTable,
        Role::Binlog => FileRole::Binlog,
        Role::EngineFile => FileRole::TableFile,
    }
}

impl Sink for WriterSink<'_> {
    fn file_begin(&self, spec: FileSpec) -> Result<FileId> {
        let file = WriterFile {
            path: item_path(&spec.path)?,
            item_type: if spec.path == REDO_ITEM { ItemType::CapturedRedo } else { ItemType::File },
            role: role(spec.role),
            mode: spec.mode,
            page_size: spec.page_size,
            tablespace: spec.space.map(|(space, flags)| Tablespace { space, flags }),
            outside: spec.outside.map(String::into_bytes),
        };
        self.writer.begin_file(file).map(|id| FileId(id.0 as u64)).map_err(Error::from)
    }

    fn pages(&self, file: FileId, pages: Pages<'_>) -> Result<()> {
        let page_bytes = pages.page_size.bytes();
        let count = pages.bytes.len() / page_bytes;
        let mut start = 0;
        while start < count {
            let is_hole = pages.is_hole(start);
            let run = 1 + (start + 1..count).take_while(|page| pages.is_hole(*page) == is_hole).count();
            let first = pages.first + start as u64;
            let result = if is_hole {
                self.writer.holes(id(file), first, run as u64)
            } else {
                let bytes = &pages.bytes[start * page_bytes..(start + run) * page_bytes];
                self.writer.pages(id(file), first, bytes)
            };
            result?;
            start += run;
        }
        Ok(())
    }

    fn file_end(&self, file: FileId, size_bytes: u64) -> Result<()> {
        self.writer.end_file(id(file), size_bytes).map_err(Error::from)
    }

    fn file_renamed(&self, file: FileId, path: &str) -> Result<()> {
        self.writer.rename_file(id(file), &item_path(path)?).map_err(Error::from)
    }

    fn file_gone(&self, file: FileId) -> Result<()> {
        self.writer.drop_file(id(file)).map_err(Error::from)
    }

    fn directory(&self, path: &str, mode: u16) -> Result<()> {
        self.writer.directory(item_path(path)?, mode);
        Ok(())
    }

    fn directory_gone(&self, path: &str) -> Result<()> {
        self.writer.drop_directory(&item_path(path)?);
        Ok(())
    }

    fn is_drained(&self) -> Result<bool> {
        self.writer.is_drained().map_err(Error::from)
    }
}

fn id(file: FileId) -> holdfast_repo::data::writer::FileId {
    holdfast_repo::data::writer::FileId(usize::try_from(file.0).unwrap_or(usize::MAX))
}
