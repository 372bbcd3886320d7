//! Outcomes: the results of runs. Signed, chained, created once (`docs/reference/repository.md` section 11).

use std::{ops::Not, time::SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    error::{Damage, RepoError},
    format::{
        hex::Hex,
        names::{Kind, LogName, RunNo},
        object::{ObjectHash, ObjectKind, Place, object_hash, seal_object, sealed_limit_bytes},
        wire::{Decoder, FormatError},
    },
    keys::{Act, Author, RepositoryId, Role},
    repo::{Looked, Repo},
};

/// Bytes of a manifest head before sealing, at most: paths outside the data directory
/// and sets of GTIDs can be many.
pub const HEAD_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a public part before sealing, at most: an expire of some hundred thousand backups.
pub const PUBLIC_BYTES_MAX: u64 = 2 << 20;
/// Plain bytes of a report, at most.
pub const REPORT_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a whole outcome, at most.
pub const OUTCOME_BYTES_MAX: u64 =
    sealed_limit_bytes(HEAD_BYTES_MAX) + sealed_limit_bytes(PUBLIC_BYTES_MAX) + FIXED_BYTES as u64;

/// Magic, two lengths, signer and signature.
const FIXED_BYTES: usize = 4 + 2 * 4 + 32 + 64;

/// What [`Intent::Hold`] is about, in words.
pub(crate) const HOLDING: &str = "holding and releasing backups";

/// What [`Intent::Repair`] is about, in words.
pub(crate) const REPAIRING: &str = "a repair";

const MAGIC: &[u8; 4] = b"HFO1";
const CONTEXT: &[u8] = b"holdfast outcome 1\0";

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutcomeType {
    /// A backup.
    Backup,
    /// Backups were dropped.
    Expire,
    /// Packs were declared dead, chunks moved.
    Prune,
    /// Backups were put on hold: no expire drops them.
    Hold,
    /// Backups were released from their holds.
    Release,
    /// What was lost was made anew, and backups beyond help were dropped.
    Repair,
    /// Another run ended this one.
    Tombstone,
    /// The run ended itself, without effect.
    Abandoned,
}

impl OutcomeType {
    /// The name as stored, and as shown to people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Expire => "expire",
            Self::Prune => "prune",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Repair => "repair",
            Self::Tombstone => "tombstone",
            Self::Abandoned => "abandoned",
        }
    }

    /// Whether a key of this role may sign it.
    #[must_use]
    pub fn allowed_to(self, role: Role) -> bool {
        match (self, role) {
            (Self::Tombstone | Self::Abandoned, _) => true,
            (Self::Backup, role) => role.may(Act::Backup),
            // Whoever may drop may also hold: a hold that others could end would hold nothing.
            (Self::Expire | Self::Prune | Self::Hold | Self::Release, role) => role.may(Act::Prune),
            // It takes reading backups to tell which are beyond help.
            (Self::Repair, role) => role.may(Act::Prune) && role.may(Act::Read),
        }
    }
}

/// What a run is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intent {
    /// A backup. Only what such a run leaves is ever adopted by another.
    Backup,
    /// Dropping backups.
    Expire,
    /// Declaring packs dead, and moving chunks; or taking over what archivers have left, as a backup.
    Prune,
    /// Holding backups, or releasing them.
    Hold,
    /// Making anew what was lost.
    Repair,
}

/// An outcome that is lost: its run counts as one without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostOutcome {
    /// The run.
    pub run: u64,
    /// The hash that the outcome after it names as the one before.
    pub hash: ObjectHash,
    /// Hash of the outcome before it, if that is whole: nothing else records it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<ObjectHash>,
}

/// A run whose refs were lost and made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuilt {
    /// The run.
    pub run: u64,
    /// Whether they are the refs of a prune, not of a backup.
    pub is_prune: bool,
}

/// The backup that this one is a copy of: the original, however often it has been copied since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOf {
    /// Id of the repository that it was taken into.
    pub repository: RepositoryId,
    /// Name of its source there.
    pub source: String,
    /// Its run there.
    pub run: u64,
    /// Hash of its outcome: copies with the same hash are the same backup.
    pub outcome: ObjectHash,
    /// When it was taken, by the clock of the store that it was taken into.
    pub at: Timestamp,
    /// Whether it [was a filing](Outcome::is_filing).
    #[serde(default, skip_serializing_if = "Not::not")]
    pub filing: bool,
}

