//! `doctor`: finds problems and says how to fix them.

use std::{
    fmt::{self, Write as _},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
};

use holdfast_core::{
    Error, ErrorKind, Result,
    doctor::{self, AgeMax, Asked, Finding, Verdict},
};
use holdfast_repo::{Kind, Repo};
use serde::Serialize;

use super::{Context, backup_options, repository, select};
use crate::{
    args::doctor::DoctorArgs,
    exit::Exit,
    output::{Render, text},
};

/// Findings by subject.
#[derive(Default, Serialize)]
struct Examined {
    configuration: Vec<Finding>,
    repository: Vec<Finding>,
    server: Vec<Finding>,
}

impl Examined {
    fn parts(&self) -> [(&'static str, &[Finding]); 3] {
        [("configuration", &self.configuration), ("repository", &self.repository), ("server", &self.server)]
    }

    fn count(&self, verdict: Verdict) -> u64 {
        let findings = self.parts().into_iter().flat_map(|(_, findings)| findings);
        findings.filter(|finding| finding.verdict == verdict).count() as u64
    }
}

impl Render for Examined {
    fn render(&self, out: &mut String) -> fmt::Result {
        for (subject, findings) in self.parts() {
            if findings.is_empty() {
                continue;
            }
            writeln!(out, "{subject}")?;
            for finding in findings {
                let verdict = match finding.verdict {
                    Verdict::Good => "  good",
                    Verdict::Notice => "  notice",
                    Verdict::Problem => "  PROBLEM",
                };
                text::fact(out, verdict, &finding.text)?;
                if let Some(hint) = &finding.hint {
                    text::fact(out, "", hint.replace('\n', "\n  "))?;
                }
            }
        }
        match (self.count(Verdict::Problem), self.count(Verdict::Notice)) {
            (0, 0) => writeln!(out, "nothing is wrong"),
            (0, notices) => writeln!(out, "no problems, {}", text::count(notices, "notice")),
            (problems, notices) => {
                writeln!(out, "{}, {}", text::count(problems, "problem"), text::count(notices, "notice"))
            }
        }
    }
}

pub(super) fn run(args: DoctorArgs, context: &Context<'_>) -> Result<Exit> {
    let mut examined = Examined::default();
    let (global, config) = (&context.global, &context.config);
    let secrets = [
        global.password_file.as_ref().or(config.password_file.as_ref()),
        global.identity.as_ref().or(config.identity.as_ref()),
        args.source.server_password_file.as_ref().or(config.source.server_password_file.as_ref()),
    ];
    examined.configuration.extend(secrets.into_iter().flatten().filter_map(|path| secret_file(path)));
    if args.kind.contains(&Kind::Binlog) {
        let error = Error::new(ErrorKind::Usage, "--kind is for backups, physical or logical");
        return Err(error.hinted("--max-lag checks whether binlogs are being archived"));
    }
    let asked = Asked {
        // A server that is being examined may have no backup yet.
        name: args.name.clone().filter(|_| args.no_server),
        age_max: AgeMax { age: args.max_age.map(|age| age.0), kinds: args.kind.clone() },
        lag_max: args.max_lag.map(|lag| lag.0),
        is_to_be_written: !args.no_server,
    };
    let repo = examine_repository(context, &asked, &mut examined)?;
    if !args.no_server {
        match backup_options::of_doctor(args, context) {
            Ok(options) => examined.server = doctor::server(&options, repo.as_ref()),
            Err(error) => examined.configuration.push(error.into()),
        }
    }
    let exit = if examined.count(Verdict::Problem) == 0 { Exit::Done } else { Exit::Finding };
    context.output.result(exit, &examined);
    Ok(exit)
}

/// Examines the repository, if one is named and can be opened.
fn examine_repository(
    context: &Context<'_>,
    asked: &Asked,
    examined: &mut Examined,
) -> Result<Option<Arc<Repo>>> {
    if let Err(error) = repository::location(context) {
        examined.configuration.push(error.into());
        return Ok(None);
    }
    let repo = match repository::open(context) {
        Ok(repo) => Arc::new(repo),
        Err(error) => {
            examined.repository.push(error.into());
            return Ok(None);
        }
    };
    if asked.name.is_some()
        && let Err(error) = select::logs_named(&repo, asked.name.as_ref())
    {
        examined.repository.push(error.into());
        return Ok(Some(repo));
    }
    match doctor::repository(&repo, asked, context.cancel) {
        Ok(findings) => examined.repository = findings,
        Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
        Err(error) => examined.repository.push(error.into()),
    }
    Ok(Some(repo))
}

/// Warns about a secret file that others can read: a reader can do whatever its key can.
fn secret_file(path: &Path) -> Option<Finding> {
    const OF_OTHERS: u32 = 0o077;
    let mode = std::fs::metadata(path).ok()?.mode();
    (mode & OF_OTHERS != 0).then(|| {
        let text = format!("{} can be read by others (mode {:o})", path.display(), mode & 0o777);
        let hint = format!("chmod 600 {}", path.display());
        Finding { verdict: Verdict::Notice, ..Error::failed(text).hinted(hint).into() }
    })
}
