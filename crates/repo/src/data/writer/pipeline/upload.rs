//! The stages that write packs and make them durable.

use std::{collections::BTreeMap, mem, sync::Arc};

use crossbeam_channel::{Receiver, Sender};
use holdfast_pipe::ObjectKey;

use super::{Sealed, Shared, WriteError};
use crate::{
    data::pack_signature::{self, PACK_SIGNATURE_BYTES},
    error::RepoError,
    format::{
        index::IndexedPack,
        names::PackId,
        pack::{ChunkRow, Directory, Trailer, directory_seal_context},
        place::{ObjectKind, Place},
    },
    store::{StoreError, Upload},
};

/// A pack that is written, but not durable yet.
pub(super) struct Uploaded {
    part: u32,
    size_bytes: u64,
    rows: Vec<ChunkRow>,
    upload: Box<dyn Upload>,
}

impl Shared {
    pub(super) fn upload(
        &self,
        input: &Receiver<Sealed>,
        output: &Sender<Uploaded>,
        first_part: u32,
    ) -> Result<(), WriteError> {
        let mut early = BTreeMap::new();
        let mut next = 0;
        let mut open: Option<OpenPack> = None;
        let mut expected_part = first_part;
        for sealed in input {
            early.insert(sealed.sequence, sealed);
            while let Some(sealed) = early.remove(&next) {
                next += 1;
                if let Some(pack) = open.take_if(|pack| pack.part != sealed.part) {
                    let uploaded = self.meters.upload.time(|| pack.close(self))?;
                    output.send(uploaded).map_err(|_| WriteError::Stopped)?;
                    expected_part += 1;
                }
                debug_assert_eq!(sealed.part, expected_part);
                let pack = match &mut open {
                    Some(pack) => pack,
                    None => open.insert(OpenPack::begin(self, sealed.part, Arc::clone(&sealed.key))?),
                };
                self.meters.upload.time(|| pack.write(&sealed.bytes))?;
                self.meters.upload.add(sealed.bytes.len() as u64);
                pack.directory.rows.push(sealed.row);
                pack.directory.hashes.extend_from_slice(&sealed.hashes);
                self.buffers.give(sealed.bytes);
            }
            if self.stop.is_stopped() {
                return Err(WriteError::Stopped);
            }
        }
        // The queue also closes when an earlier stage has failed: then no pack may look complete.
        match open {
            Some(pack) if !self.stop.is_stopped() && early.is_empty() => {
                let uploaded = self.meters.upload.time(|| pack.close(self))?;
                output.send(uploaded).map_err(|_| WriteError::Stopped)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn finish_packs(
        &self,
        input: &Receiver<Uploaded>,
        output: &Sender<IndexedPack>,
    ) -> Result<(), WriteError> {
        for pack in input {
            let place = self.pack_place(pack.part);
            self.hooks.point("writer.pack.before_finish");
            let info = self.meters.finish.time(|| pack.upload.finish())?;
            self.hooks.point("writer.pack.after_finish");
            if info.size_bytes != pack.size_bytes {
                let what = "the store does not hold as many bytes as it was given";
                return Err(RepoError::malformed(place.path(), what).into());
            }
            self.meters.finish.add(pack.size_bytes);
            let indexed = IndexedPack { part: pack.part, size_bytes: pack.size_bytes, rows: pack.rows };
            output.send(indexed).map_err(|_| WriteError::Stopped)?;
        }
        Ok(())
    }

    fn pack_place(&self, part: u32) -> Place<'_> {
        Place { log: self.secrets.log(), kind: ObjectKind::Pack, run: self.secrets.run(), part }
    }
}

struct OpenPack {
    part: u32,
    key: Arc<ObjectKey>,
    upload: Box<dyn Upload>,
    offset: u64,
    /// Of all bytes so far.
    hasher: blake3::Hasher,
    directory: Directory,
}

impl OpenPack {
    fn begin(shared: &Shared, part: u32, key: Arc<ObjectKey>) -> Result<Self, WriteError> {
        let pack = PackId { run: shared.secrets.run(), part };
        shared.hooks.point("writer.pack.before_put");
        let upload = shared.repo.store().put(&shared.secrets.log().pack(pack))?;
        shared.hooks.point("writer.pack.after_put");
        let (hasher, directory) = (blake3::Hasher::new(), Directory::default());
        let mut open = Self { part, key, upload, offset: 0, hasher, directory };
        let header = shared.secrets.pack_header(part);
        open.write(&header)?;
        shared.meters.upload.add_many(0, header.len() as u64);
        Ok(open)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.hasher.update(bytes);
        self.offset += bytes.len() as u64;
        self.upload.write(bytes)
    }

    fn close(mut self, shared: &Shared) -> Result<Uploaded, WriteError> {
        let mut sealed = self.directory.encode();
        let plain_len = sealed.len() as u32;
        self.key.seal(directory_seal_context(plain_len), &mut sealed);
        let offset = self.offset + PACK_SIGNATURE_BYTES as u64;
        let trailer = Trailer { offset, sealed_len: sealed.len() as u32, plain_len }.encode();
        let others = self.hasher.update(&sealed).update(&trailer);
        let signature = pack_signature::sign(&shared.repo, &shared.pack_place(self.part), others);
        for bytes in [&signature[..], &sealed, &trailer] {
            self.upload.write(bytes)?;
        }
        let written = (signature.len() + sealed.len() + trailer.len()) as u64;
        shared.meters.upload.add_many(0, written);
        Ok(Uploaded {
            part: self.part,
            size_bytes: self.offset + written,
            rows: mem::take(&mut self.directory.rows),
            upload: self.upload,
        })
    }
}
