//! What is kept about an imported dump: what it said about itself, and what was made of it.

use holdfast_formats::dump::{About, Metadata, about::Place};
use holdfast_repo::format::manifest::Head;
use serde::{Deserialize, Serialize};

use crate::{
    head::{IMPORT, field},
    server::{facts::Identity, status::BinlogPosition},
};

/// Where an imported backup comes from. Except for counts, everything is as the dump says, which nothing
/// proves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// Name of the file or directory; `-` for standard input.
    pub from: String,
    /// `sql`, or `mydumper` for a directory.
    pub form: String,
    /// Its size in bytes, as read.
    pub bytes: u64,
    /// The tool that made it.
    pub tool: Option<String>,
    /// The version of the dumped server.
    pub server_version: Option<String>,
    /// The dumped server's host, as the tool was told.
    pub host: Option<String>,
    /// When it was complete, by the local clock of the host that made it: its zone is not known.
    pub dumped_at: Option<String>,
    /// Its position in the dumped server's binlog.
    pub position: Option<OriginPosition>,
    /// Its position in the binlog of the dumped server's primary.
    pub primary_position: Option<OriginPosition>,
    /// Whether it named several positions, as several dumps in one do; none of them is kept then.
    pub has_several_positions: bool,
    /// Whether nothing in it says that it is complete: no mark at its end, or no number of rows for a table.
    pub without_end_mark: bool,
    /// The server program that executed it.
    pub executed_by: String,
    /// Number of statements that were executed.
    pub statements: u64,
    /// The parts of it that are not in the backup.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The server of the backup before it, which stays the one whose history this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) identity_before: Option<Identity>,
}

/// A position, as a dump gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OriginPosition {
    /// Binlog file and offset.
    pub binlog: Option<BinlogPosition>,
    /// GTIDs: MariaDB's position, or MySQL's set.
    pub gtid: Option<String>,
}

impl OriginPosition {
    fn of(place: &Place) -> Option<OriginPosition> {
        let binlog = place.binlog.clone().map(|(file, offset)| BinlogPosition { file, offset });
        (!place.is_empty()).then(|| OriginPosition { binlog, gtid: place.gtids.clone() })
    }

    /// Text for people: `binlog.000001:157, GTID 0-1-5`.
    #[must_use]
    pub fn text(&self) -> String {
        let binlog = self.binlog.as_ref().map(|it| format!("{}:{}", it.file, it.offset));
        let gtid = self.gtid.as_ref().map(|gtid| format!("GTID {gtid}"));
        [binlog, gtid].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Origin {
    /// Where an imported backup comes from; `None` for others.
    #[must_use]
    pub fn of(head: &Head) -> Option<Self> {
        field(head.more.get(IMPORT)?)
    }

    /// Keeps what a dump says about itself.
    pub(crate) fn hear(&mut self, about: &About) {
        self.tool.clone_from(&about.tool);
        self.server_version.clone_from(&about.server_version);
        self.host.clone_from(&about.host);
        self.dumped_at.clone_from(&about.completed_at);
        self.has_several_positions = about.has_several_places;
        if !about.has_several_places {
            self.position = OriginPosition::of(&about.place);
            self.primary_position = OriginPosition::of(&about.primary_place);
        }
    }

    /// Keeps what the metadata of a directory says.
    pub(crate) fn of_directory(&mut self, metadata: &Metadata) {
        self.dumped_at.clone_from(&metadata.finished_at);
        self.position = OriginPosition::of(&metadata.place);
        self.primary_position = OriginPosition::of(&metadata.primary_place);
    }

    /// What is known about when and where it was dumped, for people.
    #[must_use]
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let unsaid = || "it does not say".to_owned();
        let mut facts = vec![
            ("imported from", self.from.clone()),
            ("made by", self.tool.clone().unwrap_or_else(unsaid)),
            (
                "dumped server",
                match (&self.server_version, &self.host) {
                    (Some(version), Some(host)) => format!("{version} at {host}"),
                    (Some(version), None) => version.clone(),
                    _ => unsaid(),
                },
            ),
            (
                "dumped at",
                self.dumped_at
                    .as_ref()
                    .map_or_else(unsaid, |at| format!("{at}, in the time of the host that dumped")),
            ),
            (
                "dump's position",
                match (&self.position, self.has_several_positions) {
                    (_, true) => "unknown: it is several dumps of several positions".to_owned(),
                    (Some(position), false) => position.text(),
                    (None, false) => unsaid(),
                },
            ),
        ];
        if let Some(position) = &self.primary_position {
            facts.push(("primary's position", position.text()));
        }
        if !self.left_out.is_empty() {
            facts.push(("left out", self.left_out.join("; ")));
        }
        facts
    }
}
