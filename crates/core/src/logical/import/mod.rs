//! Turns dumps of other tools into logical backups.
//!
//! A dump is a program for a server, and only a server of its kind knows what it means. So one executes it: a
//! private server, made for the dump and thrown away afterwards ([`server`]), of which a logical backup is
//! then taken as of any other. What is stored is what a backup of the dumped server itself would store, and
//! shares its rows with such backups.
//!
//! [`run`] is the outline: look at the whole dump, if it can be read twice → make a server → execute → take.
//! A dump is not trusted: [`judge`] decides which statements are executed at all. Nothing is published unless
//! all of it was good.

mod execute;
mod judge;
mod rows;
mod server;
mod settings;
mod source;
mod verdict;

use std::{
    collections::BTreeMap,
    fs,
    io::{Cursor, Read},
    path::PathBuf,
    sync::Arc,
};

use holdfast_formats::{
    Flavor,
    dump::{About, DumpReader, Ending, Piece, metadata::Kind},
};
use holdfast_repo::{LogName, Repo, log::history::History};

use self::{
    execute::{Counted, Part, Reading},
    judge::RowsSaid,
    server::{PrivateServer, STATEMENT_BYTES_MAX, ServerRequest},
    source::Directory,
};
use super::{
    Selection,
    selection::is_like_own_schema,
    sql::quoted,
    take::{self, report::LogicalReport},
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    points::point,
    server::{
        Purpose, ServerVersion, Session,
        programs::{RunAs, ServerBinary},
    },
    taking::BackupOptions,
    watch::Watch,
};

pub use super::stored::origin::{Origin, OriginPosition};
pub use source::Input;

/// How much of a dump to read to learn what made it.
const HEAD_BYTES: usize = 64 << 10;
/// Default for the private server's memory.
const MEMORY_DEFAULT: u64 = 512 << 20;

/// The user's decisions about a dump.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The dump.
    pub input: Input,
    /// The server program that executes it.
    pub server_binary: Option<PathBuf>,
    /// Where else to look for server programs.
    pub program_dirs: Vec<PathBuf>,
    /// The kind of server that executes it, whatever the dump says.
    pub flavor: Option<Flavor>,
    /// More options for that server.
    pub server_options: Vec<String>,
    /// Memory for its pages.
    pub server_memory_bytes: u64,
    /// The user that it runs as, if we are root.
    pub run_as: Option<RunAs>,
    /// Where its files are while it runs.
    pub work_dir: PathBuf,
    /// The database of a dump that names none.
    pub database: Option<String>,
    /// The character set of a dump that does not name its own.
    pub charset: Option<String>,
    /// The zone of the time stamps in a dump that does not name it.
    pub time_zone: Option<String>,
    /// Accepts a dump without a mark at its end as complete.
    pub without_end_mark: bool,
    /// Leaves out accounts, and whatever else is the server's own.
    pub without_accounts: bool,
    /// Length of the longest statement.
    pub statement_bytes_max: usize,
}

impl ImportOptions {
    /// Options as an expert would choose them.
    #[must_use]
    pub fn new(input: Input) -> Self {
        Self {
            input,
            server_binary: None,
            program_dirs: Vec::new(),
            flavor: None,
            server_options: Vec::new(),
            server_memory_bytes: MEMORY_DEFAULT,
            run_as: None,
            work_dir: PathBuf::from("/var/tmp"),
            database: None,
            charset: None,
            time_zone: None,
            without_end_mark: false,
            without_accounts: false,
            statement_bytes_max: STATEMENT_BYTES_MAX,
        }
    }
}

