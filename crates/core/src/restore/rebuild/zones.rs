//! Fills the server's tables of time zones, which are empty in a new data directory. Events and replayed
//! statements name zones: on MySQL the beginning of any transaction of a session that has set one.
//!
//! Layout: `time_zone_name` gives a zone's number; `time_zone_transition_type` its offsets from UTC, of which
//! the first that is no summer time holds before the first transition; `time_zone_transition` the seconds
//! since 1970 from which an offset holds (MySQL 9.7 manual, 7.1.15; MariaDB: `mysql.time_zone Table`).

use jiff::{Timestamp, tz};

use crate::{
    error::{Context, Result},
    logical::quoted_text,
    server::Session,
};

/// The seconds that servers describe: those of 32 bits. They take few hundred transitions of a zone.
const FIRST_S: i64 = i32::MIN as i64;
const LAST_S: i64 = i32::MAX as i64;
const ROWS_AT_ONCE: usize = 2_000;
/// The longest abbreviation.
const ABBREVIATION_MAX: usize = 8;

/// From when on an offset holds, and the offset.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offset {
    seconds: i32,
    is_summer: bool,
    abbreviation: String,
}

/// A zone, as the tables describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Zone {
    offsets: Vec<Offset>,
    /// Seconds since 1970, and the position of the offset that holds from then on.
    transitions: Vec<(i64, usize)>,
}

impl Zone {
    fn of(zone: &tz::TimeZone) -> Result<Zone> {
        let first = Timestamp::from_second(FIRST_S).context("find the first moment of a time zone")?;
        let info = zone.to_offset_info(first);
        let mut described = Zone::default();
        described.number(info.offset(), info.dst(), info.abbreviation());
        for transition in zone.following(first) {
            let at = transition.timestamp().as_second();
            if at > LAST_S {
                break;
            }
            let number = described.number(transition.offset(), transition.dst(), transition.abbreviation());
            described.transitions.push((at, number));
        }
        Ok(described)
    }

    /// The position of an offset, which is added if it is not there.
    fn number(&mut self, offset: tz::Offset, dst: tz::Dst, abbreviation: &str) -> usize {
        let abbreviation = abbreviation.chars().take(ABBREVIATION_MAX).collect();
        let offset = Offset { seconds: offset.seconds(), is_summer: dst.is_dst(), abbreviation };
        self.offsets.iter().position(|other| *other == offset).unwrap_or_else(|| {
            self.offsets.push(offset);
            self.offsets.len() - 1
        })
    }
}

/// Describes all zones that this host knows.
pub(super) fn fill(session: &mut Session) -> Result<()> {
    let mut zones = Rows::new("time_zone (Time_zone_id, Use_leap_seconds)");
    let mut names = Rows::new("time_zone_name (Name, Time_zone_id)");
    let mut offsets = Rows::new(
        "time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation)",
    );
    let mut transitions =
        Rows::new("time_zone_transition (Time_zone_id, Transition_time, Transition_type_id)");
    session.exec("START TRANSACTION")?;
    let mut number = 0;
    for name in tz::db().available() {
        // What is listed and cannot be read is no zone.
        let Ok(zone) = tz::db().get(name.as_str()) else { continue };
        let zone = Zone::of(&zone)?;
        number += 1;
        zones.add(session, format!("({number}, 'N')"))?;
        names.add(session, format!("({}, {number})", quoted_text(name.as_str())))?;
        for (at, Offset { seconds, is_summer, abbreviation }) in zone.offsets.iter().enumerate() {
            let (is_summer, abbreviation) = (u8::from(*is_summer), quoted_text(abbreviation));
            offsets.add(session, format!("({number}, {at}, {seconds}, {is_summer}, {abbreviation})"))?;
        }
        for (at, offset) in &zone.transitions {
            transitions.add(session, format!("({number}, {at}, {offset})"))?;
        }
    }
    for rows in [&mut zones, &mut names, &mut offsets, &mut transitions] {
        rows.flush(session)?;
    }
    session.exec("COMMIT")?;
    Ok(())
}

/// Rows on their way into a table.
struct Rows {
    into: &'static str,
    values: Vec<String>,
}

impl Rows {
    fn new(into: &'static str) -> Self {
        Self { into, values: Vec::new() }
    }

    fn add(&mut self, session: &mut Session, values: String) -> Result<()> {
        self.values.push(values);
        if self.values.len() >= ROWS_AT_ONCE { self.flush(session) } else { Ok(()) }
    }

    fn flush(&mut self, session: &mut Session) -> Result<()> {
        if !self.values.is_empty() {
            session.exec(&format!("INSERT INTO mysql.{} VALUES {}", self.into, self.values.join(", ")))?;
            self.values.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Summer time ends at one o'clock UTC on the last Sunday in October, in Berlin.
    #[test]
    fn a_zone_with_summer_time() {
        let zone = Zone::of(&tz::TimeZone::get("Europe/Berlin").unwrap()).unwrap();
        let at = "2026-10-25T01:00:00Z".parse::<Timestamp>().unwrap().as_second();
        let (_, winter) = zone.transitions.iter().find(|(from, _)| *from == at).unwrap();
        let winter = &zone.offsets[*winter];
        assert_eq!((winter.seconds, winter.is_summer, &*winter.abbreviation), (3600, false, "CET"));
        assert!(!zone.offsets[0].is_summer);
        assert!((100..370).contains(&zone.transitions.len()), "{}", zone.transitions.len());
        assert!(zone.transitions.is_sorted());
    }

    #[test]
    fn a_zone_without_transitions() {
        let zone = Zone::of(&tz::TimeZone::UTC).unwrap();
        assert_eq!((zone.offsets.len(), zone.transitions.len()), (1, 0));
    }
}
