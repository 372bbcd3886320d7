//! Plans the objects that have a text of their own: routines, views, triggers and events; and accounts.

use std::collections::BTreeSet;

use super::{
    super::{
        object::ObjectKind,
        plan::{PlannedAccount, Program},
    },
    Maker,
};
use crate::{
    logical::{
        script::accounts::second_password,
        selection::is_own_schema,
        sql::{Kind, Token, tokens},
        stored::{
            contents::Contents,
            definition::{
                AccountDefinition, Context, Definition, EventDefinition, ProgramDefinition, ServerDefinition,
                TriggerDefinition, ViewDefinition,
            },
            uses::{self, Used},
        },
    },
    server::TableName,
};

/// Whether an event is disabled as on a replica. Servers print this for each event that came from a primary;
/// once the primary is lost, nobody runs it.
fn is_disabled_as_on_a_replica(create: &[u8]) -> bool {
    let all = tokens(create);
    let head = all.iter().take_while(|token| !token.is_word("DO"));
    let head: Vec<_> = head.filter(|token| token.kind != Kind::Space).collect();
    head.windows(3).any(|words| {
        let is_replica = ["SLAVE", "REPLICA"].iter().any(|word| words[2].is_word(word));
        words[0].is_word("DISABLE") && words[1].is_word("ON") && is_replica
    })
}