impl CopyOf {
    /// Whether both are the same backup.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.repository, self.outcome) == (other.repository, other.outcome)
    }
}

/// The public part of an outcome, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublicPart {
    pub(crate) run: u64,
    #[serde(rename = "type")]
    pub(crate) outcome_type: OutcomeType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) intent: Option<Intent>,
    pub(crate) at: Timestamp,
    pub(crate) host: String,
    pub(crate) previous: ObjectHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refs: Option<ObjectHash>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) report: Option<ObjectHash>,
    #[serde(default)]
    pub(crate) index_parts: u32,
    #[serde(default)]
    pub(crate) pack_parts: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) dropped: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) backups: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) why: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<LostOutcome>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rebuilt: Vec<Rebuilt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copy_of: Option<CopyOf>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) imported: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part: Option<Hex<8>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) rest: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) taken: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tail: Option<Map<String, Value>>,
}

impl PublicPart {
    /// The public part of an outcome that says only what every outcome says.
    pub(crate) fn bare(run: RunNo, outcome_type: OutcomeType, previous: ObjectHash, at: Timestamp) -> Self {
        Self {
            run: run.0,
            outcome_type,
            intent: None,
            at,
            host: String::new(),
            previous,
            refs: None,
            report: None,
            index_parts: 0,
            pack_parts: 0,
            dropped: Vec::new(),
            backups: Vec::new(),
            until: None,
            why: String::new(),
            lost: Vec::new(),
            rebuilt: Vec::new(),
            copy_of: None,
            imported: false,
            part: None,
            rest: false,
            taken: Vec::new(),
            tail: None,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A part of a source, by what was requested: two backups of equal parts hold the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// Identifies what was requested.
    pub id: Hex<8>,
    /// Whether it is all of the source but what was excluded by name. What the source does later can be replayed
    /// after it, as long as that does not touch what was excluded.
    pub is_rest: bool,
}

impl Part {
    /// What was `asked` for, in words that do not change from version to version.
    #[must_use]
    pub fn of(asked: &str) -> Self {
        let hash = blake3::derive_key("holdfast part of a source 1", asked.as_bytes());
        let mut id = [0; 8];
        id.copy_from_slice(&hash[..8]);
        Self { id: Hex(id), is_rest: false }
    }

    /// All but what was excluded.
    #[must_use]
    pub fn rest_of(asked: &str) -> Self {
        Self { is_rest: true, ..Self::of(asked) }
    }
}

/// The verified outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The run.
    pub run: RunNo,
    /// How it ended.
    pub outcome_type: OutcomeType,
    /// What it was to become; `None` if another run ended it and could not tell.
    pub intent: Option<Intent>,
    /// When it ended, by the store's clock as the run read it.
    pub at: Timestamp,
    /// When the object appeared, by the store's clock.
    pub created_at: SystemTime,
    /// The host that it ran on, for people.
    pub host: String,
    /// The key that signed it.
    pub author: Author,
    /// Hash of the refs object.
    pub refs: Option<ObjectHash>,
    /// Hash of the report object, if a backup has one.
    pub report: Option<ObjectHash>,
    /// How many index parts the run wrote.
    pub index_parts: u32,
    /// How many pack numbers the run gave out.
    pub pack_parts: u32,
    /// Backups that an expire dropped.
    pub dropped: Vec<RunNo>,
    /// Backups that a hold holds, or that a release releases.
    pub backups: Vec<RunNo>,
    /// When a hold ends by itself.
    pub until: Option<Timestamp>,
    /// An explanation for people; may be empty.
    pub why: String,
    /// Outcomes that a repair found lost.
    pub lost: Vec<LostOutcome>,
    /// Runs whose refs a repair has made anew; the new refs are among its own.
    pub rebuilt: Vec<Rebuilt>,
    /// What a backup is a copy of; `None` if it was taken into this repository.
    pub copy_of: Option<CopyOf>,
    /// Whether a backup was made from another tool's dump: the moment of its rows is not known for certain.
    pub imported: bool,
    /// The part of its source that a backup holds; `None`: all of it.
    pub part: Option<Part>,
    /// Runs that ended without effect and whose segments this one has taken over.
    pub taken: Vec<RunNo>,
    /// Where the binlog that a run archived ends.
    pub tail: Option<Map<String, Value>>,
    /// Hash of the outcome before this one.
    pub previous: ObjectHash,
    /// Hash of this outcome.
    pub hash: ObjectHash,
    /// Size of the object.
    pub size_bytes: u64,
}

impl Outcome {
    /// Whether what the source did later can be replayed after it, as far as its part goes.
    #[must_use]
    pub fn can_be_continued(&self) -> bool {
        self.part.is_none_or(|part| part.is_rest)
    }

