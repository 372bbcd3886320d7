//! What a dump has set in its session, as far as it decides what a statement says (quotes) or what values
//! mean (character set, time zone). Nothing that a dump may set reaches beyond its session, or hides
//! warnings.

use std::collections::HashMap;

use holdfast_formats::dump::{Modes, Token, about::Place, tokens};

use super::verdict::{Refusal, Verdict};

/// Most tokens of a `SET`.
const SET_TOKENS_MAX: usize = 4_096;
/// Most variables of its own that a dump sets, and the longest name that servers take for one.
const VARIABLES_MAX: usize = 1_000;
const NAME_BYTES_MAX: usize = 64 * 4;
/// The longest value that is kept: twice as long as all modes of `sql_mode`. No longer one names a mode, a
/// zone or a character set.
const HELD_BYTES_MAX: usize = 2_048;
/// Character sets of clients in which a backslash or a quote may be part of a character.
const AMBIGUOUS: [&str; 5] = ["big5", "cp932", "gb18030", "gbk", "sjis"];
/// Variables that dumps set in their session. None of them reaches beyond it, or hides warnings.
const SETTABLE: [&str; 36] = [
    "autocommit",
    "bulk_insert_buffer_size",
    "character_set_client",
    "character_set_connection",
    "character_set_results",
    "check_constraint_checks",
    "collation_connection",
    "default_storage_engine",
    "div_precision_increment",
    "explicit_defaults_for_timestamp",
    "foreign_key_checks",
    "group_concat_max_len",
    "information_schema_stats_expiry",
    "innodb_strict_mode",
    "lock_wait_timeout",
    "max_execution_time",
    "max_statement_time",
    "myisam_sort_buffer_size",
    "net_read_timeout",
    "net_write_timeout",
    "note_verbosity",
    "old_mode",
    "session_track_gtids",
    "sort_buffer_size",
    "sql_generate_invisible_primary_key",
    "sql_mode",
    "sql_notes",
    "sql_quote_show_create",
    "sql_require_primary_key",
    "system_versioning_alter_history",
    "system_versioning_insert_history",
    "time_zone",
    "transaction_isolation",
    "tx_isolation",
    "unique_checks",
    "wait_timeout",
];

/// Prefix of variables by which a fork's dumps ask their server about an engine of its own.
pub(super) const ROCKSDB: &[u8] = b"@rocksdb_";

/// What a dump's variable may hold, as far as it matters.
#[derive(Clone, Debug)]
enum Held {
    Mode(String),
    /// A time zone; whether it is known.
    Zone(bool),
    /// A character set that was in use, and so was judged; whether it is known.
    Charset(bool),
    Text(String),
}

/// The session of a dump.
pub(super) struct Settings {
    sql_mode: String,
    variables: HashMap<String, Held>,
    /// Whether the character set of the text is known.
    pub(super) has_charset: bool,
    /// Whether the zone of time stamps is known.
    pub(super) has_zone: bool,
    /// What the user has given once and for all.
    charset_given: bool,
    zone_given: bool,
}

impl Settings {
    /// A session in which nothing was set yet. The user may have given a character set or time zone that the
    /// dump's text does not.
    pub(super) fn new(charset_given: bool, zone_given: bool) -> Settings {
        Settings {
            sql_mode: String::new(),
            variables: HashMap::new(),
            has_charset: charset_given,
            has_zone: zone_given,
            charset_given,
            zone_given,
        }
    }

    /// Begins another session.
    pub(super) fn begin(&mut self) {
        *self = Settings::new(self.charset_given, self.zone_given);
    }

    /// What quotes mean in the next statement.
    pub(super) fn modes(&self) -> Modes {
        Modes::of(&self.sql_mode)
    }

