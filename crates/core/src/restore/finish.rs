//! Finishes a restore that was interrupted when all files had their final names. A server may have been
//! started on them since, so nothing but the report is written.

use super::{
    options::RestoreOptions,
    planned::RestorePlan,
    replay::Transactions,
    report::RestoreReport,
    target::{
        claim::Claim,
        io_failed,
        marker::Named,
        names::{PRIVATE, own_path},
        survey::{Standing, Survey},
    },
};
use crate::{
    error::{Error, ErrorKind, Result},
    points::point,
};

/// Refuses to pass what is there off as something else.
pub(super) fn check(plan: &RestorePlan, survey: &Survey) -> Result<()> {
    let Some(Named { report, .. }) = named(survey) else { return Ok(()) };
    let is_prepared = report.prepared.is_some() || report.loaded.is_some();
    let is_his = plan.owner.is_none_or(|owner| survey.owner == Some((owner.uid, owner.gid)));
    match is_his && is_prepared == plan.prepare.is_some() && report.mapped == plan.mapped() {
        true => Ok(()),
        false => Err(of_another(plan)),
    }
}

/// Writes the report; `None` if more is to be done.
pub(super) fn run(
    plan: &RestorePlan,
    survey: &Survey,
    options: &RestoreOptions,
    transactions: Option<&mut (dyn Transactions + '_)>,
) -> Result<Option<RestoreReport>> {
    let (Some(marker), Some(Named { report, .. })) = (&survey.marker, named(survey)) else { return Ok(None) };
    let wanted = transactions.map(|transactions| transactions.each(&mut |_| Ok(()))).transpose()?;
    if wanted.as_ref() != report.replayed.as_ref().map(|replayed| &replayed.reached) {
        return Err(of_another(plan));
    }
    let claim = Claim::take(&options.target_dir, marker.clone(), survey, &[])?;
    let tree = &claim.tree;
    claim.write_report(report, plan.owner.map(|owner| (owner.uid, owner.gid)))?;
    // Everything has been moved out of it.
    let private = own_path(PRIVATE)?;
    tree.remove(&private).map_err(|error| io_failed("remove", tree.path_of(&private), error))?;
    tree.sync_all().map_err(|error| io_failed("write", tree.path(), error))?;
    point("restore.report.written");
    let report = report.clone();
    claim.release()?;
    Ok(Some(report))
}

fn named(survey: &Survey) -> Option<&Named> {
    let marker = survey.marker.as_ref().filter(|_| survey.standing == Standing::Complete);
    marker.and_then(|marker| marker.named.as_ref())
}

fn of_another(plan: &RestorePlan) -> Error {
    let text = format!(
        "{} holds a restore that is complete except for its report, and this one would be another",
        plan.target_dir.display()
    );
    Error::new(ErrorKind::Usage, text).hinted(
        "run the command again that was interrupted, or use --delta to make it into what you want now",
    )
}
