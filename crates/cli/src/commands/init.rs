//! `init`: makes a new repository.

use std::fmt::{self, Write as _};

use holdfast_core::{
    Error, ErrorKind, Result,
    doctor::{self, Finding, Verdict},
};
use holdfast_repo::{
    Protection, Repo,
    keys::KdfParams,
    store::{Creation, locks::ObjectLock, writers},
};
use serde::Serialize;

use super::{Context, key_errors, repository};
use crate::{
    args::init::InitArgs,
    exit::Exit,
    output::{Render, text},
    password,
};

#[derive(Serialize)]
struct Made {
    repository_id: String,
    location: String,
    encrypted: bool,
    one_writer: bool,
    created_at: String,
    object_lock: Option<ObjectLock>,
    /// How the bucket treats deleted and overwritten objects; `None` if the store is not a bucket.
    protection: Option<Vec<Finding>>,
}

impl Render for Made {
    fn render(&self, out: &mut String) -> fmt::Result {
        let how = if self.encrypted { "encrypted" } else { "not encrypted" };
        writeln!(out, "made the repository {} ({how})", self.location)?;
        text::fact(out, "id", &self.repository_id)?;
        for finding in self.protection.iter().flatten() {
            let verdict = if finding.verdict == Verdict::Good { "" } else { "notice: " };
            writeln!(out, "{verdict}{}", finding.text)?;
            finding.hint.iter().try_for_each(|hint| out.write_str(&text::hint(hint)))?;
        }
        if self.encrypted {
            writeln!(
                out,
                "Keep a copy of the password away from the server: without it, no backup can be read."
            )?;
        }
        Ok(())
    }
}

pub(super) fn run(args: &InitArgs, context: &Context<'_>) -> Result<Exit> {
    let location = repository::location(context)?;
    let object_lock = match args.object_lock {
        None => None,
        Some(period) => match ObjectLock::new(args.object_lock_mode, period.0) {
            Some(lock) => Some(lock),
            None => {
                let what = format!("--object-lock {period}: a lock lasts from a second to 100 years");
                return Err(Error::new(ErrorKind::Usage, what));
            }
        },
    };
    let password = if args.no_encryption {
        None
    } else {
        let given = password::given(context.global.password_file.as_deref(), &context.config)?;
        Some(password::for_repository(match given {
            Some(password) => password,
            None => password::ask_for_new()?,
        })?)
    };
    context.watch_signals()?;
    let protection = match &password {
        Some(password) => Protection::Password { password, kdf: KdfParams::DEFAULT },
        None => Protection::None,
    };
    let store = repository::new_store(&location, context)?;
    let creation = writers::examine(&*store)
        .map_err(|error| key_errors::of_store(error).context(format_args!("the repository {location}")))?;
    let repo = Repo::init_locked(store, &protection, object_lock)
        .map_err(|error| key_errors::of_keys(error, &location))?;
    let info = repo.info();
    let made = Made {
        repository_id: info.repository_id.to_string(),
        location: repo.store().location(),
        encrypted: password.is_some(),
        one_writer: creation == Creation::Shared,
        created_at: info.created_at.clone(),
        object_lock,
        // The repository exists by now, so a failure to examine it is only reported.
        protection: doctor::protection(&repo).unwrap_or_else(|error| Some(vec![error.into()])),
    };
    if made.one_writer {
        context.output.warning(repository::ONE_WRITER.to_owned());
    }
    context.output.result(Exit::Done, &made);
    Ok(Exit::Done)
}