    /// Whether it is a backup of what archivers of binlogs had left, older than what comes before it.
    #[must_use]
    pub fn is_filing(&self) -> bool {
        let is_copied = self.copy_of.as_ref().is_some_and(|copy_of| copy_of.filing);
        self.outcome_type == OutcomeType::Backup && (self.intent == Some(Intent::Prune) || is_copied)
    }

    /// When a backup was taken: a copy is as old as what it is a copy of.
    #[must_use]
    pub fn taken_at(&self) -> Timestamp {
        self.copy_of.as_ref().map_or(self.at, |copy_of| copy_of.at)
    }

    /// What a copy of this backup is a copy of. The backup is in the log `log` of `repo`.
    #[must_use]
    pub fn origin(&self, repo: &Repo, log: &LogName) -> CopyOf {
        self.copy_of.clone().unwrap_or_else(|| CopyOf {
            repository: repo.info().repository_id,
            source: log.source.to_string(),
            run: self.run.0,
            outcome: self.hash,
            at: self.at,
            filing: self.is_filing(),
        })
    }
}

/// The bytes of an outcome.
pub(crate) fn encode(
    repo: &Repo,
    log: &LogName,
    public: &PublicPart,
    head: Option<&[u8]>,
) -> Result<Vec<u8>, RepoError> {
    let place = Place { log, kind: ObjectKind::OutcomePublic, run: RunNo(public.run), part: 0 };
    let role = repo.keys().role();
    if !public.outcome_type.allowed_to(role) {
        let (act, doing) = match public.outcome_type {
            OutcomeType::Backup => (Act::Backup, "a backup"),
            OutcomeType::Hold | OutcomeType::Release => (Act::Prune, HOLDING),
            OutcomeType::Repair => (Act::Read, REPAIRING),
            _ => (Act::Prune, "dropping and pruning"),
        };
        return Err(RepoError::not_allowed(role, act, doing));
    }
    repo.require_believed(log, place.run)?;
    if let Some(head) = head {
        bounded(&place, "manifest head", head, HEAD_BYTES_MAX)?;
    }
    let json = serde_json::to_vec(public)
        .map_err(|_| RepoError::malformed(place, "its public part cannot be written as JSON"))?;
    bounded(&place, "public part", &json, PUBLIC_BYTES_MAX)?;
    encode_raw(repo, log, place.run, &json, head)
}

/// The bytes of the outcome of `run` whose public part is `json`.
pub(crate) fn encode_raw(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    json: &[u8],
    head: Option<&[u8]>,
) -> Result<Vec<u8>, RepoError> {
    let place = Place { log, kind: ObjectKind::OutcomePublic, run, part: 0 };
    let public = seal_object(repo.keys(), &place, json)?;
    let head = match head {
        Some(head) => seal_object(repo.keys(), &Place { kind: ObjectKind::ManifestHead, ..place }, head)?,
        None => Vec::new(),
    };
    Ok(signed_bytes(repo, &place, MAGIC, CONTEXT, &[&public, &head]))
}

/// Sealed parts with their lengths, followed by the signature of the key at hand over them and their place.
pub(crate) fn signed_bytes(
    repo: &Repo,
    place: &Place<'_>,
    magic: &[u8; 4],
    context: &[u8],
    parts: &[&[u8]; 2],
) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    for part in parts {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    let (signer, signature) = repo.keys().sign(&signed_message(repo, place, context, &bytes));
    bytes.extend_from_slice(&signer.0);
    bytes.extend_from_slice(&signature);
    bytes
}

/// Refuses to write what no reader would accept.
fn bounded(place: &Place<'_>, what: &'static str, bytes: &[u8], limit_bytes: u64) -> Result<(), RepoError> {
    let size_bytes = bytes.len() as u64;
    if size_bytes > limit_bytes {
        return Err(RepoError::TooLarge { object: place.to_string(), what, size_bytes, limit_bytes });
    }
    Ok(())
}

fn signed_message(repo: &Repo, place: &Place<'_>, context: &[u8], before: &[u8]) -> Vec<u8> {
    let log = place.log;
    let source = log.source.as_str();
    let mut message = context.to_vec();
    message.extend_from_slice(&repo.info().repository_id.0.0);
    // At most 64, by the rules for names.
    message.push(u8::try_from(source.len()).unwrap_or(u8::MAX));
    message.extend_from_slice(source.as_bytes());
    message.push(log.kind as u8);
    message.extend_from_slice(&place.run.0.to_le_bytes());
    if place.kind == ObjectKind::SegmentPublic {
        message.extend_from_slice(&place.part.to_le_bytes());
    }
    message.extend_from_slice(blake3::hash(before).as_bytes());
    message
}

struct Parts<'a> {
    public: &'a [u8],
    head: &'a [u8],
    before_signature: &'a [u8],
    signer: Hex<32>,
    signature: [u8; 64],
}

