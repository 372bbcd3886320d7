//! The frames of a whole object, each compressed and sealed.

use holdfast_pipe::{
    Codec, Compression, ObjectKey, SealContext, TAG_BYTES,
    codec::{Compressor, decompress},
};

use super::header::Secret;
use crate::{
    error::{Damage, RepoError},
    format::place::{HEADER_BYTES, ObjectKind, Place},
};

/// Plain bytes of every frame but the last.
const FRAME_BYTES: usize = 1 << 20;
const FRAME_HEADER_BYTES: usize = 10;

pub(super) fn seal_frames(secret: &Secret, place: &Place<'_>, plain: &[u8]) -> Result<Vec<u8>, RepoError> {
    let key = secret.object_key(place);
    let failed = |_| RepoError::malformed(place, "its bytes cannot be compressed");
    let mut compressor = Compressor::new(Compression::Zstd { level: 3 }).map_err(failed)?;
    let mut object = secret.header(place).to_vec();
    let mut sealed = Vec::new();
    let frames = plain.len().div_ceil(FRAME_BYTES).max(1);
    for ordinal in 0..frames {
        let from = ordinal * FRAME_BYTES;
        let frame = &plain[from..plain.len().min(from + FRAME_BYTES)];
        let codec = compressor.compress(frame, &mut sealed).map_err(failed)?;
        let last = ordinal + 1 == frames;
        let plain_len = length(frame.len());
        key.seal(context(place.kind, codec as u8, last, ordinal, plain_len), &mut sealed);
        object.extend_from_slice(&plain_len.to_le_bytes());
        object.extend_from_slice(&length(sealed.len()).to_le_bytes());
        object.extend_from_slice(&[codec as u8, u8::from(last)]);
        object.extend_from_slice(&sealed);
    }
    Ok(object)
}

/// Converts lengths within a frame, which is far below 4 GiB.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn context(kind: ObjectKind, codec: u8, last: bool, ordinal: usize, plain_len: u32) -> SealContext {
    SealContext { object_kind: kind as u8, chunk_kind: 0, codec, last, ordinal: ordinal as u64, plain_len }
}

/// Size of the largest object that [`open_frames`] opens to `plain_limit` bytes.
pub(crate) const fn sealed_limit_bytes(plain_limit: u64) -> u64 {
    let frames = plain_limit / FRAME_BYTES as u64 + 1;
    plain_limit
        .saturating_add(HEADER_BYTES as u64)
        .saturating_add(frames.saturating_mul((FRAME_HEADER_BYTES + TAG_BYTES) as u64))
}

/// Opens the frames of a whole object, of at most `plain_limit` plain bytes in total. `key` is the key that
/// its header gave. Errors name `place`.
pub(crate) fn open_frames(
    key: &ObjectKey,
    place: &Place<'_>,
    object: &[u8],
    plain_limit: u64,
) -> Result<Vec<u8>, RepoError> {
    let mut frames = Frames::new(key, place, object, plain_limit)?;
    let mut plain = Vec::new();
    while !frames.are_over() {
        frames.open_next(&mut plain)?;
    }
    Ok(plain)
}

/// The frames of a whole object, opened one after another.
pub(crate) struct Frames<'a> {
    key: &'a ObjectKey,
    place: &'a Place<'a>,
    rest: &'a [u8],
    ordinal: usize,
    are_over: bool,
    /// Plain bytes that may still come.
    left_bytes: u64,
    stored: Vec<u8>,
    frame: Vec<u8>,
}

impl<'a> Frames<'a> {
    /// For an object whose header gave `key`, of at most `plain_limit` plain bytes in total.
    pub(crate) fn new(
        key: &'a ObjectKey,
        place: &'a Place<'a>,
        object: &'a [u8],
        plain_limit: u64,
    ) -> Result<Self, RepoError> {
        let rest = object.get(HEADER_BYTES..);
        let rest = rest.ok_or_else(|| RepoError::malformed(place, "it ends in its header"))?;
        let (stored, frame) = (Vec::new(), Vec::new());
        Ok(Self { key, place, rest, ordinal: 0, are_over: false, left_bytes: plain_limit, stored, frame })
    }

    /// Whether the last frame was opened, and nothing follows it.
    pub(crate) fn are_over(&self) -> bool {
        self.are_over
    }

    /// Appends the plain bytes of the next frame, at most [`FRAME_BYTES`].
    /// Must not be called once the frames are over.
    pub(crate) fn open_next(&mut self, plain: &mut Vec<u8>) -> Result<(), RepoError> {
        let place = self.place;
        let malformed = |what| RepoError::malformed(place, what);
        let broken = || RepoError::damaged(place, Damage::Sealed { what: "a frame" });
        let head = self.rest.split_first_chunk::<FRAME_HEADER_BYTES>();
        let (head, after) = head.ok_or_else(|| malformed("it ends early"))?;
        let &[p0, p1, p2, p3, s0, s1, s2, s3, codec_number, last] = head;
        let plain_len = u32::from_le_bytes([p0, p1, p2, p3]);
        let sealed_len = u32::from_le_bytes([s0, s1, s2, s3]);
        let plain_size = usize::try_from(plain_len).ok().filter(|len| *len <= FRAME_BYTES);
        let plain_size = plain_size.ok_or_else(|| malformed("a frame is too long"))?;
        let left_bytes = self.left_bytes.checked_sub(plain_size as u64);
        self.left_bytes = left_bytes.ok_or_else(|| malformed("it is longer than such an object can be"))?;
        let last = match last {
            0 if plain_size == FRAME_BYTES => false,
            0 => return Err(malformed("a frame is too short")),
            1 => true,
            _ => return Err(malformed("a frame's last flag is neither 0 nor 1")),
        };
        let sealed_size = usize::try_from(sealed_len).ok().filter(|len| *len <= after.len());
        let sealed_size = sealed_size.ok_or_else(|| malformed("it ends early"))?;
        let (sealed, after) = after.split_at(sealed_size);
        self.stored.clear();
        self.stored.extend_from_slice(sealed);
        let context = context(place.kind, codec_number, last, self.ordinal, plain_len);
        let opened = self.key.open(context, &mut self.stored).map_err(|_| broken())?;
        let codec = Codec::try_from(codec_number).map_err(|_| {
            RepoError::damaged(place, Damage::Unknown { what: format!("codec {codec_number}") })
        })?;
        decompress(codec, opened, plain_size, &mut self.frame).map_err(|_| broken())?;
        plain.extend_from_slice(&self.frame);
        self.rest = after;
        self.ordinal += 1;
        self.are_over = last;
        if last && !after.is_empty() {
            return Err(malformed("something follows its last frame"));
        }
        Ok(())
    }
}
