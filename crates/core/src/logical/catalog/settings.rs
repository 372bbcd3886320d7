//! Session settings on which computed columns depend.
//!
//! Which ones do was found by experiment on MariaDB 10.11 and 11.8 and MySQL 9.7: rows were written under
//! each setting that might matter. MariaDB refuses most dependencies on a setting in columns that it stores,
//! MySQL hardly any. Some settings that matter cannot be set while rows are loaded, because the rows would
//! not come in unchanged: `time_zone`, `NO_BACKSLASH_ESCAPES`, and the modes for odd dates. A load notices
//! their effect when it compares the computed values (`super::computed`).

use std::collections::BTreeMap;

use holdfast_formats::Flavor;

use crate::{
    logical::sql::quoted_text,
    server::{Session, SqlError},
};

/// `sql_mode` and MariaDB's `old_mode`, of which only some words matter.
const SQL_MODE: &str = "sql_mode";
const OLD_MODE: &str = "old_mode";
/// Words of `sql_mode` that matter. MariaDB has two of them as well, but lets no stored column depend on
/// them.
const SQL_MODES: [&str; 3] =
    ["NO_UNSIGNED_SUBTRACTION", "PAD_CHAR_TO_FULL_LENGTH", "TIME_TRUNCATE_FRACTIONAL"];
/// Words of `old_mode` that matter.
const OLD_MODES: [&str; 1] = ["ZERO_DATE_TIME_CAST"];

/// Settings, each with the servers' default; for modes, only the words that matter.
const BOTH: [(&str, &str); 1] = [("div_precision_increment", "4")];
const MARIADB: [(&str, &str); 3] = [("default_regex_flags", ""), ("old_passwords", "0"), (OLD_MODE, "")];
const MYSQL: [(&str, &str); 3] =
    [("lc_time_names", "en_US"), ("block_encryption_mode", "aes-128-ecb"), (SQL_MODE, "")];

/// Reads the settings that a server's sessions begin with.
pub(crate) fn read(session: &mut Session) -> Result<BTreeMap<String, String>, SqlError> {
    let mut settings = BTreeMap::new();
    let own = match session.flavor() {
        Flavor::MariaDb => MARIADB,
        Flavor::MySql => MYSQL,
    };
    for (name, _) in BOTH.into_iter().chain(own) {
        if let Some(value) = session.variable(name)? {
            settings.insert(name.to_owned(), value);
        }
    }
    Ok(settings)
}

/// The source's settings that sessions adopt to write rows, and what to report about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Names and literals, except `sql_mode`.
    pub(crate) set: Vec<(String, String)>,
    /// Words of `sql_mode`.
    pub(crate) sql_modes: String,
    /// Whether other sessions on the target begin with different settings.
    pub(crate) is_other: bool,
    /// Settings that the target lacks, or has differently for everyone who writes there later: a name and the
    /// reason.
    pub(crate) notes: Vec<(String, String)>,
}

/// The words of a mode that matter; `None` if the setting is no mode.
fn counting(name: &str, value: &str) -> Option<String> {
    let words: &[&str] = match name {
        SQL_MODE => &SQL_MODES,
        OLD_MODE => &OLD_MODES,
        _ => return None,
    };
    let has = |word: &&&str| value.split(',').any(|it| it.trim().eq_ignore_ascii_case(word));
    Some(words.iter().filter(has).copied().collect::<Vec<_>>().join(","))
}

impl Settings {
    /// Derives them from the source's, for a target whose sessions begin with `target`. Tries each in a
    /// session there.
    pub(crate) fn of(
        source: &BTreeMap<String, String>,
        target: &BTreeMap<String, String>,
        session: &mut Session,
    ) -> Result<Self, SqlError> {
        let mut settings = Self::default();
        for (name, usual) in BOTH.into_iter().chain(MARIADB).chain(MYSQL) {
            // Other settings are not ours to set, whatever a backup says.
            let Some(source) = source.get(name) else { continue };
            let wanted = counting(name, source).unwrap_or_else(|| source.clone());
            let Some(there) = target.get(name) else {
                if wanted != usual {
                    settings.say(
                        name,
                        format!("it was {wanted} on the source, and this server has no such setting"),
                    );
                }
                continue;
            };
            let own = counting(name, there).unwrap_or_else(|| there.clone());
            let value = match name {
                SQL_MODE => wanted.clone(),
                OLD_MODE => {
                    let others =
                        there.split(',').filter(|word| counting(name, word).is_none_or(|it| it.is_empty()));
                    let all: Vec<&str> =
                        others.chain([wanted.as_str()]).filter(|word| !word.is_empty()).collect();
                    all.join(",")
                }
                _ => wanted.clone(),
            };
            let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let literal = if is_number { value } else { quoted_text(&value) };
            match session.exec(&format!("SET SESSION {name} = {literal}")) {
                Ok(()) if name == SQL_MODE => settings.sql_modes.clone_from(&wanted),
                Ok(()) => settings.set.push((name.to_owned(), literal)),
                Err(error) if error.code().is_some() => {
                    settings.say(
                        name,
                        format!("it was {wanted} on the source, and cannot be set so here: {error}"),
                    );
                    continue;
                }
                Err(error) => return Err(error),
            }
            if wanted != own {
                settings.is_other = true;
                settings.say(
                    name,
                    format!(
                        "it was {} on the source and is for the load, but is {} for other sessions here",
                        shown(&wanted),
                        shown(&own)
                    ),
                );
            }
        }
        Ok(settings)
    }

    fn say(&mut self, name: &str, what: String) {
        self.notes.push((name.to_owned(), format!("computed columns depend on it: {what}")));
    }
}

fn shown(value: &str) -> &str {
    if value.is_empty() { "empty" } else { value }
}