fn split<'a>(magic: &[u8; 4], bytes: &'a [u8]) -> Result<Parts<'a>, FormatError> {
    let mut decoder = Decoder::new(bytes);
    if decoder.array::<4>("magic")? != *magic {
        return Err(FormatError::rule("magic", "is not that of such an object"));
    }
    let mut part = |field| {
        let len = decoder.u32(field)?;
        decoder.bytes(field, usize::try_from(len).unwrap_or(usize::MAX))
    };
    let public = part("public part")?;
    let head = part("manifest head")?;
    let before_signature = bytes.get(..bytes.len() - decoder.left()).unwrap_or_default();
    let signer = Hex(decoder.array("signer")?);
    let signature = decoder.array("signature")?;
    decoder.end("outcome")?;
    Ok(Parts { public, head, before_signature, signer, signature })
}

/// Verifies the outcome of `run` and opens its public part. Whether it continues the
/// chain is for the history to check.
pub(crate) fn parse(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    bytes: &[u8],
    created_at: SystemTime,
) -> Result<Outcome, RepoError> {
    let place = Place { log, kind: ObjectKind::OutcomePublic, run, part: 0 };
    let (parts, author) = verify(repo, &place, bytes)?;
    let role = author.role;
    let json = repo.open_object(&place, parts.public, PUBLIC_BYTES_MAX)?;
    let public: PublicPart = serde_json::from_slice(&json)
        .map_err(|error| RepoError::damaged(place, Damage::unknown("a public part", &error)))?;
    require_sound(&place, role, &public, !parts.head.is_empty())?;
    let outcome_type = public.outcome_type;
    // On anybody else's word, segments would be deleted that nobody has read, let alone taken over.
    let may_take = outcome_type == OutcomeType::Backup && log.kind == Kind::Binlog && role.may(Act::Read);
    let taken = public.taken.into_iter().filter(|named| may_take && is_before(*named, run)).map(RunNo);
    Ok(Outcome {
        run,
        outcome_type,
        intent: public.intent,
        at: public.at,
        created_at,
        host: public.host,
        author,
        refs: public.refs,
        report: public.report,
        index_parts: public.index_parts,
        pack_parts: public.pack_parts,
        dropped: public.dropped.into_iter().map(RunNo).collect(),
        backups: public.backups.into_iter().map(RunNo).collect(),
        until: public.until,
        why: public.why,
        lost: public.lost,
        rebuilt: public.rebuilt,
        copy_of: public.copy_of,
        imported: public.imported,
        part: public.part.map(|id| Part { id, is_rest: public.rest }),
        taken: taken.collect(),
        tail: public.tail,
        previous: public.previous,
        hash: object_hash(bytes),
        size_bytes: bytes.len() as u64,
    })
}

