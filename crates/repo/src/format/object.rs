//! Objects: the header, which names an object's place and carries its wrapped secret, and sealed objects,
//! which are a header and frames (`docs/reference/repository.md` section 5).
//!
//! A secret is drawn for one purpose: the packs and index parts of one run ([`RunSecrets`]),
//! or one writing of one other object ([`seal_object`]). So no key ever seals two contents under one
//! nonce, whatever is written again.

use std::fmt;

use holdfast_pipe::{
    Codec, Compression, ObjectKey, SealContext, Suite, TAG_BYTES,
    codec::{Compressor, decompress},
};

use crate::{
    error::{Damage, RepoError},
    format::{
        hex::{Hex, Secret32},
        names::{LogName, PackId, RunNo},
    },
    keys::{
        KeyMaterial, RepositoryId, random,
        wrap::{ENCAPSULATED_BYTES, WRAPPED_BYTES, wrap},
    },
    store::ObjectPath,
};

/// Size of the header of every sealed object and pack.
pub const HEADER_BYTES: usize = 116;
/// Plain bytes of every frame but the last.
pub const FRAME_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 4] = b"HFD1";
const FRAME_HEADER_BYTES: usize = 10;

/// BLAKE3 of an object's bytes.
pub type ObjectHash = Hex<32>;

/// Takes the place of the previous object's hash in the first object of a chain.
pub(crate) const NO_OBJECT: ObjectHash = Hex([0; 32]);

pub(crate) fn object_hash(bytes: &[u8]) -> ObjectHash {
    Hex(*blake3::hash(bytes).as_bytes())
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// Chunks.
    Pack = 1,
    /// Directories of packs.
    Index = 2,
    /// What a backup needs, or what a prune declared.
    Refs = 3,
    /// Public part of an outcome.
    OutcomePublic = 4,
    /// Head of a manifest, in an outcome.
    ManifestHead = 5,
    /// What a run measured.
    Report = 6,
    /// Public part of a segment.
    SegmentPublic = 7,
    /// Bytes of a segment.
    SegmentBytes = 8,
    /// What checks have read.
    CheckRecord = 9,
    /// Name of the host of a run, in its lease.
    LeaseHost = 10,
}

impl ObjectKind {
    pub(crate) fn secret(self) -> SecretKind {
        match self {
            Self::Pack | Self::Index | Self::ManifestHead | Self::Report | Self::SegmentBytes => {
                SecretKind::Read
            }
            Self::Refs | Self::OutcomePublic | Self::SegmentPublic | Self::CheckRecord | Self::LeaseHost => {
                SecretKind::Refs
            }
        }
    }
}

/// For whom a secret is wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum SecretKind {
    /// Keys that may read backups.
    Read = 1,
    /// Keys that may see what is dead.
    Refs = 2,
}

/// Where an object belongs; bound into its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The log.
    pub log: &'a LogName,
    /// The kind of object.
    pub kind: ObjectKind,
    /// The run.
    pub run: RunNo,
    /// Part number; 0 if there is only one part.
    pub part: u32,
}

impl Place<'_> {
    /// Name of the object, or of the object that contains it.
    #[must_use]
    pub fn path(&self) -> ObjectPath {
        match self.kind {
            ObjectKind::Pack => self.log.pack(PackId { run: self.run, part: self.part }),
            ObjectKind::Index => self.log.index(self.run, self.part),
            ObjectKind::Refs => self.log.refs(self.run),
            ObjectKind::OutcomePublic | ObjectKind::ManifestHead => self.log.outcome(self.run),
            ObjectKind::Report => self.log.report(self.run),
            ObjectKind::CheckRecord => self.log.check_record(self.run),
            ObjectKind::LeaseHost => self.log.lease(self.run, self.part),
            ObjectKind::SegmentPublic | ObjectKind::SegmentBytes => self.log.segment(self.run, self.part),
        }
    }

    fn object_key(&self, suite: Suite, repository: RepositoryId, secret: &Secret32) -> ObjectKey {
        let source = self.log.source.as_str();
        let mut place = Vec::with_capacity(16 + 1 + source.len() + 2 + 12);
        place.extend_from_slice(&repository.0.0);
        // At most 64, by the rules for names.
        place.push(u8::try_from(source.len()).unwrap_or(u8::MAX));
        place.extend_from_slice(source.as_bytes());
        place.push(self.log.kind as u8);
        place.push(self.kind as u8);
        place.extend_from_slice(&self.run.0.to_le_bytes());
        place.extend_from_slice(&self.part.to_le_bytes());
        ObjectKey::derive(suite, &secret.0, &place)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path())
    }
}

/// A fresh secret, wrapped for those who may open what it seals.
struct Secret {
    suite: Suite,
    repository: RepositoryId,
    secret: Secret32,
    wrapped: WrappedSecret,
}

impl Secret {
    fn draw(keys: &KeyMaterial, kind: SecretKind) -> Result<Self, RepoError> {
        let suite = keys.repository().suite;
        let repository = keys.repository().repository_id;
        let (secret, wrapped) = match suite {
            Suite::None => (Secret32([0; 32]), WrappedSecret::NONE),
            Suite::X25519Aes256Gcm => {
                let secret = Secret32(random().map_err(RepoError::NoRandom)?);
                let public = match kind {
                    SecretKind::Read => keys.read_public(),
                    SecretKind::Refs => keys.refs_public(),
                };
                let (encapsulated, wrapped) = wrap(repository, public, &secret).ok_or_else(|| {
                    RepoError::malformed(format!("keys/{}", keys.key_id()), "a public key that is none")
                })?;
                (secret, WrappedSecret { rotation: keys.rotations(), encapsulated, wrapped })
            }
        };
        Ok(Self { suite, repository, secret, wrapped })
    }

