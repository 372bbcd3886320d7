//! Makes everything that is neither a table nor its rows, under the settings it was first made under.

use std::collections::BTreeSet;

use super::{
    LoadOptions,
    link::{Link, SQL_MODE},
    object::{Object, Stage},
    plan::{Adaptation, Plan, PlannedSchema, Program},
    progress::{EXISTS, Progress},
    target::{Existing, Target},
};
use crate::{
    error::{Error, Result},
    event::Cancel,
    logical::{
        catalog::accounts::{PUBLIC, names},
        script::accounts,
        sql::{quoted, quoted_text},
        stored::definition::{AccountDefinition, opening},
    },
    points::point,
    server::{
        Session, SqlError, TableName,
        code::{
            COLUMN_ACCESS_DENIED, CONNECTION_KILLED, EVENT_DISABLED, EVENT_GONE, PROGRAM_DENIED,
            QUERY_INTERRUPTED, SERVER_SHUTDOWN, TABLE_ACCESS_DENIED,
        },
    },
};

/// Errors that have nothing to do with the object to be made: a statement was ended; the server shuts down,
/// may not be written to, has no room, no memory, or belongs to a group that will not have it now.
const NOT_OF_THE_OBJECT: [u16; 21] = [
    1004,
    1021,
    1026,
    1030,
    1037,
    1041,
    SERVER_SHUTDOWN,
    1105,
    1114,
    1180,
    1206,
    1290,
    QUERY_INTERRUPTED,
    1792,
    1836,
    CONNECTION_KILLED,
    1969,
    3024,
    3100,
    3101,
    4031,
];
/// MySQL and MariaDB: a function that is not declared deterministic, while there is a binlog.
const UNSAFE_FUNCTION: [u16; 2] = [1418, 1419];

/// A routine, a table, or what another view reads, that the owner of a view may not use.
const NOT_YET: [u16; 4] = [PROGRAM_DENIED, TABLE_ACCESS_DENIED, COLUMN_ACCESS_DENIED, 1356];

/// The results of making routines, views and triggers.
#[derive(Debug, Default)]
pub(super) struct AfterTables {
    pub(super) left_out: Vec<Adaptation>,
    /// Numbers of views whose owners lack a privilege, which may be granted later.
    pub(super) denied: Vec<usize>,
}

/// The results of the end of a load.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) left_out: Vec<Adaptation>,
    pub(super) adapted: Vec<Adaptation>,
    /// Roles to give up ([`give_up_roles`]).
    pub(super) roles: Vec<String>,
}

/// How an event fared if the server did not keep it as told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Gone,
    Disabled,
}

pub(super) struct Programs<'a> {
    pub(super) plan: &'a Plan,
    pub(super) target: &'a Target,
    pub(super) options: &'a LoadOptions,
    pub(super) progress: &'a Progress,
    pub(super) cancel: &'a Cancel,
}