/// Refuses a public part that its signer may not sign, that is of another run,
/// or whose fields contradict each other.
fn require_sound(
    place: &Place<'_>,
    role: Role,
    public: &PublicPart,
    has_head: bool,
) -> Result<(), RepoError> {
    use OutcomeType::{Backup, Hold, Prune, Release, Repair};
    let outcome_type = public.outcome_type;
    if !outcome_type.allowed_to(role) {
        return Err(RepoError::damaged(place, Damage::Role { act: outcome_type.as_str(), role }));
    }
    if public.run != place.run.0 {
        let found = format!("the outcome of run #{}", public.run);
        return Err(RepoError::damaged(place, Damage::Misplaced { found }));
    }
    let is_of = |types: &[OutcomeType]| types.contains(&outcome_type);
    let mut named = public.lost.iter().map(|lost| lost.run).chain(public.rebuilt.iter().map(|it| it.run));
    let mends = !public.lost.is_empty() || !public.rebuilt.is_empty();
    let rules = [
        (has_head == is_of(&[Backup]), "a backup has a manifest head, and nothing else has one"),
        (
            public.refs.is_some() == is_of(&[Backup, Prune, Repair]),
            "backups, prunes and repairs have refs, and nothing else has them",
        ),
        (
            (!mends || is_of(&[Repair])) && named.all(|run| is_before(run, place.run)),
            "it claims to have mended what no repair could mend",
        ),
        (
            public.backups.is_empty() != is_of(&[Hold, Release]),
            "holds and releases name backups, and nothing else does",
        ),
        (public.until.is_none() || is_of(&[Hold]), "it has an end, and is no hold"),
        (public.report.is_none() || is_of(&[Backup]), "it has a report, and is no backup"),
        (!public.imported || is_of(&[Backup]), "it was imported, and is no backup"),
        (public.part.is_none() || is_of(&[Backup]), "it is of a part, and no backup"),
        (!public.rest || public.part.is_some(), "it is of the rest of a source, and of no part"),
        (public.copy_of.is_none() || is_of(&[Backup]), "it is a copy, and no backup"),
    ];
    match rules.into_iter().find(|(holds, _)| !holds) {
        Some((_, broken)) => Err(RepoError::malformed(place, broken)),
        None => Ok(()),
    }
}

/// Whether `named`, which an outcome of `run` names, is an earlier run.
fn is_before(named: u64, run: RunNo) -> bool {
    (1..run.0).contains(&named)
}

/// Opens the manifest head in the bytes of an outcome.
pub(crate) fn open_head(repo: &Repo, log: &LogName, run: RunNo, bytes: &[u8]) -> Result<Vec<u8>, RepoError> {
    let place = Place { log, kind: ObjectKind::ManifestHead, run, part: 0 };
    let (parts, _) = verify(repo, &place, bytes)?;
    repo.open_object(&place, parts.head, HEAD_BYTES_MAX)
}

fn verify<'a>(repo: &Repo, place: &Place<'_>, bytes: &'a [u8]) -> Result<(Parts<'a>, Author), RepoError> {
    verify_as(repo, place, MAGIC, CONTEXT, bytes)
}

fn verify_as<'a>(
    repo: &Repo,
    place: &Place<'_>,
    magic: &[u8; 4],
    context: &[u8],
    bytes: &'a [u8],
) -> Result<(Parts<'a>, Author), RepoError> {
    let parts = split(magic, bytes).map_err(|error| RepoError::damaged(place, Damage::from(error)))?;
    let message = signed_message(repo, place, context, parts.before_signature);
    // The record of a check bears no run number: its signer must be believed now.
    let run = if place.kind == ObjectKind::CheckRecord { RunNo(u64::MAX) } else { place.run };
    let outcome =
        (place.kind == ObjectKind::OutcomePublic || place.kind == ObjectKind::ManifestHead).then_some(bytes);
    let author = repo.author(place.log, run, parts.signer, &message, &parts.signature, outcome)?;
    let author = author.map_err(|damage| RepoError::damaged(place, damage))?;
    Ok((parts, author))
}

