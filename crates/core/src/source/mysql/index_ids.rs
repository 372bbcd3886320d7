//! The counter of index ids.
//!
//! It is in the dictionary header, page 7 of the system tablespace: eight bytes at offset 54. The page on
//! disk has every value that was logged before the checkpoint; later ones are in the redo, where
//! [`IndexLoadFinder`](holdfast_formats::redo::index_load::IndexLoadFinder) sees them.

use std::io;

use holdfast_pipe::AlignedBuffer;

use crate::{
    error::{Error, Result},
    server::ServerFacts,
    source::{
        CaptureOptions,
        files::read_failed,
        outside::no_system_file,
        page_reader::{PageReader, ReadMode},
    },
};

const PAGE: u64 = 7;
const OFFSET: usize = 54;

/// No index that was created before the newest checkpoint has a higher id.
pub(super) fn highest(facts: &ServerFacts, options: &CaptureOptions, mode: ReadMode) -> Result<u64> {
    let first = facts.system_files()?.into_iter().next();
    let path = first.ok_or_else(|| Error::failed("the server names no file of its system tablespace"))?;
    let path = options.map_path(&path);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => no_system_file(&path),
        _ => read_failed(&path, error),
    };
    let page_bytes = usize::try_from(facts.innodb.page_size).unwrap_or(usize::MAX);
    let mut buffer = AlignedBuffer::new(2 * page_bytes.min(64 << 10));
    let reader = PageReader::open(&path, mode).map_err(failed)?;
    let page = reader.read_again(PAGE * page_bytes as u64, page_bytes, &mut buffer).map_err(failed)?;
    // The eight bytes lie within one sector, which is never torn.
    let value = page.as_deref().and_then(|page| page.get(OFFSET..OFFSET + 8)?.try_into().ok());
    // A new server has used hundreds of ids before anybody can connect.
    value.map(u64::from_be_bytes).filter(|id| *id > 0).ok_or_else(|| {
        Error::failed(format!("{}: has no dictionary header", path.display()))
            .hinted("is this the system tablespace of that server?")
    })
}