    /// Judges and applies a `SET`.
    pub(super) fn set(&mut self, statement: &[u8]) -> Result<Verdict, Refusal> {
        let modes = self.modes();
        let all: Vec<Token<'_>> = tokens(statement, modes).skip(1).take(SET_TOKENS_MAX + 1).collect();
        if all.len() > SET_TOKENS_MAX {
            return Err(Refusal::new("a SET that is longer than dumps have"));
        }
        let first = |word: &str| all.first().is_some_and(|token| token.is(word));
        if first("PASSWORD")
            || first("ROLE")
            || (first("DEFAULT") && all.get(1).is_some_and(|it| it.is("ROLE")))
        {
            return Ok(Verdict::LeaveOut("accounts and grants"));
        }
        if all.starts_with(&[Token::Symbol(b'@')]) && holds(statement, ROCKSDB) {
            return Ok(Verdict::Skip);
        }
        let is_transaction = |at: usize| all.get(at).is_some_and(|token| token.is("TRANSACTION"));
        if is_transaction(0) || (first("SESSION") && is_transaction(1)) {
            return Ok(Verdict::Execute);
        }
        let mut is_needed = false;
        let mut place = None;
        for assignment in all.split(|token| *token == Token::Symbol(b',')) {
            match self.assign(assignment)? {
                Assigned::Set => is_needed = true,
                Assigned::Nothing => {}
                Assigned::Place => place = Some(Place::of_statement(statement)),
            }
        }
        match (is_needed, place) {
            (false, Some(place)) => Ok(Verdict::Place(place)),
            (true, Some(_)) => Err(Refusal::new("it sets a position together with something else")),
            (true, None) => Ok(Verdict::Execute),
            (false, None) => Ok(Verdict::Skip),
        }
    }

