//! What a dump says about itself in comments: which tool made it from which server, where in the binlog, and
//! that it is complete.
//!
//! All of this is text that anyone could have written into the file. It is stored and shown, and decides
//! which server reads the dump.

use super::tokens::{Token, tokens};
use crate::{Flavor, sql::Modes};

/// The longest text kept of any comment.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// A place in the binlog of the dumped server, as far as the dump names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// File and offset.
    pub binlog: Option<(String, u64)>,
    /// GTIDs: MariaDB's position, or MySQL's set.
    pub gtids: Option<String>,
}

impl Place {
    /// Reads the place to which a statement would set a replica or a server; empty if it names none.
    #[must_use]
    pub fn of_statement(statement: &[u8]) -> Place {
        let modes = Modes::default();
        let mut place = Place::default();
        let (mut file, mut offset) = (None, None);
        let all: Vec<Token<'_>> = tokens(statement, modes).take(256).collect();
        for (at, token) in all.iter().enumerate() {
            let is_set = all.get(at + 1) == Some(&Token::Symbol(b'='));
            let Some(value) = all.get(at + 2).filter(|_| is_set) else { continue };
            if token.is("MASTER_LOG_FILE") || token.is("SOURCE_LOG_FILE") {
                file = value.text(modes);
            } else if token.is("MASTER_LOG_POS") || token.is("SOURCE_LOG_POS") {
                offset = value.name().and_then(|digits| digits.parse().ok());
            } else if token.is("GTID_SLAVE_POS") || token.is("GTID_PURGED") {
                // MySQL puts a plus sign in front, in a string of its own or in the same string.
                let texts = all[at + 2..].iter().map_while(|token| token.text(modes));
                let gtids: String = texts.collect::<String>().split_whitespace().collect();
                let gtids = gtids.trim_start_matches('+').to_owned();
                place.gtids = Some(gtids).filter(|gtids| !gtids.is_empty());
            }
        }
        place.binlog = file.filter(|file| !file.is_empty()).zip(offset);
        place
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Place::default()
    }
}

/// What a dump says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The tool that made it, with its version.
    pub tool: Option<String>,
    /// The family of the server.
    pub flavor: Option<Flavor>,
    /// The server's version.
    pub server_version: Option<String>,
    /// The server's host, as given to the tool.
    pub host: Option<String>,
    /// The first database requested.
    pub database: Option<String>,
    /// The place in the binlog of the server.
    pub place: Place,
    /// The place in the binlog of the server that it replicates from.
    pub primary_place: Place,
    /// Whether it names several places: several dumps in one file.
    pub has_several_places: bool,
    /// Whether it says that it is complete.
    pub is_complete: bool,
    /// When it ended, in the local time of the host that made it.
    pub completed_at: Option<String>,
    /// Whether the places that follow are the primary's.
    is_of_primary: bool,
}

impl About {
    /// Reads a comment.
    pub fn hear(&mut self, comment: &[u8]) {
        let text = String::from_utf8_lossy(comment.get(..TEXT_BYTES_MAX).unwrap_or(comment));
        let inner = text.strip_prefix("/*").map_or(&*text, |inner| inner.strip_suffix("*/").unwrap_or(inner));
        let said = inner.trim_start_matches(['-', '#']).trim();
        if let Some(rest) = said.strip_prefix("Dump completed") {
            self.is_complete = true;
            let at = rest.strip_prefix(" on ").map(|at| at.split_whitespace().collect::<Vec<_>>().join(" "));
            self.completed_at = at.filter(|at| !at.is_empty());
        } else if let Some((dump, version)) = said.split_once(" dump ").filter(|(by, _)| is_tool(by)) {
            self.is_of_primary = false;
            // Another dump begins, which has an end of its own.
            self.is_complete = false;
            self.completed_at = None;
            let is_mariadb = said.contains("MariaDB");
            self.tool.get_or_insert_with(|| format!("{dump} dump {version}"));
            self.flavor.get_or_insert(if is_mariadb { Flavor::MariaDb } else { Flavor::MySql });
        } else if let Some(version) = said.strip_prefix("Server version") {
            let version = version.trim();
            // MySQL's tools can dump MariaDB, and the reverse.
            self.flavor = Some(flavor_of(version));
            self.server_version.get_or_insert_with(|| version.to_owned());
        } else if let Some(rest) = said.strip_prefix("Host:") {
            let (host, database) = rest.split_once("Database:").unwrap_or((rest, ""));
            let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
            self.host = self.host.take().or(some(host));
            self.database = self.database.take().or(some(database));
        } else if said.starts_with("Position to start replication") {
            self.is_of_primary =
                said.contains("the master of this slave") || said.contains("the source of this replica");
        } else if ["CHANGE ", "SET "].iter().any(|word| said.starts_with(word)) {
            self.note_place(&Place::of_statement(said.as_bytes()));
        }
    }

