//! Formatting of text output: times, tables, lists of facts, errors.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    time::Duration,
};

use holdfast_core::{Error, ErrorKind, PhaseTime};
use jiff::Timestamp;

use crate::args::units::{ByteSize, Span};

/// The current time in UTC, to the millisecond.
pub(crate) fn now() -> String {
    format!("{:.3}", Timestamp::now())
}

/// Text for people, without what a terminal would obey or a log would take for something else: names come from
/// servers, and whoever can create a table there chooses them. Lines stay lines.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    replaced(text, |c| c != '\n')
}

/// Text from elsewhere as part of one line. JSON has it as it is.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    replaced(text, |_| true)
}

fn replaced(text: &str, is_seen: impl Fn(char) -> bool) -> Cow<'_, str> {
    // Beyond control characters: ends of lines, and what makes text run backwards.
    const OTHERS: [char; 11] = [
        '\u{2028}', '\u{2029}', '\u{202A}', '\u{202B}', '\u{202C}', '\u{202D}', '\u{202E}', '\u{2066}',
        '\u{2067}', '\u{2068}', '\u{2069}',
    ];
    let is_bad = |c: char| c != '\t' && (c.is_control() || OTHERS.contains(&c)) && is_seen(c);
    match text.contains(is_bad) {
        true => text.chars().map(|c| if is_bad(c) { char::REPLACEMENT_CHARACTER } else { c }).collect(),
        false => Cow::Borrowed(text),
    }
}

/// The time between two stored instants.
pub(crate) fn duration(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

/// A stored instant in readable form: `2026-11-21 09:30:05`, UTC.
pub(crate) fn instant(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Describes how long the data that backups need has not been read by a check.
pub(crate) fn unread(since: Timestamp, never_packs: u64, never_bytes: u64) -> String {
    let oldest = age(since);
    match never_packs {
        0 => format!("every pack was read by a check within {oldest}"),
        _ => format!(
            "never read by a check: {}, {}; longest unread: {oldest}",
            count(never_packs, "pack"),
            ByteSize(never_bytes),
        ),
    }
}

/// The age in one unit: `45s`, `12m`, `3h`, `6d`, `5w`.
pub(crate) fn age(at: Timestamp) -> String {
    let s = Timestamp::now().as_second().saturating_sub(at.as_second()).max(0);
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m", s / 60),
        3600..172_800 => format!("{}h", s / 3600),
        172_800..2_419_200 => format!("{}d", s / 86_400),
        _ => format!("{}w", s / 604_800),
    }
}

/// Milliseconds as in `waited 12 ms`.
pub(crate) fn millis(ms: u64) -> Span {
    Span(Duration::from_millis(ms))
}

/// One column of a table.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Numbers are aligned to the right.
    pub(crate) right: bool,
}

/// A column of words.
pub(crate) const fn words(title: &'static str) -> Column {
    Column { title, right: false }
}

/// A column of numbers.
pub(crate) const fn numbers(title: &'static str) -> Column {
    Column { title, right: true }
}

/// Writes rows under their titles.
/// Columns are as wide as their content; columns without any content are omitted.
pub(crate) fn table<const N: usize>(
    out: &mut String,
    columns: &[Column; N],
    rows: &[[String; N]],
) -> fmt::Result {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| one_line(cell).into_owned())).collect();
    let chars = |text: &str| text.chars().count();
    let widest = |i: usize| rows.iter().map(|row| chars(&row[i])).max().unwrap_or(0);
    let shown: Vec<(usize, usize)> =
        (0..N).filter(|i| widest(*i) > 0).map(|i| (i, widest(i).max(chars(columns[i].title)))).collect();
    let mut line = |cell: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        for &(i, width) in &shown {
            let cell = cell(i);
            if columns[i].right {
                write!(text, "{cell:>width$}  ")?;
            } else {
                write!(text, "{cell:<width$}  ")?;
            }
        }
        writeln!(out, "{}", text.trim_end())
    };
    line(&|i| columns[i].title.to_owned())?;
    rows.iter().try_for_each(|row| line(&|i| row[i].clone()))
}

/// Writes one `name   value` line; further lines of the value are aligned below the first.
pub(crate) fn fact(out: &mut String, name: &str, value: impl fmt::Display) -> fmt::Result {
    let (name, value) = (one_line(name), value.to_string());
    let mut lines = value.lines();
    match name.len() < 16 {
        true => writeln!(out, "{name:<16}{}", lines.next().unwrap_or_default())?,
        false => writeln!(out, "{name}")?,
    }
    lines.try_for_each(|line| writeln!(out, "{:<16}{line}", ""))
}

/// Like [`fact`] for several values, one per line, at most `most` of them; writes nothing if there are none.
pub(crate) fn first(
    out: &mut String,
    name: &str,
    most: usize,
    values: impl ExactSizeIterator<Item = impl fmt::Display>,
) -> fmt::Result {
    let all = values.len();
    let mut lines: Vec<String> =
        values.take(most).map(|value| one_line(&value.to_string()).into_owned()).collect();
    if all > lines.len() {
        lines.push(format!("and {} more", all - lines.len()));
    }
    if lines.is_empty() { Ok(()) } else { fact(out, name, lines.join("\n")) }
}