/// Imports a dump. What `backup` says about reaching a server does not matter.
pub fn run(
    repo: &Arc<Repo>,
    options: &ImportOptions,
    backup: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<LogicalReport> {
    let result = import(repo, options, backup, listener, cancel);
    result.map_err(|error| error.at(repo))
}

fn import(
    repo: &Arc<Repo>,
    options: &ImportOptions,
    backup: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<LogicalReport> {
    let Some(source) = &backup.name else {
        let text = "--name is missing: it says which source's history the dump belongs to";
        return Err(Error::new(ErrorKind::Usage, text)
            .hinted("give the name under which backups of the same server are stored, or a new one"));
    };
    let log = LogName { source: source.clone(), kind: holdfast_repo::Kind::Logical };
    // Better to learn of a history that cannot be read before hours of work.
    History::read(repo, &log)?;
    let watch = Watch::new(listener);
    watch.phase("look");
    let mut dump = Dump::open(options, cancel)?;
    let binary = dump.binary(options)?;
    let text = format!("{} executes the dump: {}", binary.version, binary.path.display());
    listener.event(Event::Note { text });
    if dump.about.server_version.is_none() {
        let text = "the dump does not say which version it is from: a collation that it does not name becomes the \
                    default of the server that executes it";
        listener.event(Event::Warning { text: text.to_owned() });
    }
    if options.input.can_be_read_again() {
        // Whatever can be refused is refused before anything is done.
        dump.look(options, &binary, listener, cancel)?;
    }
    point("import.looked");
    watch.phase("start");
    let wanted = ServerRequest {
        binary: &binary,
        work_dir: &options.work_dir,
        run_as: options.run_as,
        memory_bytes: options.server_memory_bytes,
        options: &options.server_options,
    };
    let mut server = PrivateServer::start(&wanted, cancel)?;
    point("import.started");
    watch.phase("execute");
    let (mut origin, said) = dump.execute(options, &binary, &mut server, listener, cancel)?;
    point("import.executed");
    origin.executed_by = binary.version.to_string();
    let private = BackupOptions { connect: server.connect(), ..backup.clone() }.of_private();
    // All accounts that exist are ours.
    let mut selection = Selection { without_accounts: true, ..Selection::default() };
    let mut session = Session::open(&server.connect(), Purpose::Control)?;
    let without_rows = rows::missing(&mut session, &said, dump.directory.is_some())?;
    drop(session);
    if !without_rows.is_empty() {
        let text = rows::told(&without_rows);
        listener.event(Event::Warning {
            text: format!("{text}: the backup is a part, with their definitions alone"),
        });
        origin.left_out.push(text);
        selection.filters = rows::filters(&without_rows, &said)?;
    }
    let taken = take::of_import(repo, &private, &selection, &origin, listener, cancel);
    taken.map_err(|error| match cancel.check() {
        Err(interrupted) => interrupted,
        Ok(()) => server.explain(error),
    })
}

/// A dump, as far as it was looked at.
struct Dump {
    /// Standard input, or a file that cannot be read twice, open from the beginning.
    stdin: Option<Box<dyn Read>>,
    stdin_meter: source::Meter,
    directory: Option<Directory>,
    /// What its head says.
    about: About,
    bytes: u64,
}

impl Dump {
    fn open(options: &ImportOptions, cancel: &Cancel) -> Result<Dump> {
        let meter = source::Meter::default();
        let (mut directory, mut bytes) = (None, 0);
        let (mut input, is_stdin) = match &options.input {
            Input::Stdin => (source::open(None, &meter, cancel)?, true),
            Input::File(path) => {
                let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file);
                bytes = meta.map_or(0, |meta| meta.len());
                (source::open(Some(path), &meter, cancel)?, bytes == 0)
            }
            Input::Directory(path) => {
                let found = Directory::read(path, options.without_end_mark)?;
                bytes = found.bytes;
                directory = Some(found);
                (Box::new(Cursor::new(Vec::new())) as Box<dyn Read>, false)
            }
        };
        let mut head = vec![0; HEAD_BYTES];
        let mut count = 0;
        while count < head.len() {
            match input.read(&mut head[count..]) {
                Ok(0) => break,
                Ok(read) => count += read,
                Err(error) => {
                    cancel.check()?;
                    return Err(Error::failed(format!("read {}: {error}", options.input.name())).hinted(
                        "the file is cut off or damaged: compare it with where it comes from, or dump again",
                    ));
                }
            }
        }
        head.truncate(count);
        let about = about_of(&head);
        let stdin = is_stdin.then(|| Box::new(Cursor::new(head).chain(input)) as Box<dyn Read>);
        Ok(Dump { stdin, stdin_meter: meter, directory, about, bytes })
    }

    /// Finds the program that executes it.
    fn binary(&self, options: &ImportOptions) -> Result<ServerBinary> {
        let version = self.about.server_version.as_deref().and_then(ServerVersion::parse);
        let explicit = options.server_binary.as_deref();
        let flavor = match (options.flavor, self.about.flavor, explicit) {
            (Some(flavor), _, _) | (None, Some(flavor), _) => flavor,
            // mydumper does not record what kind of server a dump is from.
            (None, None, Some(path)) => ServerBinary::probe(path)?.version.flavor,
            (None, None, None) => {
                return Err(Error::new(
                    ErrorKind::Usage,
                    "the dump does not say which kind of server it is from",
                )
                .hinted(
                    "name the server program that is to execute it: --server-binary /usr/sbin/mariadbd",
                ));
            }
        };
        let version = version.filter(|version| version.flavor == flavor);
        server::choose(explicit, flavor, version.as_ref(), &options.program_dirs)
    }

    fn reading<'a>(
        &self,
        options: &'a ImportOptions,
        binary: &ServerBinary,
        listener: &'a dyn Listener,
        cancel: &'a Cancel,
    ) -> Reading<'a> {
        let grammar = execute::grammar(binary.version.flavor, server::version_number(&binary.version));
        let mut reading = Reading::new(options, grammar, self.bytes, listener, cancel);
        let dumped = self.about.server_version.as_deref().and_then(ServerVersion::parse);
        reading.collations = dumped.and_then(|dumped| execute::collations_of(&dumped, &binary.version));
        reading
    }

    /// Reads and judges all of it without a server.
    fn look(
        &self,
        options: &ImportOptions,
        binary: &ServerBinary,
        listener: &dyn Listener,
        cancel: &Cancel,
    ) -> Result<()> {
        let mut reading = self.reading(options, binary, listener, cancel);
        match (&options.input, &self.directory) {
            (_, Some(directory)) => {
                let mut databases = Databases::default();
                for (name, file) in &directory.files {
                    let part = databases.part(directory, name, file)?;
                    let path = directory.path.join(name);
                    reading.look(&Part { path: Some(&path), ..part })?;
                    databases.learn(file, &mut reading)?;
                }
            }
            (Input::File(path), None) => {
                reading.look(&whole(options, Some(path)))?;
                self.judge_end(options, &reading)?;
            }
            (Input::Stdin | Input::Directory(_), None) => {}
        }
        Ok(())
    }

    fn execute(
        &mut self,
        options: &ImportOptions,
        binary: &ServerBinary,
        server: &mut PrivateServer,
        listener: &dyn Listener,
        cancel: &Cancel,
    ) -> Result<(Origin, RowsSaid)> {
        if let Some(database) = &options.database {
            server.open_database(database)?;
            let mut session = Session::open(&server.connect(), Purpose::Control)?;
            session.exec(&format!("CREATE DATABASE {}", quoted(database)))?;
        }
        let mut reading = self.reading(options, binary, listener, cancel);
        let mut origin = Origin { from: options.input.name(), form: "sql".to_owned(), ..Origin::default() };
        let counted = match (&self.directory, self.stdin.take()) {
            (Some(directory), _) => {
                "mydumper".clone_into(&mut origin.form);
                let counted = execute_directory(directory, &mut reading, server)?;
                origin.tool = Some("mydumper".to_owned());
                counted
            }
            (None, Some(input)) => {
                reading.meter = self.stdin_meter.clone();
                let counted = reading.execute_from(&whole(options, None), input, server)?;
                self.judge_end(options, &reading)?;
                counted
            }
            (None, None) => {
                let Input::File(path) = &options.input else {
                    return Err(Error::failed("there is nothing to be read"));
                };
                let counted = reading.execute(&whole(options, Some(path)), server)?;
                self.judge_end(options, &reading)?;
                counted
            }
        };
        origin.hear(&reading.about);
        if let Some(directory) = &self.directory {
            origin.of_directory(&directory.metadata);
            let strange = directory.strange.iter().map(|name| format!("the file {name}"));
            origin.left_out.extend(strange);
        }
        origin.left_out.extend(reading.left_out.iter().map(|what| (*what).to_owned()));
        origin.statements = counted.statements;
        origin.bytes = reading.meter.bytes();
        origin.without_end_mark = match &self.directory {
            Some(directory) => !directory.is_counted,
            None => !reading.about.is_complete,
        };
        let mut rows = reading.judge.rows;
        // phpMyAdmin announces rows by the same words, and none for an empty table.
        rows.are_announced &= reading.about.tool.is_some();
        Ok((origin, rows))
    }

    /// Refuses a dump that has no end, or makes nothing.
    fn judge_end(&self, options: &ImportOptions, reading: &Reading<'_>) -> Result<()> {
        let name = options.input.name();
        if reading.judge.makers == 0 && reading.left_out.is_empty() {
            let text = format!("{name} is not a dump: it makes nothing that a backup could hold");
            return Err(Error::new(ErrorKind::Usage, text));
        }
        if !reading.about.is_complete && !options.without_end_mark {
            return Err(Error::failed(format!("{name} does not end with \"-- Dump completed\": it is cut off")).hinted(
                "mysqldump leaves that line out with --skip-comments and --compact: if this dump is known to be whole, \
                 --without-end-mark takes it",
            ));
        }
        Ok(())
    }
}

