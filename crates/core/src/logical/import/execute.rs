//! Goes through a dump from its first statement to its last, to look at it or to execute it.
//!
//! Both ways read and judge the same; looking only sends nothing. A warning of the server is an error, unless
//! it does not concern what is stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::Path,
    time::{Duration, Instant},
};

use holdfast_formats::{
    Flavor,
    dump::{About, DumpError, DumpReader, Ending, Grammar, Modes, Piece},
};

use super::{
    ImportOptions,
    judge::Judge,
    server::{PrivateServer, STATEMENT_BYTES_MAX},
    settings,
    source::{self, Meter},
    verdict::{Refusal, Verdict},
};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    logical::sql::{quoted, quoted_text},
    points::point,
    server::{
        ServerVersion, Session,
        bulk::{self, Done, Feed},
        code::NOT_OF_CHARSET,
    },
};

/// How long the server waits for a dump that arrives slowly.
const SILENCE_MAX_S: u64 = 31_536_000;
/// The mode that the tools' own loaders begin with, and their dumps if they set it: 0 stays 0. A value that
/// does not fit is a warning, and fails.
const SQL_MODE: &str = "NO_AUTO_VALUE_ON_ZERO";
const TELL_EVERY: Duration = Duration::from_millis(300);
const FEED_BYTES: usize = 256 << 10;
/// How many warnings an error shows.
const SHOWN_MAX: usize = 3;
/// Warnings that do not concern what is stored: something is deprecated (1287, 1681, 3719, 3778, 4079), an
/// index is a duplicate (1831) or of little use (3674), rows come at once that were to come later (3005), the
/// owner of a program does not exist (1449), a column is computed instead of taken (1906), a dropped object
/// did not exist (1051, 1305, 1360, 1539, 4091, 4092), or a made one existed (1007, 1050).
const HARMLESS: [u16; 18] = [
    1007, 1050, 1051, 1287, 1305, 1360, 1449, 1539, 1681, 1831, 1906, 3005, 3674, 3719, 3778, 4079, 4091,
    4092,
];

/// A part of a dump that is read in a session of its own: the dump itself, or a file of a directory.
pub(super) struct Part<'a> {
    /// Its name in errors.
    pub(super) name: String,
    pub(super) path: Option<&'a Path>,
    pub(super) ending: Ending,
    /// The database that it belongs to.
    pub(super) database: Option<String>,
    /// Where to find files with rows.
    pub(super) directory: Option<&'a source::Directory>,
}

/// The result of a part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Statements that were, or would be, executed.
    pub(super) statements: u64,
    /// Rows that the server took.
    pub(super) rows: u64,
}

/// Reads a dump's parts, one after the other.
pub(super) struct Reading<'a> {
    pub(super) options: &'a ImportOptions,
    pub(super) grammar: Grammar,
    pub(super) judge: Judge,
    pub(super) about: About,
    pub(super) left_out: BTreeSet<&'static str>,
    pub(super) meter: Meter,
    pub(super) bytes_total: u64,
    pub(super) listener: &'a dyn Listener,
    pub(super) cancel: &'a Cancel,
    /// Setting by which the server has the default collations of the dumped one.
    pub(super) collations: Option<&'static str>,
    told: Instant,
}

