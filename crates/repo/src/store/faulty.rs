//! A wrapper that makes a store fail on purpose: by script, by seed, or as a test decides for each call.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use holdfast_pipe::lock::lock;

use super::{ObjectInfo, ObjectPath, Store, StoreError, StoreErrorKind, Upload};

/// The operation that is about to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// [`Store::put`].
    Put,
    /// [`Upload::write`].
    Write,
    /// [`Upload::finish`].
    Finish,
    /// [`Store::create_if_absent`].
    Create,
    /// [`Store::read_exact_at`].
    Read,
    /// [`Store::head`].
    Head,
    /// [`Store::list`].
    List,
    /// [`Store::list_folders`].
    ListFolders,
    /// [`Store::delete`], once for each object.
    Delete,
    /// [`Store::now`].
    Now,
    /// [`Store::free_bytes`].
    FreeBytes,
    /// [`Store::sweep_uploads`].
    Sweep,
}

impl Op {
    /// Whether it can change what is stored.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(self, Self::Finish | Self::Create | Self::Delete)
    }
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Counted from 1.
    pub number: u64,
    /// The method.
    pub op: Op,
    /// Object or prefix; empty for calls that have none.
    pub path: &'a str,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not carried out and fails.
    Error,
    /// It is not carried out: this client has no right to do it.
    Denied,
    /// It is carried out, but the caller is told that it failed: a reply that got lost.
    ErrorAfter,
    /// It is not carried out, and from now on every call fails: the client has died.
    CrashBefore,
    /// It is carried out, and from then on every call fails.
    CrashAfter,
    /// A read finds the object shorter than it is; other calls fail.
    ShortRead,
    /// A read finds that the medium cannot read this object; other calls fail.
    Unreadable,
    /// A read or a look finds no such object, though it is listed; other calls fail.
    NotFound,
    /// One bit of what is read, or of what is being stored, is flipped; other calls fail.
    BitFlip {
        /// Taken modulo the length.
        bit: u64,
    },
    /// A store that lies: the call is not carried out, but reported as done. Calls that store nothing fail.
    LostWrite,
    /// A store that lies: only the first half of an object is stored, but all of it is reported as done. Calls
    /// that finish no object fail.
    TornWrite,
}

type Decide = dyn Fn(&Call<'_>) -> Option<Fault> + Send + Sync;

struct Inner {
    store: Arc<dyn Store>,
    decide: Box<Decide>,
    reads_at_once: usize,
    calls: AtomicU64,
    crashed: AtomicBool,
}

/// A store with faults. Clones share the count of calls and the crash.
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<Inner>,
}

impl FaultyStore {
    /// `decide` is asked before every call; it may also block, which is how a test steps several clients.
    pub fn new(
        store: Arc<dyn Store>,
        decide: impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        let reads_at_once = store.reads_at_once();
        Self::far_away(store, reads_at_once, decide)
    }

    /// As [`new`](Self::new), for a store that says how many objects are best requested at the same time.
    pub fn far_away(
        store: Arc<dyn Store>,
        reads_at_once: usize,
        decide: impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        let inner = Inner {
            store,
            reads_at_once,
            decide: Box::new(decide),
            calls: AtomicU64::new(0),
            crashed: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Injects `fault` once, at the n-th call that it `concerns`.
    pub fn scripted(
        store: Arc<dyn Store>,
        n: u64,
        fault: Fault,
        concerns: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let seen = AtomicU64::new(0);
        Self::new(store, move |call| {
            (concerns(call) && seen.fetch_add(1, Ordering::SeqCst) + 1 == n).then_some(fault)
        })
    }

    /// Injects one of `faults` in about one of `every` calls;
    /// repeatable by `seed` if calls come in the same order.
    pub fn random(store: Arc<dyn Store>, seed: u64, every: u64, faults: Vec<Fault>) -> Self {
        let state = Mutex::new(seed);
        Self::new(store, move |_| {
            let mut state = lock(&state);
            let draw = split_mix(&mut state);
            if faults.is_empty() || !draw.is_multiple_of(every.max(1)) {
                return None;
            }
            let pick = usize::try_from(split_mix(&mut state) % faults.len() as u64).unwrap_or(0);
            faults.get(pick).copied()
        })
    }

    /// How many calls there were.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.inner.calls.load(Ordering::SeqCst)
    }
}

/// One step of SplitMix64.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn injected(path: &str) -> StoreError {
    StoreError::new(path, StoreErrorKind::Io(io::Error::other("injected fault")))
}

fn flip(bytes: &mut [u8], bit: u64) {
    let bits = bytes.len() as u64 * 8;
    if let Some(bit) = bit.checked_rem(bits)
        && let Some(byte) = usize::try_from(bit / 8).ok().and_then(|at| bytes.get_mut(at))
    {
        *byte ^= 1 << (bit % 8);
    }
}