/// The statement of an enabled event, changed to disabled. Servers print `ENABLE` after what follows
/// completion.
fn disabled(create: &[u8]) -> Option<Vec<u8>> {
    let all = tokens(create);
    let body = all.iter().position(|token| token.is_word("DO"))?;
    let preserve = all[..body].iter().position(|token| token.is_word("PRESERVE"))?;
    let enable = preserve + all[preserve..body].iter().position(|token| token.is_word("ENABLE"))?;
    let bytes =
        |tokens: &[Token<'_>]| tokens.iter().flat_map(|token| token.bytes.to_vec()).collect::<Vec<u8>>();
    Some([&bytes(&all[..enable])[..], b"DISABLE", &bytes(&all[enable + 1..])].concat())
}

impl Program {
    /// Sets the fields that all programs have. The object is known once nothing is left to refuse.
    fn new(word: &str, schema: String, name: String, create: Vec<u8>, context: Context) -> Self {
        let word = word.to_owned();
        Self {
            object: 0,
            word,
            schema,
            name,
            create,
            context,
            columns: Vec::new(),
            time_zone: None,
            table: None,
        }
    }
}

impl Maker<'_> {
    pub(super) fn programs(&mut self, contents: Contents, source: Option<&ServerDefinition>) {
        let Contents { routines, mut views, triggers, events, accounts, .. } = contents;
        routines.into_iter().for_each(|routine| self.routine(routine));
        self.sift_views(&mut views);
        views.into_iter().for_each(|view| self.view(view));
        triggers.into_iter().for_each(|trigger| self.trigger(trigger));
        events.into_iter().for_each(|event| self.event(event));
        if accounts.is_empty() {
            return;
        }
        let why = match self.options.renames.is_empty() {
            true => self.adapter.refuses_accounts(source),
            false => Some("they name databases that have other names now".to_owned()),
        };
        match why {
            Some(why) => self.leave_out("accounts (--without-accounts)", why),
            None => accounts.into_iter().for_each(|account| self.account(account)),
        }
    }

    fn routine(&mut self, routine: ProgramDefinition) {
        let schema = self.options.renames.schema(&routine.schema).to_owned();
        let kind = Definition::Routine(routine.clone()).kind();
        let label = format!("{kind} {}", routine.name);
        let program = Program::new(&routine.kind, schema, routine.name, routine.create.0, routine.context);
        let program = self.program(program, ObjectKind::Routine, label);
        self.plan.routines.extend(program);
    }

    fn view(&mut self, view: ViewDefinition) {
        let renames = &self.options.renames;
        let (schema, name) = renames.table(&view.schema, &view.name);
        let create = renames.in_statement(&view.create.0);
        let program = Program {
            columns: view.columns,
            ..Program::new("VIEW", schema, name.clone(), create, view.context)
        };
        let program = self.program(program, ObjectKind::View, name);
        self.plan.views.extend(program);
    }

    fn trigger(&mut self, trigger: TriggerDefinition) {
        let renames = &self.options.renames;
        let (schema, table) = renames.table(&trigger.schema, &trigger.table);
        let label = format!("trigger {schema}.{}", trigger.name);
        if !self.plan.tables.iter().any(|it| it.name.schema == schema && it.name.table == table) {
            return self.leave_out(&label, "its table is not loaded");
        }
        if renames.has_table(&trigger.schema, &trigger.table) {
            return self.leave_out(&label, "its text names a table that has another name now");
        }
        let name = trigger.name.clone();
        let program = Program {
            table: Some(TableName { schema: schema.clone(), table }),
            ..Program::new("TRIGGER", schema, trigger.name, trigger.create.0, trigger.context)
        };
        let program = self.program(program, ObjectKind::Trigger, name);
        self.plan.triggers.extend(program);
    }

    fn event(&mut self, mut event: EventDefinition) {
        let schema = self.options.renames.schema(&event.schema).to_owned();
        if self.unknown_time_zones.contains(&event.time_zone) {
            let label = format!("event {schema}.{}", event.name);
            let what = format!(
                "the target does not know its time zone {} (mysql_tzinfo_to_sql loads them)",
                event.time_zone
            );
            return self.leave_out(&label, what);
        }
        if self.options.disable_events
            && let Some(create) = disabled(&event.create.0)
        {
            event.create.0 = create;
            let what = "it is disabled (--disable-events): to run it, ALTER EVENT .. ENABLE";
            self.adapted(&format!("event {schema}.{}", event.name), vec![what.to_owned()]);
        }
        if is_disabled_as_on_a_replica(&event.create.0) {
            let what =
                "it was disabled as on a replica, and stays disabled here: to run it, ALTER EVENT .. ENABLE";
            self.adapted(&format!("event {schema}.{}", event.name), vec![what.to_owned()]);
        }
        let name = event.name.clone();
        let program = Program {
            time_zone: Some(event.time_zone),
            ..Program::new("EVENT", schema, event.name, event.create.0, event.context)
        };
        let program = self.program(program, ObjectKind::Event, name);
        self.plan.events.extend(program);
    }

    fn account(&mut self, definition: AccountDefinition) {
        if let Err(why) = second_password(&definition) {
            self.leave_out(&format!("the second password of account {}", definition.account), why);
        }
        let object = self.object(ObjectKind::Account, "", &definition.account);
        self.plan.accounts.push(PlannedAccount { object, definition, is_ours: false, is_there: false });
    }

    /// Takes out views that could not be used here: those that could not be used on the source, and those
    /// over something that is neither on the target nor loaded. Views that others use come before them.
    fn sift_views(&mut self, views: &mut Vec<ViewDefinition>) {
        let renames = self.options.renames.clone();
        let target = self.target;
        let folded = |schema: &str, name: &str| (target.folded(schema), target.folded(name));
        let schemas: BTreeSet<String> =
            self.plan.schemas.iter().map(|schema| target.folded(&schema.name)).collect();
        let mut loaded: BTreeSet<(String, String)> = BTreeSet::new();
        loaded.extend(self.plan.tables.iter().map(|it| folded(&it.name.schema, &it.name.table)));
        loaded.extend(self.plan.sequences.iter().map(|it| folded(&it.name.schema, &it.name.table)));
        let routines: BTreeSet<(String, String)> = self
            .plan
            .routines
            .iter()
            .map(|routine| (target.folded(&routine.schema), routine.name.to_lowercase()))
            .collect();
        views.retain(|view| {
            let (schema, name) = renames.table(&view.schema, &view.name);
            let label = format!("view {schema}.{name}");
            if view.columns.is_empty() {
                self.leave_out(&label, "it could not be used when it was saved");
                return false;
            }
            let is_there = |used: &Used| {
                let database = target.folded(&used.schema);
                // Nothing is known about the server's own databases, or about a name that may not be a
                // database.
                if is_own_schema(&database)
                    || !schemas.contains(&database) && !target.schemas.contains_key(&database)
                {
                    return true;
                }
                let place = folded(&used.schema, &used.name);
                place == folded(&schema, &name)
                    || loaded.contains(&place)
                    || routines.contains(&(database, used.name.to_lowercase()))
                    || target.existing(&used.schema, &used.name).is_some()
                    || ["function", "package"]
                        .iter()
                        .any(|kind| target.has_program(kind, &used.schema, &used.name))
            };
            if uses::aliases(&view.create.0).iter().any(|alias| renames.concerns(alias)) {
                self.leave_out(&label, "its text uses the name of a renamed database for something else");
                return false;
            }
            let create = renames.in_statement(&view.create.0);
            if let Some(used) = uses::used(&create).iter().find(|used| !is_there(used)) {
                let what =
                    format!("it uses {}.{}, which neither exists nor is loaded", used.schema, used.name);
                self.leave_out(&label, what);
                return false;
            }
            loaded.insert(folded(&schema, &name));
            true
        });
    }

    /// Notes a change of collation: programs are made under the default of their database, and one that
    /// existed keeps its own.
    fn other_collation(&self, program: &Program) -> Option<String> {
        let schema = self.plan.schemas.iter().find(|schema| schema.name == program.schema)?;
        let there = self.target.schemas.get(&self.target.folded(&schema.name))?;
        let had = &program.context.schema_collation;
        let is_other = !schema.is_ours && *there != schema.collation && !had.is_empty() && there != had;
        is_other.then(|| {
            format!("it is made under {there}, the default collation of the existing database, not {had}")
        })
    }

    /// Adapts a program to the target, and adds it to the objects, which know it as `name`.
    fn program(&mut self, mut program: Program, kind: ObjectKind, name: String) -> Option<Program> {
        let label = format!("{} {}.{}", program.word.to_lowercase(), program.schema, program.name);
        if kind != ObjectKind::View && self.options.renames.may_be_meant_in(&program.create) {
            self.leave_out(&label, "its text names a database in which something has another name now");
            return None;
        }
        match self.adapter.program(&mut program, kind) {
            Ok(mut notes) => {
                notes.extend(self.other_collation(&program));
                self.adapted(&label, notes);
            }
            Err(why) => {
                self.leave_out(&label, why);
                return None;
            }
        }
        program.object = self.object(kind, &program.schema, &name);
        Some(program)
    }
}
