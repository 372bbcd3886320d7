//! Switches MySQL's `local_infile` on while rows are loaded: `LOAD DATA LOCAL` costs the server less than any
//! `INSERT`.
//!
//! It applies to all clients of the server, so it is switched on only if asked for, and off again before a
//! load has ended, successfully or not. That it was off is noted with the load: if this process is killed,
//! the one that takes the load up switches it off. A server that is restarted has its own value again.

use holdfast_formats::Flavor;

use super::{
    LoadOptions,
    link::Link,
    progress::Progress,
    target::{Target, Way},
};
use crate::error::{Error, ErrorKind, Result};

/// Either of these may change it, as any setting of a server.
const PRIVILEGES: [&str; 2] = ["SYSTEM_VARIABLES_ADMIN", "SUPER"];

/// Smaller loads get no hint about a faster way.
const WORTH_A_WORD_BYTES: u64 = 64 << 20;

/// A `local_infile` that was off before this load.
#[must_use]
pub(super) struct InfileOn;

/// Refuses what is impossible on the target, before anything is changed.
pub(super) fn refuse(target: &Target, options: &LoadOptions) -> Result<()> {
    if !options.enable_local_infile {
        return Ok(());
    }
    if target.flavor != Flavor::MySql {
        let text = "--enable-local-infile: rows go into MariaDB as parameters, which costs it less";
        return Err(Error::new(ErrorKind::Usage, text));
    }
    if target.has_local_infile || PRIVILEGES.iter().any(|privilege| target.privileges.has(privilege)) {
        return Ok(());
    }
    let text = "--enable-local-infile: the account may not switch local_infile on".to_owned();
    let grant = target.privileges.missing(&PRIVILEGES[..1], "*").unwrap_or_default();
    Err(Error::new(ErrorKind::Server, text)
        .hinted(format!("{grant}\nor have SET GLOBAL local_infile = ON executed for the time of the load")))
}

/// How rows of most tables will be sent.
pub(super) fn way(target: &Target, options: &LoadOptions) -> Way {
    if options.enable_local_infile { Way::LoadData } else { target.way() }
}

/// The hint to give if it would help.
pub(super) fn would_help(flavor: Flavor, way: Way, row_bytes: u64) -> Option<String> {
    let would_help = flavor == Flavor::MySql && way != Way::LoadData && row_bytes >= WORTH_A_WORD_BYTES;
    would_help.then(|| {
        "rows cost the server less by LOAD DATA: --enable-local-infile, or local_infile = ON on the target"
            .to_owned()
    })
}

/// Switches it on, if asked for. If an earlier process has done so, it is switched off when this one ends.
pub(super) fn switch_on(
    link: &mut Link,
    progress: &Progress,
    target: &mut Target,
    options: &LoadOptions,
) -> Result<Option<InfileOn>> {
    let is_asked_for = options.enable_local_infile && !target.has_local_infile;
    if is_asked_for {
        if !progress.set_local_infile(&mut link.session, true)? {
            return Err(progress.taken_up());
        }
        target.has_local_infile = true;
    }
    let is_ours = is_asked_for || progress.has_local_infile_on(&mut link.session)?;
    Ok(is_ours.then_some(InfileOn))
}

impl InfileOn {
    /// Switches it off again. The session that switched it on may be gone.
    pub(super) fn switch_off(
        self,
        link: &mut Link,
        progress: &Progress,
        (target, options): (&Target, &LoadOptions),
    ) -> Result<()> {
        if progress.set_local_infile(&mut link.session, false).is_ok() {
            return Ok(());
        }
        let again = Link::again(options, target)
            .and_then(|mut link| Ok(progress.set_local_infile(&mut link.session, false)?));
        again.map(drop).map_err(|error| {
            error
                .context("switch local_infile off again")
                .hinted("SET GLOBAL local_infile = OFF; or run the same command again, which does it")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large load into MySQL by a costlier way gets the hint about the cheaper one, and no other load does.
    #[test]
    fn who_is_told() {
        let many = WORTH_A_WORD_BYTES;
        for way in [Way::Parameters, Way::Text] {
            let told = would_help(Flavor::MySql, way, many).unwrap();
            assert!(told.contains("--enable-local-infile"), "{told}");
            assert_eq!(would_help(Flavor::MySql, way, many - 1), None);
            assert_eq!(would_help(Flavor::MariaDb, way, many), None);
        }
        assert_eq!(would_help(Flavor::MySql, Way::LoadData, many), None);
    }
}
