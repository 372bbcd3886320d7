//! What is kept of a dump that was imported: what it said of itself, and what was made of it.

use holdfast_formats::dump::{About, Metadata, about::Place};
use holdfast_repo::format::manifest::Head;
use serde::{Deserialize, Serialize};

use crate::{
    head::{IMPORT, field},
    physical::BinlogPosition,
    server::facts::Identity,
};

/// Where an imported backup comes from. All but what was counted is as the dump says, which nothing proves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// Name of the file or directory; `-` for standard input.
    pub from: String,
    /// `sql`, or `mydumper` of a directory.
    pub form: String,
    /// Its bytes, as they were read.
    pub bytes: u64,
    /// What made it.
    pub tool: Option<String>,
    /// The server that it is of.
    pub server_version: Option<String>,
    /// That server's host, as the tool was told.
    pub host: Option<String>,
    /// When it was complete, by the clock on the wall of the host that made it: its zone is not known.
    pub dumped_at: Option<String>,
    /// Where in that server's binlog it is.
    pub position: Option<OriginPosition>,
    /// Where in the binlog of that server's primary it is.
    pub primary_position: Option<OriginPosition>,
    /// Whether it was said to be several dumps of several positions, none of which is kept then.
    pub has_several_positions: bool,
    /// Whether its end was not looked for.
    pub without_end_mark: bool,
    /// The server program that executed it.
    pub executed_by: String,
    /// Statements that were executed.
    pub statements: u64,
    /// What of it is not in the backup.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Of which server the backup before it was: that is still the one whose history this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) identity_before: Option<Identity>,
}

/// A position, as a dump says it.
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

    /// For people: `binlog.000001:157, GTID 0-1-5`.
    #[must_use]
    pub fn text(&self) -> String {
        let binlog = self.binlog.as_ref().map(|it| format!("{}:{}", it.file, it.offset));
        let gtid = self.gtid.as_ref().map(|gtid| format!("GTID {gtid}"));
        [binlog, gtid].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Origin {
    /// Where an imported backup comes from; `None` of others.
    #[must_use]
    pub fn of(head: &Head) -> Option<Self> {
        field(head.more.get(IMPORT)?)
    }

    /// Keeps what a dump says of itself.
    pub(super) fn hear(&mut self, about: &About) {
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
    pub(super) fn of_directory(&mut self, metadata: &Metadata) {
        self.dumped_at.clone_from(&metadata.finished_at);
        self.position = OriginPosition::of(&metadata.place);
        self.primary_position = OriginPosition::of(&metadata.primary_place);
    }

    /// What is known of when and where, for people.
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