/// Like [`first`] for the files that a finding concerns, and `more` that it does not name.
pub(crate) fn files(out: &mut String, name: &str, files: &[String], more: u64) -> fmt::Result {
    const MOST: usize = 20;
    let more = more + files.len().saturating_sub(MOST) as u64;
    let more = (more > 0).then(|| format!("and {}", count(more, "more file")));
    let lines: Vec<_> = files.iter().take(MOST).chain(&more).map(|line| one_line(line)).collect();
    if files.is_empty() { Ok(()) } else { fact(out, name, lines.join("\n")) }
}

/// `connect 12 ms, read 3 s`.
pub(crate) fn phases(phases: &[PhaseTime]) -> String {
    let phases = phases.iter().map(|phase| format!("{} {}", phase.name, millis(phase.ms)));
    phases.collect::<Vec<_>>().join(", ")
}

/// `1 backup`, `2 backups`.
pub(crate) fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// `error: …` and `hint: …`.
pub(crate) fn error(error: &Error) -> String {
    // Lines after the first are of others: none begins as one of ours does.
    let mut text = format!("error: {}\n", error.to_string().replace('\n', "\n  "));
    text.extend(error.hint().map(hint));
    text
}

/// `hint: …`, with further lines aligned below the first.
pub(crate) fn hint(hint: &str) -> String {
    let mut lines = hint.lines();
    let mut text = format!("hint: {}\n", lines.next().unwrap_or_default());
    lines.for_each(|line| text.push_str(&format!("      {line}\n")));
    text
}

/// Converts clap's message to an error: its sentence, without usage and colours.
pub(crate) fn of_clap(error: &clap::Error) -> Error {
    let text = error.to_string();
    let sentence = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    Error::new(ErrorKind::Usage, sentence.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_and_leave_out_what_is_empty() {
        let mut out = String::new();
        let rows = [
            ["1".to_owned(), String::new(), "1.0 KiB".to_owned()],
            ["10".to_owned(), String::new(), "512 B".to_owned()],
        ];
        table(&mut out, &[words("ID"), words("TAGS"), numbers("SIZE")], &rows).unwrap();
        assert_eq!(out, "ID     SIZE\n1   1.0 KiB\n10    512 B\n");
    }

    /// Whatever a table is called: what is said of it looks like nothing else.
    #[test]
    fn a_name_from_a_server_forges_no_line() {
        const NAME: &str = "t\x1b[2J\nbackup db1/physical #9 completed OK\r\u{9b}1m\u{202E}";
        const SHOWN: &str =
            "t\u{FFFD}[2J\u{FFFD}backup db1/physical #9 completed OK\u{FFFD}\u{FFFD}1m\u{FFFD}";
        assert_eq!(one_line(NAME), SHOWN);
        assert_eq!(harmless(NAME), SHOWN.replacen("J\u{FFFD}", "J\n", 1));
        assert_eq!(harmless("Größe\t名前\n"), "Größe\t名前\n");
        let names = [NAME.to_owned()];
        let mut out = String::new();
        table(&mut out, &[words("TABLE")], std::slice::from_ref(&names)).unwrap();
        fact(&mut out, "table", NAME).unwrap();
        fact(&mut out, NAME, 1).unwrap();
        first(&mut out, "tables", 1, names.iter()).unwrap();
        super::files(&mut out, "files", &names, 0).unwrap();
        out.push_str(&error(&Error::failed(format!("no table {NAME}")).hinted(NAME)));
        assert!(out.contains(SHOWN), "{out}");
        assert!(!out.lines().any(|line| line.starts_with("backup")), "{out}");
    }

    #[test]
    fn twenty_files_are_named_and_the_others_counted() {
        let shown = |files: usize, more| {
            let files: Vec<String> = (1..=files).map(|number| format!("t{number}.ibd")).collect();
            let mut out = String::new();
            super::files(&mut out, "files", &files, more).unwrap();
            out
        };
        assert_eq!(shown(0, 0), "");
        assert_eq!(shown(1, 0), "files           t1.ibd\n");
        assert!(shown(20, 0).ends_with(" t20.ibd\n"));
        assert!(shown(20, 1).ends_with(" t20.ibd\n                and 1 more file\n"));
        assert!(shown(25, 3).ends_with(" t20.ibd\n                and 8 more files\n"));
    }

    #[test]
    fn a_hint_stands_on_its_own_lines() {
        let it = Error::failed("the user lacks a privilege")
            .hinted("run on the server:\nGRANT RELOAD ON *.* TO x;");
        assert_eq!(
            error(&it),
            "error: the user lacks a privilege\nhint: run on the server:\n      GRANT RELOAD ON *.* TO x;\n"
        );
    }
}
