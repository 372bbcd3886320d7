//! `show`: prints everything in the head of a backup.

use std::fmt;

use holdfast_core::{
    Error, Result,
    head::{self, read_head},
    logical::{ReadFacts, ViewFacts, import::Origin},
};
use holdfast_repo::{Act, RunNo, format::manifest::Head};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    Context,
    copy::CopyShown,
    hold::HoldShown,
    report::{position_facts, rows_fact, view_facts},
    repository, select,
};
use crate::{
    args::{
        inspect::ShowArgs,
        units::{ByteSize, Span},
    },
    exit::Exit,
    output::{Render, text},
};

#[derive(Serialize)]
struct Shown {
    id: String,
    /// The host that made it, for text output.
    host: String,
    /// Name of the key that it was added with.
    key: String,
    /// The role of that key.
    #[serde(skip)]
    role: &'static str,
    /// Why `expire` does not drop it; null if it may.
    hold: Option<HoldShown>,
    /// The backup that it is a copy of; null if it was taken into this repository.
    copy_of: Option<CopyShown>,
    head: Head,
}

impl Render for Shown {
    fn render(&self, out: &mut String) -> fmt::Result {
        let Head { server, totals, .. } = &self.head;
        let took = Span(text::duration(self.head.started_at, self.head.finished_at));
        text::fact(out, "backup", format!("{} ({})", self.id, self.head.method))?;
        text::fact(
            out,
            "taken",
            format!(
                "{} to {} UTC, {took}, on {}",
                text::instant(self.head.started_at),
                text::instant(self.head.finished_at),
                self.host
            ),
        )?;
        text::fact(out, "added with", format!("the {}'s key {}", self.role, self.key))?;
        if !self.head.tags.is_empty() {
            text::fact(out, "tags", self.head.tags.join(" "))?;
        }
        if let Some(hold) = &self.hold {
            text::fact(out, "held", format!("{hold} (since {})", text::instant(hold.since())))?;
        }
        if let Some(copy_of) = &self.copy_of {
            text::fact(out, "copy of", copy_of)?;
        }
        if !self.head.flags.is_empty() {
            text::fact(out, "flags", self.head.flags.join(" "))?;
        }
        for (what, names) in head::selection(&self.head) {
            text::fact(out, what, names.join("\n"))?;
        }
        if let Some(version) = head::server_version(&self.head) {
            text::fact(out, "server", &version)?;
        }
        for part in ["identity", "innodb"] {
            if let Some(Value::Object(values)) = server.get(part) {
                text::fact(out, part, short_values(values))?;
            }
        }
        for (name, value) in Origin::of(&self.head).iter().flat_map(Origin::facts) {
            text::fact(out, name, value)?;
        }
        if let Some(position) = head::position(&self.head) {
            position_facts(out, &position)?;
        }
        if let Some(redo) = &self.head.redo {
            text::fact(out, "redo", short_values(redo))?;
        }
        match ViewFacts::of(&self.head) {
            Some(view) => {
                view_facts(out, &view)?;
                rows_fact(out, &ReadFacts::of(&self.head))?;
            }
            None => {
                let files = text::count(totals.files, "file");
                text::fact(out, "size", format!("{} in {files}", ByteSize(totals.bytes)))?;
            }
        }
        text::fact(out, "new", format!("{} that the base did not have", ByteSize(totals.bytes_new)))?;
        text::fact(out, "reused", ByteSize(totals.bytes_reused))?;
        if totals.bytes_adopted > 0 {
            text::fact(
                out,
                "taken up",
                format!("{} from a run that did not finish", ByteSize(totals.bytes_adopted)),
            )?;
        }
        if totals.bytes_rewritten > 0 {
            text::fact(out, "stored again", ByteSize(totals.bytes_rewritten))?;
        }
        let packs = text::count(totals.packs, "pack");
        text::fact(out, "stored", format!("{} in {packs}", ByteSize(totals.bytes_stored)))?;
        if let Some(base) = self.head.base {
            text::fact(out, "base", RunNo(base))?;
        }
        Ok(())
    }
}

pub(super) fn run(args: &ShowArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = repository::open_for(context, Act::Read, "to show a backup")?;
    let chosen = select::backup(context, &repo, &args.id, args.name.name.as_ref())?;
    let head = read_head(&repo, &chosen.history, chosen.run)?;
    let no_such = || Error::failed(format!("backup {} is gone", chosen.run));
    let outcome = chosen.history.outcome(chosen.run).ok_or_else(no_such)?;
    let hold = HoldShown::of(&chosen.history, chosen.run);
    let copy_of = CopyShown::of(&chosen.history, chosen.run);
    let shown = Shown {
        id: chosen.log().backup_id(chosen.run),
        host: outcome.host.clone(),
        key: outcome.author.key_id.to_string(),
        role: outcome.author.role.as_str(),
        hold,
        copy_of,
        head,
    };
    context.output.result(Exit::Done, &shown);
    Ok(Exit::Done)
}

/// Formats the values that fit on a line as `name=value`; long ones such as hex dumps of headers
/// are only in JSON output.
fn short_values(values: &Map<String, Value>) -> String {
    const SHORT: usize = 60;
    let lines: Vec<String> = values
        .iter()
        .filter(|(_, value)| !value.is_null() && !value.is_object() && !value.is_array())
        .map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .filter(|(_, value)| !value.is_empty() && value.len() <= SHORT)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    lines.join("\n")
}
