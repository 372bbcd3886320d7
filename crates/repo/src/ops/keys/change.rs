//! Changing an operator's own key.

use super::{
    add::{NewKey, SlotSigner, add_signed},
    list::KeyInfo,
    operator::as_operator,
    remove::{Removed, UnderWay, remove},
};
use crate::{
    keys::{KeyError, NewSlot, Role, Trusted},
    repo::Repo,
};

/// Puts another key in the place of the operator's key at hand: with the same rights,
/// behind another password or key pair.
///
/// Returns the new key; what an identity must trust to open it, which is not the removed
/// key; and what [`remove`] returns.
pub fn change(repo: &Repo, slot: NewSlot<'_>) -> Result<(KeyInfo, Trusted, Removed), KeyError> {
    let (keys, trust) = as_operator(repo, "change a key")?;
    let own = keys.key_id();
    let label = trust.of_key(own).and_then(|known| Some(known.voucher.as_ref()?.voucher.label.clone()));
    let new = NewKey { role: Role::Operator, sources: Vec::new(), label: label.unwrap_or_default() };
    let (key, trusted) = add_signed(repo, &new, slot, SlotSigner::Itself)?;
    Ok((key, trusted, remove(repo, own, UnderWay::MayEnd)?))
}