/// Sees to it that whoever has signed these bytes as the outcome of `run`, listed before `looked` was made, is known
/// if that can be.
pub(crate) fn meet_signer(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    bytes: &[u8],
    looked: &Looked,
) -> Result<(), RepoError> {
    let place = Place { log, kind: ObjectKind::OutcomePublic, run, part: 0 };
    let Ok(parts) = split(MAGIC, bytes) else { return Ok(()) };
    // Who has signed nothing may be vouched for later.
    let message = signed_message(repo, &place, CONTEXT, parts.before_signature);
    match Repo::is_signature(parts.signer, &message, &parts.signature) {
        true => Ok(repo.meet(parts.signer, looked)?),
        false => Ok(()),
    }
}

/// Whose signature an outcome bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignedBy {
    /// A signer that is believed.
    Believed,
    /// A signer that is neither known to have been believed at any time, nor to be believed no longer.
    Stranger,
    /// Nobody's, or that of a key that was removed before.
    Nobody,
}

/// Who has signed these bytes as the outcome of `run`, whatever they contain.
pub(crate) fn signed_by(repo: &Repo, log: &LogName, run: RunNo, bytes: &[u8]) -> Result<SignedBy, RepoError> {
    let place = Place { log, kind: ObjectKind::OutcomePublic, run, part: 0 };
    let Ok(parts) = split(MAGIC, bytes) else { return Ok(SignedBy::Nobody) };
    let message = signed_message(repo, &place, CONTEXT, parts.before_signature);
    if !Repo::is_signature(parts.signer, &message, &parts.signature) {
        return Ok(SignedBy::Nobody);
    }
    Ok(match repo.author(log, run, parts.signer, &message, &parts.signature, Some(bytes))? {
        Ok(_) => SignedBy::Believed,
        Err(Damage::SignerRemoved { .. }) => SignedBy::Nobody,
        Err(_) => SignedBy::Stranger,
    })
}

/// Splits what [`signed_bytes`] made. Returns the two sealed parts, if the signature is
/// believed, and the signer's role.
pub(crate) fn split_signed<'a>(
    repo: &Repo,
    place: &Place<'_>,
    magic: &[u8; 4],
    context: &[u8],
    bytes: &'a [u8],
) -> Result<([&'a [u8]; 2], Role), RepoError> {
    let (parts, author) = verify_as(repo, place, magic, context, bytes)?;
    Ok(([parts.public, parts.head], author.role))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use ring::signature::{Ed25519KeyPair, KeyPair as _};

    use super::*;
    use crate::{
        Password, Protection,
        keys::KdfParams,
        log::history::History,
        store::{
            Store as _,
            faulty::{FaultyStore, Op},
            mem::MemStore,
        },
    };

    /// An outcome of `run` with a good signature of a signer whom nobody vouches for.
    fn made_up(repo: &Repo, log: &LogName, run: RunNo) -> Vec<u8> {
        let place = Place { log, kind: ObjectKind::OutcomePublic, run, part: 0 };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[0; 8]);
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&run.0.to_le_bytes());
        let key = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let signature = key.sign(&signed_message(repo, &place, CONTEXT, &bytes));
        bytes.extend_from_slice(key.public_key().as_ref());
        bytes.extend_from_slice(signature.as_ref());
        bytes
    }

    /// However many outcomes of strangers somebody puts into the store, the keys are read again once.
    #[test]
    fn made_up_outcomes_cost_one_look_at_the_keys() {
        let store = MemStore::new();
        let password = Password::new("x".to_owned()).unwrap();
        let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
        let repo = Repo::init(Arc::new(store.clone()), &protection).unwrap();
        let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Physical };
        for run in (1..=200).map(RunNo) {
            store.create_if_absent(&log.outcome(run), &made_up(&repo, &log, run)).unwrap();
        }
        let lists = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lists);
        let counting = FaultyStore::new(Arc::new(store), move |call| {
            if call.op == Op::List {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        let repo = Repo::open(Arc::new(counting), Some(&password)).unwrap();
        lists.store(0, Ordering::Relaxed);
        let mut strangers = 0;
        let is_stranger =
            |error: &RepoError| matches!(error, RepoError::Damaged { damage: Damage::Signature, .. });
        History::salvage(&repo, &log, &mut |_, error| strangers += u64::from(is_stranger(&error))).unwrap();
        let listings = lists.load(Ordering::Relaxed);
        assert_eq!(strangers, 200);
        assert!(listings < 10, "{listings} listings");
    }
}