impl Programs<'_> {
    fn is_open(&self, object: usize) -> bool {
        self.progress.stages[object] != Stage::Done
    }

    /// Makes databases, accounts, and the sequences that tables may draw defaults from. Returns what was left
    /// out.
    pub(super) fn before_tables(&self, link: &mut Link) -> Result<Vec<Adaptation>> {
        for schema in &self.plan.schemas {
            self.progress.fence(&mut link.session)?;
            match self.progress.stages[schema.object] {
                Stage::Done => {}
                Stage::Planned => {
                    link.exec(&schema.create)?;
                    self.progress.note(&mut link.session, schema.object, Stage::Made)?;
                }
                // A process that made a program and died may have left another default.
                _ if schema.collation.is_empty() => {}
                _ => link.session.exec(&format!(
                    "ALTER DATABASE {} COLLATE {}",
                    quoted(&schema.name),
                    schema.collation
                ))?,
            }
        }
        point("load.schemas.made");
        for sequence in self.plan.sequences.iter().filter(|sequence| self.is_open(sequence.object)) {
            self.cancel.check()?;
            self.progress.fence(&mut link.session)?;
            let insert = format!("INSERT INTO {} VALUES ({})", sequence.name.quoted(), sequence.state);
            self.refuse_others(link, sequence.object, Existing::Sequence)?;
            self.make(link, sequence.object, |link, is_to_be_dropped| {
                if is_to_be_dropped {
                    self.clear(link, "TABLE", &sequence.name.schema, &sequence.name.table)?;
                }
                link.enter(&sequence.name.schema)?;
                link.exec(&sequence.create)?;
                link.exec(insert.as_bytes()).map(drop)
            })
            .map_err(|error| error.context(format_args!("make sequence {}", sequence.name)))?;
            self.progress.note(&mut link.session, sequence.object, Stage::Done)?;
        }
        // The owners of what follows. Of a role, the account that loads is the administrator until the end:
        // only an administrator may grant it.
        let without_options = |account| AccountDefinition { options: Vec::new(), ..account };
        let ours: Vec<AccountDefinition> = self.accounts().into_iter().map(without_options).collect();
        link.session.exec("START TRANSACTION")?;
        // Not those that existed: a resumed load would take them for its own.
        for account in self.plan.accounts.iter().filter(|account| account.is_ours && !account.is_there) {
            self.progress.note_in_transaction(&mut link.session, account.object, Stage::Begun)?;
        }
        link.session.exec("COMMIT")?;
        let mut left_out = Vec::new();
        for (account, statement) in accounts::creations(&ours) {
            if let Err(error) = link.exec(&statement) {
                left_out.push(self.account_left_out(error, format!("account {account}"))?);
            }
        }
        // An account that existed before keeps its own.
        for account in self.plan.accounts.iter().filter(|account| account.is_ours && !account.is_there) {
            let account = &account.definition;
            let object = format!("the second password of account {}", account.account);
            if left_out.iter().any(|it| it.object == format!("account {}", account.account)) {
                continue;
            }
            if let Some(alter) = &account.alter
                && let Err(error) = link.exec(&alter.0)
            {
                let object = format!("when the password of account {} expires", account.account);
                left_out.push(self.account_left_out(error, object)?);
            }
            // A second password that is not understood was named in the plan.
            for statement in accounts::second_password(account).ok().flatten().into_iter().flatten() {
                if let Err(error) = link.exec(statement.as_bytes()) {
                    left_out.push(self.account_left_out(error, object)?);
                    break;
                }
            }
        }
        Ok(left_out)
    }

    /// Accounts that the load makes.
    fn accounts(&self) -> Vec<AccountDefinition> {
        let ours = self.plan.accounts.iter().filter(|account| account.is_ours);
        ours.map(|account| account.definition.clone()).collect()
    }

    fn make(
        &self,
        link: &mut Link,
        object: usize,
        make: impl FnOnce(&mut Link, bool) -> Result<(), SqlError>,
    ) -> Result<()> {
        self.progress.make(link, (self.target, object), self.options.overwrite, self.plan, make)
    }

    /// Refuses something of another kind in the place of an object that an earlier try was about to make: the load
    /// has not made it.
    fn refuse_others(&self, link: &mut Link, object: usize, kind: Existing) -> Result<()> {
        if self.progress.stages[object] != Stage::Begun || self.options.overwrite {
            return Ok(());
        }
        let Object { schema, name, .. } = &self.plan.objects[object];
        let name = TableName { schema: schema.clone(), table: name.clone() };
        let existing = Target::existing_by_now(&mut link.session, self.target, &name)?;
        if existing.is_none_or(|existing| existing == kind) {
            return Ok(());
        }
        Err(self.progress.leave_to_others(&mut link.session, object, self.plan)?)
    }

    /// Drops the remains of an earlier try, or what is to be overwritten.
    fn clear(&self, link: &mut Link, word: &str, schema: &str, name: &str) -> Result<(), SqlError> {
        let quoted_name = format!("{}.{}", quoted(schema), quoted(name));
        let existing = self.target.existing(schema, name).map(super::target::Existing::word);
        let words = match word {
            "VIEW" | "TABLE" => {
                // A stand-in, or a table to overwrite, has the same name.
                let mut words: Vec<&str> = existing.into_iter().collect();
                words.push(if word == "VIEW" { "VIEW" } else { "TABLE" });
                words.dedup();
                words
            }
            word => vec![word],
        };
        for word in words {
            link.session.exec(&format!("DROP {word} IF EXISTS {quoted_name}"))?;
        }
        Ok(())
    }

    /// An object that the server refuses ends the load or, if the user wants that, is left out and named.
    /// That choice is not part of a load's identity: the same command with it resumes the load.
    fn left_out(&self, error: SqlError, object: String) -> Result<Adaptation> {
        let is_refused = is_refusal_of_program(&error);
        self.left_out_if(is_refused, error, object)
    }

    /// As [`left_out`](Self::left_out), for accounts and their privileges: those that the loading account may not
    /// grant count as refused, too.
    fn account_left_out(&self, error: SqlError, object: String) -> Result<Adaptation> {
        let is_refused = is_refusal(&error);
        self.left_out_if(is_refused, error, object)
    }

    fn left_out_if(&self, is_refused: bool, error: SqlError, object: String) -> Result<Adaptation> {
        if is_refused && self.options.leave_out {
            return Ok(Adaptation { object, what: format!("the target refuses it: {error}") });
        }
        let error = Error::from(error).context(format_args!("make {object}"));
        Err(if is_refused {
            error.also_hinted("the same command with --leave-out continues without it")
        } else {
            error
        })
    }

    /// Grants what an account may do. If that is refused, grants each privilege by itself, so that one that
    /// the server does not know does not take the others with it.
    fn grant(&self, link: &mut Link, statement: &[u8], left_out: &mut Vec<Adaptation>) -> Result<()> {
        let called = |statement: &[u8]| String::from_utf8_lossy(statement).into_owned();
        let Err(error) = link.exec(statement) else { return Ok(()) };
        // Without it the account could do more than on the source.
        if statement.starts_with(b"REVOKE") {
            let error = Error::from(error).context(format_args!("make {}", called(statement)));
            return Err(error.also_hinted(
                "let the target take back parts of what it grants (MySQL: SET GLOBAL partial_revokes = ON), or load without \
                 accounts: --without-accounts, which is another load",
            ));
        }
        let each = accounts::each_privilege(statement);
        if each.is_empty() || !self.options.leave_out || !is_refusal(&error) {
            left_out.push(self.account_left_out(error, called(statement))?);
            return Ok(());
        }
        for statement in each {
            if let Err(error) = link.exec(&statement) {
                left_out.push(self.account_left_out(error, called(&statement))?);
            }
        }
        Ok(())
    }

    /// Makes routines, views and triggers.
    pub(super) fn after_tables(&self, link: &mut Link) -> Result<AfterTables> {
        let (mut left_out, mut denied) = (Vec::new(), Vec::new());
        for routine in &self.plan.routines {
            self.program(link, routine, &mut left_out)?;
        }
        point("load.routines.made");
        // A view may need any other, but needs only its columns.
        for view in self.plan.views.iter().filter(|view| self.is_open(view.object)) {
            self.cancel.check()?;
            let columns: Vec<String> =
                view.columns.iter().map(|name| format!("1 AS {}", quoted(name))).collect();
            let (schema, name) = (quoted(&view.schema), quoted(&view.name));
            let create = format!("CREATE VIEW {schema}.{name} AS SELECT {}", columns.join(", "));
            self.refuse_others(link, view.object, Existing::View)?;
            self.make(link, view.object, |link, is_to_be_dropped| {
                if is_to_be_dropped {
                    self.clear(link, "VIEW", &view.schema, &view.name)?;
                }
                link.exec(create.as_bytes()).map(drop)
            })?;
        }
        point("load.views.begun");
        for (number, view) in self.plan.views.iter().enumerate().filter(|(_, view)| self.is_open(view.object))
        {
            match self.view(link, view)? {
                // MariaDB asks whether the view's owner may call its functions.
                Err(error) if error.code().is_some_and(|code| NOT_YET.contains(&code)) => denied.push(number),
                made => self.end_view(link, view, made, &mut left_out)?,
            }
        }
        for trigger in &self.plan.triggers {
            self.program(link, trigger, &mut left_out)?;
        }
        Ok(AfterTables { left_out, denied })
    }

    /// Makes a view in place of its stand-in.
    fn view(&self, link: &mut Link, view: &Program) -> Result<Result<(), SqlError>> {
        self.progress.fence(&mut link.session)?;
        link.enter(&view.schema)?;
        link.session.exec(&format!(
            "SET SESSION character_set_client = {}, collation_connection = {}",
            view.context.charset, view.context.collation
        ))?;
        let rest = view.create.strip_prefix(b"CREATE ").unwrap_or(&view.create);
        let made = link.exec(&[b"CREATE OR REPLACE ", rest].concat());
        link.session.exec("SET NAMES utf8mb4")?;
        Ok(made.map(drop))
    }

    fn end_view(
        &self,
        link: &mut Link,
        view: &Program,
        made: Result<(), SqlError>,
        left_out: &mut Vec<Adaptation>,
    ) -> Result<()> {
        let stage = match made {
            Ok(()) => Stage::Done,
            Err(error) => {
                left_out.push(self.left_out(error, format!("view {}.{}", view.schema, view.name))?);
                // A stand-in that stayed would answer with rows that never existed.
                let (schema, name) = (quoted(&view.schema), quoted(&view.name));
                link.session.exec(&format!("DROP VIEW IF EXISTS {schema}.{name}"))?;
                Stage::Planned
            }
        };
        self.progress.note(&mut link.session, view.object, stage)
    }

    /// Grants privileges and roles to accounts, makes the views that could not be made without, and then events,
    /// which may run from now on. `denied`: the numbers of those views.
    pub(super) fn at_the_end(&self, link: &mut Link, denied: &[usize]) -> Result<Ended> {
        let mut ended = Ended::default();
        self.grants(link, &mut ended)?;
        for view in denied.iter().filter_map(|number| self.plan.views.get(*number)) {
            let made = self.view(link, view)?;
            self.end_view(link, view, made, &mut ended.left_out)?;
        }
        if let Some(at) = self.options.events_as_of {
            link.session.exec(&format!("SET SESSION timestamp = {}", at.as_second()))?;
        }
        for event in &self.plan.events {
            let object = format!("event {}.{}", event.schema, event.name);
            match self.program(link, event, &mut ended.left_out)? {
                Some(Passed::Gone) => {
                    let what = "its time has passed, and the server has not made it".to_owned();
                    ended.left_out.push(Adaptation { object, what });
                }
                Some(Passed::Disabled) => {
                    let what = "its time has passed, and the server has disabled it".to_owned();
                    ended.adapted.push(Adaptation { object, what });
                }
                None => {}
            }
        }
        link.session.exec("SET SESSION timestamp = DEFAULT")?;
        Ok(ended)
    }

    /// Grants privileges and roles to the load's accounts. By such a grant MariaDB would create accounts that
    /// were left out, without a password.
    fn grants(&self, link: &mut Link, ended: &mut Ended) -> Result<()> {
        let left_out = &mut ended.left_out;
        let ours = self.accounts();
        if ours.is_empty() {
            return Ok(());
        }
        let there = names(&mut link.session)?;
        for account in ours {
            if account.account != PUBLIC && !there.contains(&account.account) {
                let object = format!("what account {} may do", account.account);
                left_out.push(Adaptation { object, what: "the account does not exist".to_owned() });
                continue;
            }
            for statement in accounts::grants(&[account]) {
                self.grant(link, &statement, left_out)?;
            }
        }
        ended.roles = self.hand_over_roles(link, &there, left_out)?;
        Ok(())
    }

    /// MariaDB: makes the administrators of the load's roles those that the source has. Returns the roles whose
    /// administrator the loading account is to be no longer.
    fn hand_over_roles(
        &self,
        link: &mut Link,
        there: &BTreeSet<String>,
        left_out: &mut Vec<Adaptation>,
    ) -> Result<Vec<String>> {
        let made = self.plan.accounts.iter().filter(|account| account.is_ours && !account.is_there);
        let roles = made.map(|account| &account.definition).filter(|it| it.is_role && it.account != PUBLIC);
        let us = current_account(&mut link.session)?;
        let mut handed_over = Vec::new();
        for role in roles {
            let admin = role.options.iter().find_map(|option| option.0.strip_prefix(b"WITH ADMIN "));
            let admin = admin.map(|admin| String::from_utf8_lossy(admin).into_owned());
            // Without one, somebody must be able to grant it.
            if let Some(admin) = admin.filter(|admin| *admin != us && there.contains(admin)) {
                let grant = format!("GRANT {} TO {admin} WITH ADMIN OPTION", role.account);
                self.grant(link, grant.as_bytes(), left_out)?;
                handed_over.push(role.account.clone());
            }
        }
        // What the backup grants to this very account stays.
        let is_of_backup =
            self.plan.accounts.iter().any(|account| account.is_ours && account.definition.account == us);
        if is_of_backup {
            handed_over.clear();
        }
        Ok(handed_over)
    }

    fn schema(&self, program: &Program) -> Option<&PlannedSchema> {
        let is_its = |schema: &&PlannedSchema| {
            let is_ours = self.progress.stages[schema.object] != Stage::Done;
            schema.name == program.schema && is_ours && !schema.collation.is_empty()
        };
        self.plan.schemas.iter().find(is_its)
    }

    fn program(
        &self,
        link: &mut Link,
        program: &Program,
        left_out: &mut Vec<Adaptation>,
    ) -> Result<Option<Passed>> {
        if !self.is_open(program.object) {
            return Ok(None);
        }
        self.cancel.check()?;
        self.progress.fence(&mut link.session)?;
        let (mut refused, mut passed, mut is_unsafe) = (None, None, false);
        let made = self.make(link, program.object, |link, is_to_be_dropped| {
            match self.create(link, program, is_to_be_dropped) {
                Ok(made) => passed = made,
                Err(error) if is_refusal_of_program(&error) => refused = Some(error),
                Err(error) => {
                    is_unsafe = error.code().is_some_and(|code| UNSAFE_FUNCTION.contains(&code));
                    return Err(error);
                }
            }
            Ok(())
        });
        let object = format!("{} {}.{}", program.word.to_lowercase(), program.schema, program.name);
        made.map_err(|error| {
            let error = error.context(format_args!("make {object}"));
            match is_unsafe {
                true => error.hinted(
                    "SET GLOBAL log_bin_trust_function_creators = 1 for the time of the load, then run the same command again",
                ),
                false => error,
            }
        })?;
        if let Some(error) = refused {
            // Nothing exists that the next try would have to drop.
            self.progress.note(&mut link.session, program.object, Stage::Planned)?;
            left_out.push(self.left_out(error, object)?);
            return Ok(None);
        }
        self.progress.note(&mut link.session, program.object, Stage::Done)?;
        Ok(passed)
    }

    fn create(
        &self,
        link: &mut Link,
        program: &Program,
        is_to_be_dropped: bool,
    ) -> Result<Option<Passed>, SqlError> {
        link.enter(&program.schema)?;
        let context = &program.context;
        let had = Some(context.schema_collation.as_str()).filter(|had| !had.is_empty());
        let schema = self.schema(program);
        let differs = schema.is_some_and(|schema| had.is_some_and(|had| had != schema.collation));
        if let Some(had) = had.filter(|_| differs) {
            link.session.exec(&format!("ALTER DATABASE {} COLLATE {had}", quoted(&program.schema)))?;
        }
        let made = self.create_anew(link, program, is_to_be_dropped);
        link.session.exec("SET NAMES utf8mb4")?;
        link.session.exec(&format!("SET SESSION time_zone = '+00:00', sql_mode = '{SQL_MODE}'"))?;
        if let Some(schema) = schema.filter(|_| differs) {
            let (name, collation) = (quoted(&schema.name), &schema.collation);
            link.session.exec(&format!("ALTER DATABASE {name} COLLATE {collation}"))?;
        }
        made
    }

    /// Makes it, after clearing its place.
    fn create_anew(
        &self,
        link: &mut Link,
        program: &Program,
        is_to_be_dropped: bool,
    ) -> Result<Option<Passed>, SqlError> {
        let clear = |link: &mut Link| match is_to_be_dropped {
            true => self.clear(link, &program.word, &program.schema, &program.name),
            false => Ok(()),
        };
        let Some(table) = &program.table else {
            // MariaDB recognizes packages only under the mode they were made under.
            return create_under(link, program, clear);
        };
        clear(link)?;
        if let Some(opening) = opening(&table.quoted(), &program.context) {
            // The next statement shows whether the trigger can be made.
            drop(link.session.exec(&opening));
        }
        create_under(link, program, |_| Ok(()))
    }
}