/// The server and session that execute statements, unless they are only looked at.
struct Executor<'s> {
    server: &'s mut PrivateServer,
    session: Session,
    modes: Modes,
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        options: &'a ImportOptions,
        grammar: Grammar,
        bytes_total: u64,
        listener: &'a dyn Listener,
        cancel: &'a Cancel,
    ) -> Self {
        let judge = Judge::new(options.charset.is_some(), options.time_zone.is_some());
        Self {
            options,
            grammar,
            judge,
            about: About::default(),
            left_out: BTreeSet::new(),
            meter: Meter::default(),
            bytes_total,
            listener,
            cancel,
            collations: None,
            told: Instant::now(),
        }
    }

    fn open(&self, part: &Part<'_>) -> Result<Box<dyn Read>> {
        match (part.path, part.directory) {
            (Some(path), Some(_)) => source::open_of_directory(path, &self.meter, self.cancel),
            (path, _) => source::open(path, &self.meter, self.cancel),
        }
    }

    /// Looks at a part, without executing it.
    pub(super) fn look(&mut self, part: &Part<'_>) -> Result<Counted> {
        let input = self.open(part)?;
        self.read(part, input, None)
    }

    /// Executes a part.
    pub(super) fn execute(&mut self, part: &Part<'_>, server: &mut PrivateServer) -> Result<Counted> {
        let input = self.open(part)?;
        self.execute_from(part, input, server)
    }

    /// Executes a part whose input is open.
    pub(super) fn execute_from(
        &mut self,
        part: &Part<'_>,
        input: impl Read,
        server: &mut PrivateServer,
    ) -> Result<Counted> {
        let session = self.session(part, server)?;
        let socket = session.socket()?;
        let executor = Executor { server, session, modes: Modes::default() };
        let cancel = self.cancel.clone();
        // A statement may take hours, and is not worth waiting for after a cancellation.
        let (done, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while matches!(
                    ended.recv_timeout(TELL_EVERY),
                    Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                ) {
                    if cancel.is_cancelled() {
                        drop(socket.shutdown(std::net::Shutdown::Both));
                        return;
                    }
                }
            });
            let read = self.read(part, input, Some(executor));
            drop(done);
            read
        })
    }

    /// A session as a client would have it for the dump.
    fn session(&self, part: &Part<'_>, server: &mut PrivateServer) -> Result<Session> {
        let mut session = server.loader().map_err(|error| server.explain(error))?;
        bulk::be_patient(&mut session)?;
        bulk::one_statement_at_a_time(&mut session)?;
        session.exec(&format!(
            "SET SESSION sql_mode = '{SQL_MODE}', foreign_key_checks = 0, wait_timeout = {SILENCE_MAX_S}, net_read_timeout = {SILENCE_MAX_S}, \
             net_write_timeout = {SILENCE_MAX_S}, max_error_count = 65535"
        ))?;
        // Before character sets are named: these have the collations.
        if let Some(collations) = self.collations {
            session.exec(&format!("SET SESSION {collations}"))?;
        }
        if let Some(charset) = &self.options.charset {
            session.exec(&format!("SET NAMES {}", quoted_text(charset)))?;
        }
        if let Some(zone) = &self.options.time_zone {
            session.exec(&format!("SET SESSION time_zone = {}", quoted_text(zone)))?;
        }
        if let Some(database) = &part.database {
            session.exec(&format!("USE {}", quoted(database)))?;
        }
        Ok(session)
    }

    fn read(
        &mut self,
        part: &Part<'_>,
        input: impl Read,
        mut executor: Option<Executor<'_>>,
    ) -> Result<Counted> {
        let bytes_max = self.options.statement_bytes_max.min(STATEMENT_BYTES_MAX);
        let mut reader = DumpReader::new(input, self.grammar, part.ending, bytes_max);
        self.judge.begin(part.database.clone());
        let mut counted = Counted::default();
        loop {
            self.cancel.check()?;
            reader.set_modes(self.judge.modes());
            let piece = reader.next().map_err(|error| self.unreadable(part, error))?;
            if self.tell()
                && let Some(executor) = &executor
            {
                executor.server.check_room()?;
            }
            let (statement, line) = match piece {
                None => {
                    // Rows that were written were meant to stay, even if the dump does not write a `COMMIT`
                    // at its end.
                    if let Some(executor) = &mut executor {
                        executor.session.exec("COMMIT")?;
                    }
                    return Ok(counted);
                }
                Some(Piece::Comment { text, .. }) => {
                    self.about.hear(text);
                    self.judge.hear(text);
                    continue;
                }
                Some(Piece::Statement { text, line }) => (text, line),
            };
            self.about.go_on();
            let place = || format!("{} line {line}", part.name);
            let verdict =
                self.judge.judge(statement).map_err(|refusal| refused(&place(), statement, refusal))?;
            match verdict {
                Verdict::Place(found) => {
                    self.about.note_place(&found);
                    continue;
                }
                Verdict::Skip => continue,
                Verdict::LeaveOut(what) => {
                    if !self.options.without_accounts {
                        let text = format!("{}: the dump holds {what}, which are not imported", place());
                        return Err(Error::new(ErrorKind::Usage, text)
                            .hinted("--without-accounts imports the rest of it, and says so in the backup"));
                    }
                    self.left_out.insert(what);
                    continue;
                }
                _ => {}
            }
            counted.statements += 1;
            if let Verdict::Load(file) = &verdict {
                self.content(part, file).map_err(|error| error.context(place()))?;
            }
            let Some(executor) = &mut executor else { continue };
            point("import.statement");
            let is_event = self.judge.is_event;
            let is_program = matches!(verdict, Verdict::WithDefiner(..));
            let done = as_of_long_ago(executor, is_event, |executor| {
                self.carry_out(executor, part, statement, verdict)
            });
            let done = done.and_then(|done| self.settled(executor, statement, is_program, done));
            let done = done.map_err(|error| match self.cancel.check() {
                Err(interrupted) => interrupted,
                Ok(()) => executor.server.explain(error.context(place())),
            })?;
            counted.rows += done.rows;
        }
    }

    fn carry_out(
        &self,
        executor: &mut Executor<'_>,
        part: &Part<'_>,
        statement: &[u8],
        verdict: Verdict,
    ) -> Result<Done> {
        match verdict {
            Verdict::Instead(other) => Ok(bulk::exec(&mut executor.session, &other)?),
            Verdict::WithDefiner(name, host) => {
                executor.server.make_definer(&name, host.as_deref())?;
                Ok(bulk::exec(&mut executor.session, statement)?)
            }
            Verdict::WithDatabase(name) => {
                executor.server.open_database(&name)?;
                Ok(bulk::exec(&mut executor.session, statement)?)
            }
            Verdict::Load(file) => {
                let path = self.content(part, &file)?;
                let statement = std::str::from_utf8(statement).context("read a LOAD DATA")?;
                let mut content = source::open_of_directory(&path, &self.meter, self.cancel)?;
                let mut buffer = vec![0; FEED_BYTES];
                let mut feed = |feed: &mut Feed<'_>| loop {
                    let count = content.read(&mut buffer).context(format!("read {}", path.display()))?;
                    if count == 0 {
                        return Ok(());
                    }
                    feed.buffer().extend_from_slice(&buffer[..count]);
                    feed.flush_full()?;
                };
                bulk::load(&mut executor.session, statement, FEED_BYTES, &mut feed)
            }
            _ => Ok(bulk::exec(&mut executor.session, statement)?),
        }
    }

    /// Checks the server's warnings about a statement, and that it takes quotes the way we do.
    fn settled(
        &self,
        executor: &mut Executor<'_>,
        statement: &[u8],
        is_program: bool,
        done: Done,
    ) -> Result<Done> {
        // A `SET` is judged, and stores nothing.
        let is_set = statement.get(..4).is_some_and(|word| word.eq_ignore_ascii_case(b"SET "));
        if done.warnings > 0 && !is_set {
            refuse_warnings(&mut executor.session, statement, is_program)?;
        }
        let modes = self.judge.modes();
        if modes != executor.modes || (is_set && settings::holds(statement, b"sql_mode")) {
            let mode = executor.session.value("SELECT @@SESSION.sql_mode")?.unwrap_or_default();
            if Modes::of(&mode) != modes {
                return Err(Error::failed(format!(
                    "the server's sql_mode is {mode:?}, which differs from the one assumed here"
                )));
            }
            executor.modes = modes;
        }
        Ok(done)
    }

    /// The file that a statement loads.
    fn content(&self, part: &Part<'_>, file: &str) -> Result<std::path::PathBuf> {
        let directory = part.directory.ok_or_else(|| {
            Error::new(
                ErrorKind::Usage,
                format!("it loads the file {file:?}, and only directories of mydumper have such files"),
            )
        })?;
        directory.content(file)
    }

    /// Reports progress now and then; returns whether it did.
    fn tell(&mut self) -> bool {
        let is_due = self.told.elapsed() >= TELL_EVERY;
        if is_due {
            self.told = Instant::now();
            let bytes_done = self.meter.bytes();
            self.listener.event(Event::Progress { bytes_done, bytes_total: self.bytes_total });
        }
        is_due
    }

    fn unreadable(&self, part: &Part<'_>, error: DumpError) -> Error {
        if let Err(interrupted) = self.cancel.check() {
            return interrupted;
        }
        let hint = match &error {
            DumpError::Io(_) => {
                "the file is cut off or damaged: compare it with where it comes from, or dump again"
            }
            DumpError::Unended { .. } => "the file is cut off: a dump that is not whole is no backup",
            DumpError::TooLong { .. } => {
                "--max-statement allows longer ones, up to 1 GiB, which is the servers' own bound; shorter ones come from a dump \
                 with a smaller --net-buffer-length (mysqldump) or --statement-size (mydumper)"
            }
            DumpError::Delimiter { .. } => "the servers' own clients could not read it either",
        };
        Error::failed(format!("read {}: {error}", part.name)).hinted(hint)
    }
}

