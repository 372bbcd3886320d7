//! Members of `ENUM` and `SET`, which are stored by number, by the names in their type.
//!
//! Servers print types in a three-byte character set: a character that needs four bytes becomes `?`.
//! [`hidden`] asks for the names that the server keeps, and [`Hidden::spell`] puts them into the definition
//! as bytes.

use holdfast_formats::Flavor;
use holdfast_repo::format::hex::from_hex;

use crate::{
    error::{Error, Result},
    logical::sql::{Kind, quoted, quoted_text, tokens},
    server::{Row, Session, SqlError, TableName},
};

/// The text of a value: the name of an `ENUM` member (empty for the error value), or the names of a `SET`
/// separated by commas. `None` if the type or the value is not understood.
pub(crate) fn text_of(column_type: &str, value: &[u8]) -> Option<String> {
    let names = names(column_type)?;
    let number: u64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    if is_set(column_type) {
        let is_there = |place: usize| number.checked_shr(place as u32).is_some_and(|rest| rest & 1 == 1);
        let known = u32::try_from(names.len()).ok()?;
        if number.checked_shr(known).is_some_and(|rest| rest > 0) {
            return None;
        }
        let there: Vec<String> = names
            .into_iter()
            .enumerate()
            .filter(|(place, _)| is_there(*place))
            .map(|(_, name)| name)
            .collect();
        return Some(there.join(","));
    }
    match usize::try_from(number).ok()?.checked_sub(1) {
        None => Some(String::new()),
        Some(place) => names.into_iter().nth(place),
    }
}

/// A member as the server keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    text: String,
    /// In the column's character set, in hex digits.
    bytes: String,
    is_shown: bool,
}

/// The members of a column, some of which the server shows differently than it keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hidden {
    column: String,
    members: Vec<Member>,
}

/// Reads the members of a column whose character set has four-byte characters; `None` if all are as shown.
pub(crate) fn hidden(
    session: &mut Session,
    table: &TableName,
    column: &str,
    column_type: &str,
) -> Result<Option<Hidden>> {
    if !column_type.contains('?') {
        return Ok(None);
    }
    let wrong = || {
        Error::failed(format!("the members of column {column} cannot be read: {column_type}")).hinted(
            "give them names without characters of four bytes, or leave the table out (--exclude-table)",
        )
    };
    let shown = names(column_type).ok_or_else(wrong)?;
    let kept = match (session.flavor(), is_set(column_type)) {
        (Flavor::MariaDb, true) => by_variable(session, table, column, shown.len())?,
        (_, true) => by_query(session, table, column, "1 << n", shown.len())?,
        (_, false) => by_query(session, table, column, "n + 1", shown.len())?,
    };
    let mut members = Vec::with_capacity(shown.len());
    for (bytes, text) in kept {
        let text = from_hex(&text).and_then(|text| String::from_utf8(text).ok()).ok_or_else(wrong)?;
        let is_shown = shown.get(members.len()) == Some(&text);
        members.push(Member { text, bytes, is_shown });
    }
    // What the server keeps must explain what it shows.
    let narrow = |text: &str| text.chars().map(|c| if c > '\u{FFFF}' { '?' } else { c }).collect::<String>();
    if members.len() != shown.len()
        || members.iter().zip(&shown).any(|(member, shown)| narrow(&member.text) != *shown)
    {
        return Err(wrong());
    }
    let is_hidden = members.iter().any(|member| !member.is_shown);
    Ok(is_hidden.then(|| Hidden { column: column.to_owned(), members }))
}

/// Members in their order, each in hex digits: as the server keeps it, and in UTF-8.
type Kept = Vec<(String, String)>;