/// Takes from the loading account the roles that it has made and that another account administers. The load has
/// ended: one that continues would need them.
pub(super) fn give_up_roles(session: &mut Session, roles: &[String]) -> Result<()> {
    if roles.is_empty() {
        return Ok(());
    }
    let us = current_account(session)?;
    let query = "SELECT role AS r, user AS u, host AS h FROM mysql.roles_mapping WHERE admin_option = 'Y'";
    let mapped = match session.rows(query) {
        Err(error) if error.is_denied() => return Ok(()),
        rows => rows?,
    };
    let mut admins: Vec<(String, String)> = Vec::new();
    for row in mapped {
        let account = format!("{}@{}", quoted_text(row.text("u")?), quoted_text(row.text("h")?));
        admins.push((quoted_text(row.text("r")?), account));
    }
    for role in roles {
        let of_role = |(other, _): &&(String, String)| other == role;
        let (ours, others): (Vec<_>, Vec<_>) =
            admins.iter().filter(of_role).partition(|(_, account)| *account == us);
        if !ours.is_empty() && !others.is_empty() {
            session.exec(&format!("REVOKE {role} FROM {us}"))?;
        }
    }
    Ok(())
}

/// The account of a session, as definitions name it.
fn current_account(session: &mut Session) -> Result<String, SqlError> {
    let us = session.value("SELECT CURRENT_USER()")?.unwrap_or_default();
    let (user, host) = us.rsplit_once('@').unwrap_or((&us, ""));
    Ok(format!("{}@{}", quoted_text(user), quoted_text(host)))
}