/// Executes a statement: if it makes an event, as of a moment long ago, since an event that is over by now
/// would be disabled, or dropped.
fn as_of_long_ago(
    executor: &mut Executor<'_>,
    is_event: bool,
    carry_out: impl FnOnce(&mut Executor<'_>) -> Result<Done>,
) -> Result<Done> {
    if !is_event {
        return carry_out(executor);
    }
    executor.session.exec("SET SESSION timestamp = 1")?;
    let done = carry_out(executor)?;
    if done.warnings > 0 {
        refuse_warnings(&mut executor.session, b"CREATE EVENT", true)?;
    }
    executor.session.exec("SET SESSION timestamp = DEFAULT")?;
    Ok(Done { warnings: 0, ..done })
}

fn refused(place: &str, statement: &[u8], refusal: Refusal) -> Error {
    let Refusal { why, hint } = refusal;
    let error = Error::new(ErrorKind::Usage, format!("{place}: {why}: {}", bulk::shown(statement)));
    error.hinted(
        hint.unwrap_or("only what dumps consist of is executed: take it out of the file if it is not wanted"),
    )
}

/// Fails if a warning about the last statement could concern what is stored.
fn refuse_warnings(session: &mut Session, statement: &[u8], is_program: bool) -> Result<()> {
    let mut found = BTreeMap::<u16, String>::new();
    for row in session.byte_rows("SHOW WARNINGS")? {
        let text = |column: &str| {
            row.bytes_or_null(column)
                .map(|bytes| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned())
        };
        let code = text("Code")?.parse().unwrap_or(0);
        let message = text("Message")?;
        // MariaDB has no code for it.
        let is_of_scheduler = message.starts_with("Event scheduler is switched off");
        // MySQL keeps a copy of each program's text for information_schema alone.
        let is_of_copy = is_program && code == NOT_OF_CHARSET && message.ends_with("from utf8mb4 to utf8mb3");
        let is_harmless = HARMLESS.contains(&code) || is_of_scheduler || is_of_copy;
        if text("Level")? != "Note" && !is_harmless {
            found.entry(code).or_insert(message);
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let said: Vec<String> =
        found.iter().take(SHOWN_MAX).map(|(code, message)| format!("{message} ({code})")).collect();
    Err(Error::failed(format!("the server warns of {}: {}", bulk::shown(statement), said.join("; "))).hinted(
        "what is stored might not be what was dumped: backup --method logical takes such values from the server itself",
    ))
}

/// The setting by which a server has the default collations that the dumped one had, if its own are others:
/// older servers do not name in a definition what is their default.
pub(super) fn collations_of(dumped: &ServerVersion, server: &ServerVersion) -> Option<&'static str> {
    let series = |version: &ServerVersion| (version.major, version.minor);
    let is_of = |version: &ServerVersion, (flavor, first): (Flavor, (u16, u16))| {
        version.flavor == flavor && series(version) >= first
    };
    // Since when all collations are those of a new algorithm.
    let mysql = (Flavor::MySql, (8, 0));
    let mariadb = (Flavor::MariaDb, (11, 5));
    if is_of(server, mysql) && !is_of(dumped, mysql) {
        return Some("default_collation_for_utf8mb4 = utf8mb4_general_ci");
    }
    (is_of(server, mariadb) && !is_of(dumped, mariadb)).then_some("character_set_collations = ''")
}

/// How to read statements for a server of this version.
pub(super) fn grammar(flavor: Flavor, version: u32) -> Grammar {
    Grammar { flavor, version }
}
