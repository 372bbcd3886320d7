//! What happens to bytes between source and repository: page hashes, codecs, seals, meters, throttles, room
//! for the server.
//!
//! Bytes in, bytes out: no network, no SQL, no files. `docs/reference/repository.md` sections 5 to 8 give the
//! layouts.

pub mod aligned;
pub mod codec;
pub mod hash;
pub mod headroom;
pub mod lock;
pub mod meter;
pub mod seal;
pub mod stop;
pub mod throttle;

pub use aligned::AlignedBuffer;
pub use codec::{Codec, CodecError, Compression};
pub use hash::{HashKey, PageHash};
pub use headroom::Headroom;
pub use seal::{ObjectKey, SealContext, SealError, Suite, TAG_BYTES};
pub use stop::Stop;
pub use throttle::Throttle;
