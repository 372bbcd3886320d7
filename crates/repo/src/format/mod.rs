//! What is stored, and how it is laid out (`docs/reference/repository.md` sections 1, 2 and 5 to 10):
//! names, and the contents of packs, maps, manifests and refs.
//!
//! Nothing here reads or writes a store, or knows a key. It depends on the names of objects in a store only
//! ([`store::ObjectPath`](crate::store)).

pub mod columns;
pub mod hash;
pub mod hex;
pub mod index;
pub mod item;
pub mod manifest;
pub mod names;
pub(crate) mod ordinals;
pub mod pack;
pub mod page_map;
pub mod place;
pub mod refs;
pub mod role;
pub mod rows;
pub(crate) mod units;
pub mod wire;
