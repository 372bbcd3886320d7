//! What is stored, and how it is laid out (`docs/reference/repository.md` sections 1, 2 and 5 to 10):
//! names, objects, and the contents of packs, maps, manifests and refs.
//!
//! Nothing here reads or writes a store. It depends on the names of objects in a store
//! ([`store::ObjectPath`](crate::store)), and on [`keys`](crate::keys) for what an object is sealed with.

pub mod columns;
pub mod hex;
pub mod index;
pub mod item;
pub mod manifest;
pub mod names;
pub mod object;
pub(crate) mod ordinals;
pub mod pack;
pub mod page_map;
pub mod refs;
pub mod rows;
pub(crate) mod units;
pub mod wire;
