//! Forwarding from a store that wraps another to the wrapped one.

/// Writes methods of a [`Store`](crate::store::Store) that forward to the wrapped store, besides those that
/// the wrapper implements itself: `forward_store!(self => self.0; head, list);`
///
/// Knows the methods that every store must have. Methods with a default are not forwarded, on purpose:
/// by default, an object is read whole through the wrapper's own `head` and `read_exact_at`,
/// nothing is swept, one object is requested at a time, there are no versions, and it is in
/// no directory. A wrapper that needs otherwise implements them itself.
#[macro_export]
macro_rules! forward_store {
    ($self:ident => $to:expr; $($method:ident),+) => {
        $($crate::forward_store!(@ $method, $self => $to);)+
    };
    (@ location, $self:ident => $to:expr) => {
        fn location(&$self) -> String {
            $to.location()
        }
    };
    (@ put, $self:ident => $to:expr) => {
        fn put(
            &$self,
            path: &$crate::store::ObjectPath,
        ) -> Result<Box<dyn $crate::store::Upload>, $crate::store::StoreError> {
            $to.put(path)
        }
    };
    (@ create_if_absent, $self:ident => $to:expr) => {
        fn create_if_absent(
            &$self,
            path: &$crate::store::ObjectPath,
            bytes: &[u8],
        ) -> Result<$crate::store::ObjectInfo, $crate::store::StoreError> {
            $to.create_if_absent(path, bytes)
        }
    };
    (@ read_exact_at, $self:ident => $to:expr) => {
        fn read_exact_at(
            &$self,
            path: &$crate::store::ObjectPath,
            offset: u64,
            buffer: &mut [u8],
        ) -> Result<(), $crate::store::StoreError> {
            $to.read_exact_at(path, offset, buffer)
        }
    };
    (@ head, $self:ident => $to:expr) => {
        fn head(
            &$self,
            path: &$crate::store::ObjectPath,
        ) -> Result<$crate::store::ObjectInfo, $crate::store::StoreError> {
            $to.head(path)
        }
    };
    (@ list, $self:ident => $to:expr) => {
        fn list(
            &$self,
            prefix: &str,
            each: &mut dyn FnMut($crate::store::ObjectInfo) -> bool,
        ) -> Result<(), $crate::store::StoreError> {
            $to.list(prefix, each)
        }
    };
    (@ list_folders, $self:ident => $to:expr) => {
        fn list_folders(
            &$self,
            prefix: &str,
        ) -> Result<Vec<String>, $crate::store::StoreError> {
            $to.list_folders(prefix)
        }
    };
    (@ delete, $self:ident => $to:expr) => {
        fn delete(
            &$self,
            paths: &[$crate::store::ObjectPath],
        ) -> Result<(), $crate::store::StoreError> {
            $to.delete(paths)
        }
    };
    (@ now, $self:ident => $to:expr) => {
        fn now(&$self) -> Result<std::time::SystemTime, $crate::store::StoreError> {
            $to.now()
        }
    };
    (@ free_bytes, $self:ident => $to:expr) => {
        fn free_bytes(&$self) -> Result<Option<u64>, $crate::store::StoreError> {
            $to.free_bytes()
        }
    };
}
