//! Outcomes as they are stored: a public part and, of backups, the head of the manifest.

use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CopyOf, HOLDING, Intent, LostOutcome, Outcome, OutcomeType, Part, REPAIRING, Rebuilt};
use crate::{
    error::{Damage, RepoError},
    format::{
        hash::{ObjectHash, object_hash},
        hex::Hex,
        names::{Kind, LogName, RunNo},
        place::{ObjectKind, Place},
    },
    keys::{Act, Author, Role},
    log::signed::{self, FIXED_BYTES, signed_bytes},
    repo::Repo,
    sealed::{seal_object, sealed_limit_bytes},
};

/// Bytes of a manifest head before sealing, at most: paths outside the data directory
/// and sets of GTIDs can be many.
pub const HEAD_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a public part before sealing, at most: an expire of some hundred thousand backups.
pub const PUBLIC_BYTES_MAX: u64 = 2 << 20;
/// Bytes of a whole outcome, at most.
pub const OUTCOME_BYTES_MAX: u64 =
    sealed_limit_bytes(HEAD_BYTES_MAX) + sealed_limit_bytes(PUBLIC_BYTES_MAX) + FIXED_BYTES as u64;

pub(super) const MAGIC: &[u8; 4] = b"HFO1";
pub(super) const CONTEXT: &[u8] = b"holdfast outcome 1\0";

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

/// Refuses to write what no reader would accept.
fn bounded(place: &Place<'_>, what: &'static str, bytes: &[u8], limit_bytes: u64) -> Result<(), RepoError> {
    let size_bytes = bytes.len() as u64;
    if size_bytes > limit_bytes {
        return Err(RepoError::TooLarge { object: place.to_string(), what, size_bytes, limit_bytes });
    }
    Ok(())
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

fn verify<'a>(
    repo: &Repo,
    place: &Place<'_>,
    bytes: &'a [u8],
) -> Result<(signed::Parts<'a>, Author), RepoError> {
    signed::verify(repo, place, MAGIC, CONTEXT, bytes)
}