/// A dump in one file.
fn whole<'a>(options: &ImportOptions, path: Option<&'a PathBuf>) -> Part<'a> {
    Part {
        name: options.input.name(),
        path: path.map(PathBuf::as_path),
        ending: Ending::Delimiter,
        database: options.database.clone(),
        directory: None,
    }
}

/// Reads what the head of a dump says. Comments come before anything that a server executes.
fn about_of(head: &[u8]) -> About {
    let mut about = About::default();
    // It does not matter yet how comments are executed.
    let grammar = execute::grammar(Flavor::MariaDb, 0);
    let mut reader = DumpReader::new(head, grammar, Ending::Delimiter, HEAD_BYTES);
    while let Ok(Some(piece)) = reader.next() {
        if let Piece::Comment { text, .. } = piece {
            about.hear(text);
        }
        if about.server_version.is_some() {
            break;
        }
    }
    about
}

/// The databases of a directory, by the names used in its files' names.
#[derive(Default)]
struct Databases {
    names: BTreeMap<String, String>,
    made: usize,
}

impl Databases {
    /// A file as a part to be read.
    fn part<'a>(
        &self,
        directory: &'a Directory,
        name: &str,
        file: &holdfast_formats::dump::metadata::FileName,
    ) -> Result<Part<'a>> {
        let database = match file.kind {
            Kind::Database => None,
            _ => Some(self.names.get(&file.database).cloned().ok_or_else(|| {
                let text = format!(
                    "{} has {name}, and no {}-schema-create.sql that makes its database",
                    directory.path.display(),
                    file.database
                );
                Error::new(ErrorKind::Usage, text)
            })?),
        };
        Ok(Part {
            name: name.to_owned(),
            path: None,
            ending: Ending::Line,
            database,
            directory: Some(directory),
        })
    }

    /// Learns which database was made by the file just read.
    fn learn(
        &mut self,
        file: &holdfast_formats::dump::metadata::FileName,
        reading: &mut Reading<'_>,
    ) -> Result<()> {
        if file.kind != Kind::Database {
            return Ok(());
        }
        let made = &reading.judge.made[self.made.min(reading.judge.made.len())..];
        match made {
            [database] => drop(self.names.insert(file.database.clone(), database.clone())),
            // The server's own, which is left out as a whole.
            [] if is_like_own_schema(&file.database) => {
                self.names.insert(file.database.clone(), file.database.clone());
            }
            _ => {
                let text = format!("{}-schema-create.sql does not make one database", file.database);
                return Err(Error::new(ErrorKind::Usage, text));
            }
        }
        self.made = reading.judge.made.len();
        Ok(())
    }
}