    /// Notes a place that a statement or a comment names.
    pub fn note_place(&mut self, place: &Place) {
        let known = if self.is_of_primary { &mut self.primary_place } else { &mut self.place };
        let mut is_other = false;
        if let Some(binlog) = &place.binlog {
            is_other |= known.binlog.get_or_insert_with(|| binlog.clone()) != binlog;
        }
        if let Some(gtids) = &place.gtids {
            is_other |= known.gtids.get_or_insert_with(|| gtids.clone()) != gtids;
        }
        self.has_several_places |= is_other;
    }

    /// Notes that a statement follows, so a dump that said it was complete is not.
    pub fn go_on(&mut self) {
        self.is_complete = false;
    }
}

fn is_tool(name: &str) -> bool {
    matches!(name, "MySQL" | "MariaDB")
}

/// The family that a version belongs to.
fn flavor_of(version: &str) -> Flavor {
    if version.contains("MariaDB") { Flavor::MariaDb } else { Flavor::MySql }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(comments: &[&str]) -> About {
        let mut about = About::default();
        comments.iter().for_each(|comment| about.hear(comment.as_bytes()));
        about
    }

    /// Beginnings and ends as the tools write them.
    #[test]
    fn heads() {
        let mariadb = about(&[
            "-- MariaDB dump 10.19  Distrib 10.11.19-MariaDB, for debian-linux-gnu (x86_64)",
            "--",
            "-- Host: localhost    Database: shop",
            "-- Server version\t10.11.19-MariaDB-0+deb12u1-log",
            "-- CHANGE MASTER TO MASTER_USE_GTID=slave_pos;",
            "-- CHANGE MASTER TO MASTER_LOG_FILE='binlog.000001', MASTER_LOG_POS=384782;",
            "-- SET GLOBAL gtid_slave_pos='0-1-137';",
            "-- Dump completed on 2026-11-22  2:28:00",
        ]);
        assert_eq!(
            mariadb.tool.as_deref(),
            Some("MariaDB dump 10.19  Distrib 10.11.19-MariaDB, for debian-linux-gnu (x86_64)")
        );
        assert_eq!(mariadb.flavor, Some(Flavor::MariaDb));
        assert_eq!(mariadb.server_version.as_deref(), Some("10.11.19-MariaDB-0+deb12u1-log"));
        assert_eq!((mariadb.host.as_deref(), mariadb.database.as_deref()), (Some("localhost"), Some("shop")));
        let place =
            Place { binlog: Some(("binlog.000001".to_owned(), 384_782)), gtids: Some("0-1-137".to_owned()) };
        assert_eq!(mariadb.place, place);
        assert!(mariadb.is_complete && !mariadb.has_several_places);
        assert_eq!(mariadb.completed_at.as_deref(), Some("2026-11-22 2:28:00"));

        let mysql = about(&[
            "-- MySQL dump 10.13  Distrib 9.7.4, for Linux (x86_64)",
            "-- Server version\t9.7.4-2",
            "/* SET @@GLOBAL.GTID_PURGED='+683d2f02-e576-11f1-b160-02fc00000001:1-119,\n783d2f02-e576-11f1-b160-02fc00000001:1';*/",
            "-- CHANGE REPLICATION SOURCE TO SOURCE_LOG_FILE='binlog.000002', SOURCE_LOG_POS=157;",
            "-- Dump completed",
        ]);
        assert_eq!(mysql.flavor, Some(Flavor::MySql));
        assert_eq!(mysql.place.binlog, Some(("binlog.000002".to_owned(), 157)));
        let gtids = "683d2f02-e576-11f1-b160-02fc00000001:1-119,783d2f02-e576-11f1-b160-02fc00000001:1";
        assert_eq!(mysql.place.gtids.as_deref(), Some(gtids));
        assert!(mysql.is_complete && mysql.completed_at.is_none());
        let parted = Place::of_statement(b"SET @@GLOBAL.GTID_PURGED= '+' 'a:1-5'");
        assert_eq!(parted.gtids.as_deref(), Some("a:1-5"));
    }

    /// Two dumps in one file name two places; the place that a replica's dump gives for its primary is the
    /// primary's.
    #[test]
    fn places() {
        let mut about =
            about(&["-- CHANGE MASTER TO MASTER_LOG_FILE='a', MASTER_LOG_POS=4;", "-- Dump completed"]);
        about.go_on();
        assert!(!about.is_complete);
        about.hear(b"-- Dump completed");
        about.hear(b"-- MariaDB dump 10.19  Distrib 10.11.19-MariaDB, for debian-linux-gnu (x86_64)");
        assert!(!about.is_complete);
        about.hear(b"-- CHANGE MASTER TO MASTER_LOG_FILE='a', MASTER_LOG_POS=5;");
        assert!(about.has_several_places);
        let of_replica = super::tests::about(&[
            "-- Position to start replication or point-in-time recovery from (the master of this slave)",
            "-- CHANGE MASTER TO MASTER_LOG_FILE='a', MASTER_LOG_POS=4;",
        ]);
        assert!(of_replica.place.is_empty() && !of_replica.primary_place.is_empty());
    }
}