    fn header(&self, place: &Place<'_>) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(MAGIC);
        header[4] = place.kind as u8;
        header[5] = self.suite as u8;
        header[6] = place.kind.secret() as u8;
        header[7] = self.wrapped.rotation;
        header[8..24].copy_from_slice(&self.repository.0.0);
        header[24..32].copy_from_slice(&place.run.0.to_le_bytes());
        header[32..36].copy_from_slice(&place.part.to_le_bytes());
        header[36..68].copy_from_slice(&self.wrapped.encapsulated);
        header[68..].copy_from_slice(&self.wrapped.wrapped);
        header
    }

    fn object_key(&self, place: &Place<'_>) -> ObjectKey {
        place.object_key(self.suite, self.repository, &self.secret)
    }
}

/// The secret of one run's packs and index parts.
///
/// The caller must give out each part number only once, not even again to repeat an upload.
pub struct RunSecrets {
    log: LogName,
    run: RunNo,
    secret: Secret,
}

impl fmt::Debug for RunSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunSecrets({} {})", self.log, self.run)
    }
}

impl RunSecrets {
    /// Draws a secret.
    pub fn draw(keys: &KeyMaterial, log: &LogName, run: RunNo) -> Result<Self, RepoError> {
        Ok(Self { log: log.clone(), run, secret: Secret::draw(keys, SecretKind::Read)? })
    }

    /// The secret in both forms: lets whoever drew it open what it seals without the private key.
    pub(crate) fn unwrapped(&self) -> (WrappedSecret, Secret32) {
        (self.secret.wrapped, self.secret.secret.clone())
    }

    /// The run.
    #[must_use]
    pub fn run(&self) -> RunNo {
        self.run
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> &LogName {
        &self.log
    }

    fn pack_place(&self, part: u32) -> Place<'_> {
        Place { log: &self.log, kind: ObjectKind::Pack, run: self.run, part }
    }

    /// First bytes of a pack.
    #[must_use]
    pub fn pack_header(&self, part: u32) -> [u8; HEADER_BYTES] {
        self.secret.header(&self.pack_place(part))
    }

    /// Key of a pack.
    #[must_use]
    pub fn pack_key(&self, part: u32) -> ObjectKey {
        self.secret.object_key(&self.pack_place(part))
    }

    /// Seals a whole index part.
    pub fn seal_index(&self, part: u32, plain: &[u8]) -> Result<Vec<u8>, RepoError> {
        let place = Place { log: &self.log, kind: ObjectKind::Index, run: self.run, part };
        seal_frames(&self.secret, &place, plain)
    }
}

/// Seals a whole object under a secret of its own. Writing the object again means sealing it again.
pub(crate) fn seal_object(keys: &KeyMaterial, place: &Place<'_>, plain: &[u8]) -> Result<Vec<u8>, RepoError> {
    seal_frames(&Secret::draw(keys, place.kind.secret())?, place, plain)
}

fn seal_frames(secret: &Secret, place: &Place<'_>, plain: &[u8]) -> Result<Vec<u8>, RepoError> {
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

/// What a header carries besides the object's place.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WrappedSecret {
    /// Number of the rotation whose public key it is wrapped for.
    pub(crate) rotation: u8,
    pub(crate) encapsulated: [u8; ENCAPSULATED_BYTES],
    pub(crate) wrapped: [u8; WRAPPED_BYTES],
}

impl WrappedSecret {
    /// Used with suite `none`.
    const NONE: Self =
        Self { rotation: 0, encapsulated: [0; ENCAPSULATED_BYTES], wrapped: [0; WRAPPED_BYTES] };
}

/// Checks that a header is of this repository and of `place`.
pub(crate) fn check_header(
    keys: &KeyMaterial,
    place: &Place<'_>,
    header: &[u8; HEADER_BYTES],
) -> Result<WrappedSecret, RepoError> {
    let info = keys.repository();
    let damaged = |damage| Err(RepoError::damaged(place, damage));
    if field(header, 0) != *MAGIC {
        return damaged(Damage::NoHeader);
    }
    if field(header, 8) != info.repository_id.0.0 {
        return damaged(Damage::OtherRepository);
    }
    let [kind, suite, secret, rotation] = field(header, 4);
    if (suite, secret) != (info.suite as u8, place.kind.secret() as u8) {
        return damaged(Damage::Malformed { what: "its header contradicts the repository" });
    }
    let run = RunNo(u64::from_le_bytes(field(header, 24)));
    let part = u32::from_le_bytes(field(header, 32));
    if (kind, run, part) != (place.kind as u8, place.run, place.part) {
        return damaged(Damage::Misplaced { found: format!("kind {kind} of run {run}, part {part}") });
    }
    if rotation > keys.rotations() {
        return damaged(Damage::NewerKeys { rotation });
    }
    let wrapped = WrappedSecret { rotation, encapsulated: field(header, 36), wrapped: field(header, 68) };
    if info.suite == Suite::None && wrapped != WrappedSecret::NONE {
        return damaged(Damage::Malformed { what: "a wrapped secret in a repository without encryption" });
    }
    Ok(wrapped)
}

/// N bytes at a fixed offset.
fn field<const N: usize>(header: &[u8; HEADER_BYTES], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[offset..offset + N]);
    bytes
}

/// The key of an object whose header was checked to be of `place`, from its unwrapped secret.
pub(crate) fn key_from_secret(keys: &KeyMaterial, place: &Place<'_>, secret: &Secret32) -> ObjectKey {
    place.object_key(keys.repository().suite, keys.repository().repository_id, secret)
}