/// Reads members by their numbers. The columns of a recursive query have the types of its first rows, here
/// the column's own; then numbers are put into it.
fn by_query(
    session: &mut Session,
    table: &TableName,
    column: &str,
    number: &str,
    count: usize,
) -> Result<Kept, SqlError> {
    let query = format!(
        "WITH RECURSIVE c (n, m) AS (SELECT 0, {} FROM (SELECT 1 AS one) AS x LEFT JOIN {} ON FALSE \
         UNION ALL SELECT n + 1, {number} FROM c WHERE n < {count}) \
         SELECT HEX(m) AS b, LOWER(HEX(CONVERT(m USING utf8mb4))) AS t FROM c WHERE n > 0 ORDER BY n",
        quoted(column),
        table.quoted()
    );
    let member = |row: &Row| Ok((row.text("b")?.to_owned(), row.text("t")?.to_owned()));
    session.rows(&query)?.iter().map(member).collect()
}

/// The members of a `SET` of MariaDB, by a variable of the column's type: in a recursive query, MariaDB gives a set
/// one byte, whatever its type, and loses all members after the eighth (seen on 11.8).
fn by_variable(
    session: &mut Session,
    table: &TableName,
    column: &str,
    count: usize,
) -> Result<Kept, SqlError> {
    session.exec(&format!(
        "BEGIN NOT ATOMIC DECLARE m TYPE OF {}.{}; DECLARE n INT DEFAULT 0; SET @holdfast_members = ''; \
         WHILE n < {count} DO SET m = 1 << n; SET @holdfast_members = CONCAT(@holdfast_members, HEX(m), ' ', \
         LOWER(HEX(CONVERT(m USING utf8mb4))), ','); SET n = n + 1; END WHILE; END",
        table.quoted(),
        quoted(column)
    ))?;
    let members = session.value("SELECT @holdfast_members")?.unwrap_or_default();
    let member = |(bytes, text): (&str, &str)| (bytes.to_owned(), text.to_owned());
    Ok(members.split_terminator(',').filter_map(|it| it.split_once(' ')).map(member).collect())
}

impl Hidden {
    /// The column's type with all of its members.
    pub(crate) fn column_type(&self, shown: &str) -> String {
        let word = shown.split('(').next().unwrap_or_default();
        let names: Vec<String> = self.members.iter().map(|member| quoted_text(&member.text)).collect();
        format!("{word}({})", names.join(","))
    }

    /// Returns `CREATE TABLE` with the bytes of the members that are not shown, and with the column's
    /// `default` if that is not shown either. `None` if the statement is not as expected.
    pub(crate) fn spell(&self, create: &[u8], default: Option<&str>) -> Option<Vec<u8>> {
        let all = tokens(create);
        let mut out = Vec::with_capacity(create.len());
        let (mut members, mut default) = (self.members.iter(), default);
        let (mut depth, mut is_first, mut is_in_column, mut is_default) = (0, false, false, false);
        for token in &all {
            match token.kind {
                Kind::Symbol if token.is_symbol(b'(') => depth += 1,
                Kind::Symbol if token.is_symbol(b')') => depth -= 1,
                // Columns are the elements that begin with a name.
                Kind::Name if is_first => {
                    is_in_column = token.name().is_some_and(|name| name == self.column);
                }
                Kind::Text if is_in_column && depth == 2 && members.len() > 0 => {
                    if let Some(member) = members.next().filter(|member| !member.is_shown) {
                        out.extend_from_slice(format!("x'{}'", member.bytes).as_bytes());
                        continue;
                    }
                }
                Kind::Text if is_in_column && is_default => {
                    if let Some(default) = default.take() {
                        out.extend_from_slice(default.as_bytes());
                        continue;
                    }
                }
                _ => {}
            }
            out.extend_from_slice(token.bytes);
            if !matches!(token.kind, Kind::Space | Kind::Comment) {
                let is_separator = token.is_symbol(b'(') || token.is_symbol(b',');
                is_first = depth == 1 && is_separator;
                is_in_column &= depth > 1 || depth == 1 && !is_separator;
                is_default = depth == 1 && token.is_word("DEFAULT");
            }
        }
        (members.len() == 0 && default.is_none()).then_some(out)
    }
}