/// Makes a program under the settings it was first made under, after calling `before` under the same.
fn create_under(
    link: &mut Link,
    program: &Program,
    before: impl FnOnce(&mut Link) -> Result<(), SqlError>,
) -> Result<Option<Passed>, SqlError> {
    let context = &program.context;
    if let Some(time_zone) = &program.time_zone {
        link.session.exec(&format!("SET SESSION time_zone = {}", quoted_text(time_zone)))?;
    }
    link.session.exec(&format!(
        "SET SESSION sql_mode = {}, character_set_client = {}, collation_connection = {}",
        quoted_text(context.sql_mode.as_deref().unwrap_or_default()),
        context.charset,
        context.collation
    ))?;
    before(link)?;
    let done = link.exec(&program.create)?;
    match program.word.as_str() {
        // Warnings of the statement just executed.
        "EVENT" if done.warnings > 0 => passed(link),
        _ => Ok(None),
    }
}

/// Whether the server will refuse an object, whenever it is asked.
fn is_refusal(error: &SqlError) -> bool {
    let is_other = |code: &u16| NOT_OF_THE_OBJECT.contains(code) || EXISTS.contains(code);
    !error.is_lock_timeout() && error.code().is_some_and(|code| !is_other(&code))
}

/// Whether the server will refuse an object other than an account, or a foreign key, whenever it is asked: missing
/// rights and settings, which only have to be given, do not count.
pub(super) fn is_refusal_of_program(error: &SqlError) -> bool {
    let others = |code: u16| code == PROGRAM_DENIED || UNSAFE_FUNCTION.contains(&code);
    is_refusal(error) && !error.is_denied() && !error.code().is_some_and(others)
}

/// Whether the time of an event that was just made had passed already.
fn passed(link: &mut Link) -> Result<Option<Passed>, SqlError> {
    for row in link.session.rows("SHOW WARNINGS")? {
        match row.number("Code")? {
            EVENT_GONE => return Ok(Some(Passed::Gone)),
            EVENT_DISABLED => return Ok(Some(Passed::Disabled)),
            _ => {}
        }
    }
    Ok(None)
}