impl Inner {
    fn fault(&self, op: Op, path: &str) -> Result<Option<Fault>, StoreError> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = (self.decide)(&Call { number, op, path });
        if matches!(fault, Some(Fault::CrashBefore | Fault::CrashAfter)) {
            let crashed_before = self.crashed.swap(true, Ordering::SeqCst);
            if crashed_before || fault == Some(Fault::CrashBefore) {
                return Err(injected(path));
            }
        } else if self.crashed.load(Ordering::SeqCst) {
            return Err(injected(path));
        }
        if fault == Some(Fault::Denied) {
            let kind = StoreErrorKind::Io(io::ErrorKind::PermissionDenied.into());
            return Err(StoreError::new(path, kind));
        }
        if fault == Some(Fault::NotFound) && matches!(op, Op::Read | Op::Head) {
            return Err(StoreError::new(path, StoreErrorKind::NotFound));
        }
        Ok(fault)
    }

    /// A call for which only failing and crashing make sense.
    fn plain<T>(
        &self,
        op: Op,
        path: &str,
        call: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.fault(op, path)? {
            None => call(),
            Some(Fault::ErrorAfter | Fault::CrashAfter) => {
                call()?;
                Err(injected(path))
            }
            Some(_) => Err(injected(path)),
        }
    }

    fn pretended(&self, path: &ObjectPath, size_bytes: u64) -> Result<ObjectInfo, StoreError> {
        Ok(ObjectInfo { path: path.clone(), size_bytes, created_at: self.store.now()? })
    }
}

struct FaultyUpload {
    inner: Arc<Inner>,
    path: ObjectPath,
    upload: Box<dyn Upload>,
    /// All that was written, for a fault that keeps only a part of it.
    written: Vec<u8>,
}

impl Upload for FaultyUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.written.extend_from_slice(bytes);
        match self.inner.fault(Op::Write, self.path.as_str())? {
            None => self.upload.write(bytes),
            Some(Fault::BitFlip { bit }) => {
                let mut bytes = bytes.to_vec();
                flip(&mut bytes, bit);
                self.upload.write(&bytes)
            }
            Some(_) => Err(injected(self.path.as_str())),
        }
    }

    fn finish(self: Box<Self>) -> Result<ObjectInfo, StoreError> {
        match self.inner.fault(Op::Finish, self.path.as_str())? {
            None => self.upload.finish(),
            Some(Fault::LostWrite) => self.inner.pretended(&self.path, self.written.len() as u64),
            Some(Fault::TornWrite) => {
                let mut torn = self.inner.store.put(&self.path)?;
                torn.write(&self.written[..self.written.len() / 2])?;
                torn.finish()?;
                self.inner.pretended(&self.path, self.written.len() as u64)
            }
            Some(Fault::ErrorAfter | Fault::CrashAfter) => {
                self.upload.finish()?;
                Err(injected(self.path.as_str()))
            }
            Some(_) => Err(injected(self.path.as_str())),
        }
    }
}

impl Store for FaultyStore {
    fn location(&self) -> String {
        self.inner.store.location()
    }

