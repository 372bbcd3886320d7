//! The head of a manifest: what one backup is, as JSON in its outcome
//! (`docs/reference/repository.md` section 9).
//!
//! Together with the item table that its roots lead to, it is a promise: everything needed to lay out the
//! data directory again is here, and nothing is missing.

use holdfast_pipe::PageHash;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::format::{
    hex::Hex,
    names::{ChunkRef, PackId, RunNo},
};

/// The only schema so far.
pub const HEAD_SCHEMA: u32 = 1;

/// Flag of a backup with pages that were found damaged on the source and stored as they were.
pub const DAMAGED_PAGES: &str = "damaged-pages";

/// What one backup is. Fields this version does not know are kept in `more`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`HEAD_SCHEMA`].
    pub schema: u32,
    /// The run that made it.
    pub run: u64,
    /// The source.
    pub source: String,
    /// `physical`, `logical` or `binlog`.
    pub kind: String,
    /// How it was taken.
    pub method: String,
    /// By the clock of the host that ran it.
    pub started_at: Timestamp,
    /// By the clock of the host that ran it.
    pub finished_at: Timestamp,
    /// Tags that the user gave it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The server that it is a backup of: flavor, version, identity, format options, what prepare must know.
    /// The repository does not interpret this.
    pub server: Map<String, Value>,
    /// The redo that belongs to the pages; see `docs/guide/hot-backup.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redo: Option<Map<String, Value>>,
    /// Its position in the replication log, with its precision; see `docs/guide/hot-backup.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Map<String, Value>>,
    /// Sizes.
    pub totals: Totals,
    /// What users must be told whenever the backup is listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// Chunks of the item table's roots, in order.
    pub roots: Vec<RootPlace>,
    /// The backup whose pages it could reuse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Sizes of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Number of items.
    pub items: u64,
    /// Files among them.
    pub files: u64,
    /// Bytes of all files, or of the rows of all tables and of all definitions.
    pub bytes: u64,
    /// Tables whose rows the backup has.
    #[serde(skip_serializing_if = "is_zero")]
    pub tables: u64,
    /// Their rows.
    #[serde(skip_serializing_if = "is_zero")]
    pub rows: u64,
    /// Pages of all files together, without zeros and holes.
    pub pages: u64,
    /// Plain bytes of pages that were not in the base.
    pub bytes_new: u64,
    /// Plain bytes of pages that the base had.
    pub bytes_reused: u64,
    /// Plain bytes of pages that an adopted run had.
    pub bytes_adopted: u64,
    /// Plain bytes of unchanged pages that were stored again to free mostly dead chunks.
    pub bytes_rewritten: u64,
    /// Bytes of all packs of the run.
    pub bytes_stored: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Packs of the run.
    pub packs: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Place of a chunk of roots, in JSON. Through the hash, the head, which is signed, vouches for
/// everything that the roots lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootPlace {
    /// Run of its pack.
    pub run: u64,
    /// Part of its pack.
    pub part: u32,
    /// Position in the pack.
    pub ordinal: u32,
    /// Hash of its plain bytes.
    pub hash: Hex<16>,
}

impl RootPlace {
    /// From a chunk and the hash of its plain bytes.
    #[must_use]
    pub fn new(chunk: ChunkRef, hash: PageHash) -> Self {
        let ChunkRef { pack, ordinal } = chunk;
        Self { run: pack.run.0, part: pack.part, ordinal, hash: Hex(hash.0) }
    }

    /// The chunk.
    #[must_use]
    pub fn chunk(self) -> ChunkRef {
        ChunkRef { pack: PackId { run: RunNo(self.run), part: self.part }, ordinal: self.ordinal }
    }

    /// Hash of its plain bytes.
    #[must_use]
    pub fn page_hash(self) -> PageHash {
        PageHash(self.hash.0)
    }
}

impl Head {
    /// Reads the stored form. A schema of later versions is refused.
    pub fn decode(json: &[u8]) -> Result<Self, serde_json::Error> {
        let head: Self = serde_json::from_slice(json)?;
        if head.schema != HEAD_SCHEMA {
            let what = format!("manifest schema {}, known is {HEAD_SCHEMA}", head.schema);
            return Err(serde::de::Error::custom(what));
        }
        Ok(head)
    }

    /// The stored form.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_with_fields_of_later_versions() {
        let json = r#"{"schema":1,"run":7,"source":"db1","kind":"physical","method":"physical",
            "started_at":"2026-11-21T01:00:00Z","finished_at":"2026-11-21T01:10:00Z",
            "server":{"flavor":"mysql","version":"8.4.6","sockets":3},
            "position":{"precision":"at_restore","gtid":"a:1-5"},
            "totals":{"items":1,"unheard_of":2},"roots":[{"run":7,"part":0,"ordinal":3,"hash":"000102030405060708090a0b0c0d0e0f"}],"tomorrow":[1]}"#;
        let head = Head::decode(json.as_bytes()).unwrap();
        assert_eq!(head.roots[0].chunk().ordinal, 3);
        assert_eq!(head.roots[0].page_hash().0[15], 15);
        assert_eq!(head.more["tomorrow"], serde_json::json!([1]));
        assert_eq!(head.server["sockets"], 3);
        assert_eq!(Head::decode(&head.encode().unwrap()).unwrap(), head);
        assert!(Head::decode(json.replacen("\"schema\":1", "\"schema\":2", 1).as_bytes()).is_err());
    }
}
