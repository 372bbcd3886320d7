//! What reading a pack has shown.

use super::Finding;

/// One read of a pack is at most about this long.
pub(super) const READ_BYTES: u64 = 8 << 20;

/// The result of reading one pack.
#[derive(Default)]
pub(super) struct PackRead {
    pub(super) bytes: u64,
    /// Findings, with the chunk's ordinal, or `None` if they concern the whole pack.
    pub(super) findings: Vec<(Option<u32>, Finding)>,
    /// Whether the key cannot open it, and its signature says nothing.
    pub(super) is_unproven: bool,
}