    /// Judges and applies one assignment of a `SET`.
    fn assign(&mut self, assignment: &[Token<'_>]) -> Result<Assigned, Refusal> {
        let is_word = |at: usize, word: &str| assignment.get(at).is_some_and(|token| token.is(word));
        let charset_at = if is_word(0, "NAMES") || is_word(0, "CHARSET") {
            Some(1)
        } else {
            (is_word(0, "CHARACTER") && is_word(1, "SET")).then_some(2)
        };
        if let Some(at) = charset_at {
            let name = assignment
                .get(at)
                .and_then(|token| token.name().map(Into::into).or_else(|| token.text(self.modes())));
            let name: String = name.ok_or_else(|| Refusal::unclear("SET NAMES"))?;
            refuse_ambiguous(&name)?;
            self.has_charset = true;
            return Ok(Assigned::Set);
        }
        let target = Target::read(assignment).ok_or_else(|| Refusal::unclear("SET"))?;
        let value = &assignment[target.length..];
        if value.is_empty() || value.iter().any(|token| matches!(token, Token::Symbol(b'(' | b')'))) {
            return Err(Refusal::new(format!(
                "it sets {} to something other than a plain value",
                target.name
            )));
        }
        let value = self.value(value);
        if let Some(Held::Text(text)) = &value {
            refuse_ambiguous(text)?;
        }
        // Servers accept numbers for names, too.
        let is_name = |text: &str| text.chars().next().is_none_or(|first| first.is_ascii_alphabetic());
        if target.is_user {
            self.hold(target.name, value)?;
            return Ok(Assigned::Set);
        }
        if target.is_global {
            return match target.name.as_str() {
                "gtid_purged" | "gtid_slave_pos" => Ok(Assigned::Place),
                // By mysqldump, so that the statistics it dumps stay. They are the server's own.
                "innodb_stats_auto_recalc" => Ok(Assigned::Nothing),
                name => Err(Refusal::new(format!("it sets {name} for the whole server"))),
            };
        }
        match (target.name.as_str(), value) {
            // There is no binlog.
            ("sql_log_bin", _) => return Ok(Assigned::Nothing),
            ("sql_mode", Some(Held::Mode(mode))) => self.sql_mode = mode,
            ("sql_mode", Some(Held::Text(mode))) if mode.split(',').all(|mode| is_name(mode.trim())) => {
                self.sql_mode = mode;
            }
            ("sql_mode", _) => return Err(Refusal::new("it sets sql_mode to something that was never set")),
            ("character_set_client", Some(Held::Charset(is_said))) => self.has_charset = is_said,
            ("character_set_client", Some(Held::Text(name))) if is_name(&name) => self.has_charset = true,
            ("character_set_client", _) => {
                return Err(Refusal::new("it sets character_set_client to something that was never set"));
            }
            ("time_zone", Some(Held::Zone(is_said))) => self.has_zone = is_said || self.zone_given,
            ("time_zone", Some(Held::Text(zone))) => {
                self.has_zone = !zone.eq_ignore_ascii_case("SYSTEM") || self.zone_given;
            }
            ("time_zone", _) => {
                return Err(Refusal::new("it sets time_zone to something that was never set"));
            }
            (name, _) if SETTABLE.contains(&name) => {}
            (name, _) => return Err(Refusal::new(format!("it sets {name}, which dumps do not"))),
        }
        Ok(Assigned::Set)
    }

    /// Keeps what a variable holds, if that can matter.
    fn hold(&mut self, name: String, value: Option<Held>) -> Result<(), Refusal> {
        let is_short = |held: &Held| match held {
            Held::Text(text) | Held::Mode(text) => text.len() <= HELD_BYTES_MAX,
            Held::Zone(_) | Held::Charset(_) => true,
        };
        let Some(value) = value.filter(is_short) else {
            self.variables.remove(&name);
            return Ok(());
        };
        if name.len() > NAME_BYTES_MAX {
            return Err(Refusal::new("it sets a variable with a longer name than servers take"));
        }
        if self.variables.len() == VARIABLES_MAX && !self.variables.contains_key(&name) {
            return Err(Refusal::new("it sets more variables than dumps do"));
        }
        self.variables.insert(name, value);
        Ok(())
    }

    /// What a value means, as far as it matters.
    fn value(&self, value: &[Token<'_>]) -> Option<Held> {
        let modes = self.modes();
        match value {
            [Token::Symbol(b'@'), Token::Symbol(b'@'), rest @ ..] => {
                let name = rest.last().and_then(Token::name)?.to_ascii_lowercase();
                match name.as_str() {
                    "sql_mode" => Some(Held::Mode(self.sql_mode.clone())),
                    "time_zone" => Some(Held::Zone(self.has_zone)),
                    "character_set_client" => Some(Held::Charset(self.has_charset)),
                    _ => None,
                }
            }
            [Token::Symbol(b'@'), name] => {
                let name = name.name().map(Into::into).or_else(|| name.text(modes));
                self.variables.get(&name.unwrap_or_default().to_lowercase()).cloned()
            }
            [Token::Word(word)] => Some(Held::Text(String::from_utf8_lossy(word).into_owned())),
            texts => {
                let texts: Option<Vec<String>> = texts.iter().map(|token| token.text(modes)).collect();
                texts.map(|texts| Held::Text(texts.concat()))
            }
        }
    }
}

enum Assigned {
    /// A variable of the session.
    Set,
    /// Something without meaning here.
    Nothing,
    /// A position.
    Place,
}

/// The target of an assignment.
struct Target {
    name: String,
    /// Whether it is one of the dump's own variables.
    is_user: bool,
    is_global: bool,
    /// Number of tokens up to and including the assignment sign.
    length: usize,
}

impl Target {
    fn read(assignment: &[Token<'_>]) -> Option<Target> {
        const AT: Token<'_> = Token::Symbol(b'@');
        let scope = |token: Option<&Token<'_>>| {
            let known = [
                ("GLOBAL", true),
                ("PERSIST", true),
                ("PERSIST_ONLY", true),
                ("SESSION", false),
                ("LOCAL", false),
            ];
            known.into_iter().find(|(word, _)| token.is_some_and(|token| token.is(word))).map(|it| it.1)
        };
        let is_assigned = |at: usize| match assignment.get(at..) {
            Some([Token::Symbol(b'='), ..]) => Some(at + 1),
            Some([Token::Symbol(b':'), Token::Symbol(b'='), ..]) => Some(at + 2),
            _ => None,
        };
        let system = |at: usize, is_global: bool| {
            let name = assignment.get(at)?.name()?.to_ascii_lowercase();
            Some(Target { name, is_user: false, is_global, length: is_assigned(at + 1)? })
        };
        match assignment {
            [AT, AT, word, Token::Symbol(b'.'), ..] => system(4, scope(Some(word))?),
            [AT, AT, ..] => system(2, false),
            [AT, name, ..] => {
                let said = name.name().map(Into::into).or_else(|| name.text(Modes::default()));
                let name: String = said?;
                Some(Target {
                    name: name.to_lowercase(),
                    is_user: true,
                    is_global: false,
                    length: is_assigned(2)?,
                })
            }
            [word, ..] => match scope(Some(word)).filter(|_| is_assigned(1).is_none()) {
                Some(is_global) => system(1, is_global),
                None => system(0, false),
            },
            [] => None,
        }
    }
}

fn refuse_ambiguous(charset: &str) -> Result<(), Refusal> {
    if AMBIGUOUS.iter().any(|name| charset.eq_ignore_ascii_case(name)) {
        return Err(Refusal::hinted(
            format!("it is written in {charset}, in which a backslash can be a part of a letter"),
            "dump it in utf8mb4, which can say the same",
        ));
    }
    Ok(())
}

/// Whether these bytes occur in it, in upper or lower case.
pub(super) fn holds(statement: &[u8], what: &[u8]) -> bool {
    statement.windows(what.len()).any(|bytes| bytes.eq_ignore_ascii_case(what))
}