fn is_set(column_type: &str) -> bool {
    column_type.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("set("))
}

/// The names in `enum('a','it''s')`.
fn names(column_type: &str) -> Option<Vec<String>> {
    let (_, list) = column_type.split_once('(')?;
    let mut names = Vec::new();
    let mut chars = list.chars().peekable();
    loop {
        if chars.next()? != '\'' {
            return None;
        }
        let mut name = String::new();
        loop {
            match chars.next()? {
                '\'' if chars.next_if_eq(&'\'').is_some() => name.push('\''),
                '\'' => break,
                '\\' => name.push(match chars.next()? {
                    'n' => '\n',
                    'r' => '\r',
                    '0' => '\0',
                    other => other,
                }),
                other => name.push(other),
            }
        }
        names.push(name);
        match chars.next()? {
            ',' => {}
            ')' => return Some(names),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_members() {
        let of = |column_type: &str, value: &str| text_of(column_type, value.as_bytes());
        assert_eq!(of("enum('a','it''s','x,y)','\\\\')", "2").as_deref(), Some("it's"));
        assert_eq!(of("enum('a','it''s','x,y)','\\\\')", "3").as_deref(), Some("x,y)"));
        assert_eq!(of("enum('a','it''s','x,y)','\\\\')", "4").as_deref(), Some("\\"));
        assert_eq!(of("enum('a')", "0").as_deref(), Some(""));
        assert_eq!(of("enum('a')", "2"), None);
        assert_eq!(of("set('a','b','c')", "5").as_deref(), Some("a,c"));
        assert_eq!(of("set('a','b','c')", "0").as_deref(), Some(""));
        assert_eq!(of("set('a','b','c')", "8"), None);
        assert_eq!(of("set('a", "1"), None);
        let all: Vec<String> = (0..64).map(|n| format!("'{n}'")).collect();
        let all = format!("set({})", all.join(","));
        assert!(of(&all, "18446744073709551615").is_some_and(|text| text.ends_with(",62,63")));
    }

    /// Members that are not shown are inserted as bytes, into their column and nowhere else.
    #[test]
    fn members_are_spelled() {
        let member =
            |text: &str, bytes: &str, is_shown| Member { text: text.into(), bytes: bytes.into(), is_shown };
        let members =
            vec![member("😀", "F09F9880", false), member("?", "3F", true), member("'\\", "275C", true)];
        let hidden = Hidden { column: "m".into(), members };
        let create = |member: &str, default: &str| {
            format!(
                "CREATE TABLE `m` (\n  `a` enum('?','m') DEFAULT '?',\n  \
                 `m` enum({member},'?','''\\\\') CHARACTER SET utf8mb4 DEFAULT {default} COMMENT 'enum(''?'')',\n  \
                 KEY `m` (`m`),\n  CONSTRAINT `m` CHECK (`m` <> '?' and (`m` in ('?','x')))\n) COMMENT '?'"
            )
        };
        let (shown, spelled) = (create("'?'", "'?'"), create("x'F09F9880'", "_utf8mb4 x'00'"));
        let found = hidden.spell(shown.as_bytes(), Some("_utf8mb4 x'00'")).unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), spelled);
        assert_eq!(hidden.column_type("enum('?','?','''\\\\')"), "enum('😀','?','''\\\\')");
        assert_eq!(text_of(&hidden.column_type("enum("), b"3").as_deref(), Some("'\\"));
        for cut in 0..shown.len() {
            let _ = hidden.spell(&shown.as_bytes()[..cut], None);
        }
        assert_eq!(hidden.spell(b"CREATE TABLE `t` (`m` enum('?'))", None), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(column_type in ".{0,40}", value in "[0-9]{0,22}") {
            let _ = text_of(&column_type, value.as_bytes());
            let _ = text_of(&format!("set({column_type})"), value.as_bytes());
        }
    }
}