/// Executes the files of a directory, and compares the result with its metadata.
fn execute_directory(
    directory: &Directory,
    reading: &mut Reading<'_>,
    server: &mut PrivateServer,
) -> Result<Counted> {
    let mut databases = Databases::default();
    let mut all = Counted::default();
    let mut rows = BTreeMap::<(String, String), u64>::new();
    for (name, file) in &directory.files {
        let path = directory.path.join(name);
        let part = databases.part(directory, name, file)?;
        // Files of the server's own databases are judged, but not executed.
        let counted = match part.database.as_deref().is_some_and(is_like_own_schema) {
            true => reading.look(&Part { path: Some(&path), ..part })?,
            false => reading.execute(&Part { path: Some(&path), ..part }, server)?,
        };
        databases.learn(file, reading)?;
        all.statements += counted.statements;
        all.rows += counted.rows;
        if let (Kind::Rows, Some(table)) = (file.kind, &file.table) {
            *rows.entry((file.database.clone(), table.clone())).or_default() += counted.rows;
        }
    }
    for (table, told) in &directory.metadata.rows {
        let found = rows.get(table).copied().unwrap_or(0);
        if found != *told && !is_like_own_schema(&table.0) {
            let (database, table) = table;
            return Err(Error::failed(format!(
                "the files of {database}.{table} have {found} rows, and the metadata of the dump says {told}"
            ))
            .hinted("a file is missing, or there is one too many"));
        }
    }
    Ok(all)
}