    fn local_root(&self) -> Option<&Path> {
        self.inner.store.local_root()
    }

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        let upload = self.inner.plain(Op::Put, path.as_str(), || self.inner.store.put(path))?;
        Ok(Box::new(FaultyUpload {
            inner: Arc::clone(&self.inner),
            path: path.clone(),
            upload,
            written: Vec::new(),
        }))
    }

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        let store = &self.inner.store;
        match self.inner.fault(Op::Create, path.as_str())? {
            None => store.create_if_absent(path, bytes),
            Some(Fault::BitFlip { bit }) => {
                let mut bytes = bytes.to_vec();
                flip(&mut bytes, bit);
                store.create_if_absent(path, &bytes)
            }
            Some(Fault::LostWrite) => self.inner.pretended(path, bytes.len() as u64),
            Some(Fault::TornWrite) => {
                store.create_if_absent(path, &bytes[..bytes.len() / 2])?;
                self.inner.pretended(path, bytes.len() as u64)
            }
            Some(Fault::ErrorAfter | Fault::CrashAfter) => {
                store.create_if_absent(path, bytes)?;
                Err(injected(path.as_str()))
            }
            Some(_) => Err(injected(path.as_str())),
        }
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        match self.inner.fault(Op::Read, path.as_str())? {
            None => self.inner.store.read_exact_at(path, offset, buffer),
            Some(Fault::BitFlip { bit }) => {
                self.inner.store.read_exact_at(path, offset, buffer)?;
                flip(buffer, bit);
                Ok(())
            }
            Some(Fault::ShortRead) => {
                let end = offset.saturating_add(buffer.len() as u64);
                Err(StoreError::new(path, StoreErrorKind::ShortRead { end }))
            }
            Some(Fault::Unreadable) => Err(StoreError::new(
                path,
                StoreErrorKind::Unreadable { why: "injected fault".to_owned(), is_archived: false },
            )),
            Some(_) => Err(injected(path.as_str())),
        }
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        self.inner.plain(Op::Head, path.as_str(), || self.inner.store.head(path))
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        self.inner.plain(Op::List, prefix, || self.inner.store.list(prefix, each))
    }

    fn reads_at_once(&self) -> usize {
        self.inner.reads_at_once
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.inner.plain(Op::ListFolders, prefix, || self.inner.store.list_folders(prefix))
    }

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        for path in paths {
            match self.inner.fault(Op::Delete, path.as_str())? {
                None => self.inner.store.delete(std::slice::from_ref(path))?,
                Some(Fault::LostWrite) => {}
                Some(Fault::ErrorAfter | Fault::CrashAfter) => {
                    self.inner.store.delete(std::slice::from_ref(path))?;
                    return Err(injected(path.as_str()));
                }
                Some(_) => return Err(injected(path.as_str())),
            }
        }
        Ok(())
    }

    fn now(&self) -> Result<SystemTime, StoreError> {
        self.inner.plain(Op::Now, "", || self.inner.store.now())
    }

    fn free_bytes(&self) -> Result<Option<u64>, StoreError> {
        self.inner.plain(Op::FreeBytes, "", || self.inner.store.free_bytes())
    }

    fn sweep_uploads(&self, min_age: Duration) -> Result<(), StoreError> {
        self.inner.plain(Op::Sweep, "", || self.inner.store.sweep_uploads(min_age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{conformance, mem::MemStore, read_all};

    fn path(name: &str) -> ObjectPath {
        ObjectPath::new(name).unwrap()
    }

    #[test]
    fn without_faults_the_wrapper_is_a_store() {
        conformance::check(|| Arc::new(FaultyStore::new(Arc::new(MemStore::new()), |_| None)));
    }

    #[test]
    fn a_crash_lets_nothing_more_through() {
        for (fault, arrived) in [(Fault::CrashBefore, false), (Fault::CrashAfter, true)] {
            let memory = MemStore::new();
            let store =
                FaultyStore::scripted(Arc::new(memory.clone()), 2, fault, |call| call.op == Op::Create);
            store.create_if_absent(&path("1"), b"").unwrap();
            store.create_if_absent(&path("2"), b"").unwrap_err();
            store.create_if_absent(&path("3"), b"").unwrap_err();
            store.head(&path("1")).unwrap_err();
            assert_eq!(memory.head(&path("2")).is_ok(), arrived);
            assert!(memory.head(&path("3")).is_err());
            assert_eq!(store.calls(), 4);
        }
    }

    #[test]
    fn a_lost_write_looks_done_and_a_lost_reply_looks_failed() {
        let memory = MemStore::new();
        let at =
            |n, fault| FaultyStore::scripted(Arc::new(memory.clone()), n, fault, |call| call.op.changes());
        at(1, Fault::LostWrite).create_if_absent(&path("lost"), b"").unwrap();
        assert!(memory.head(&path("lost")).is_err());
        at(1, Fault::ErrorAfter).create_if_absent(&path("done"), b"").unwrap_err();
        assert!(memory.head(&path("done")).is_ok());
        at(1, Fault::TornWrite).create_if_absent(&path("torn"), b"aabb").unwrap();
        let mut upload = at(1, Fault::TornWrite).put(&path("torn/upload")).unwrap();
        ["aab", "bc"].iter().for_each(|part| upload.write(part.as_bytes()).unwrap());
        assert_eq!(upload.finish().unwrap().size_bytes, 5);
        for torn in ["torn", "torn/upload"] {
            assert_eq!(read_all(&memory, &path(torn), 9).unwrap(), b"aa");
        }
        at(1, Fault::BitFlip { bit: 9 }).create_if_absent(&path("bad"), b"aa").unwrap();
        assert_eq!(read_all(&memory, &path("bad"), 2).unwrap(), b"ac");
    }

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        let faults_of = |seed| {
            let store = FaultyStore::random(Arc::new(MemStore::new()), seed, 3, vec![Fault::Error]);
            (0..50).map(|_| store.now().is_err()).collect::<Vec<_>>()
        };
        assert_eq!(faults_of(1), faults_of(1));
        assert_ne!(faults_of(1), faults_of(2));
        assert!(faults_of(1).contains(&true) && faults_of(1).contains(&false));
    }
}
