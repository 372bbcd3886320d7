//! Memory for reads and writes that go past the page cache.

/// Alignment that suffices, for offset, length and memory, on every usual disk.
pub const ALIGNMENT: usize = 4096;

/// A buffer whose contents begin at a multiple of [`ALIGNMENT`]. One for each thread.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    capacity: usize,
}

impl AlignedBuffer {
    /// A buffer for `capacity` bytes, rounded up to a multiple of [`ALIGNMENT`].
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.next_multiple_of(ALIGNMENT);
        let memory = vec![0; capacity + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { memory, start, capacity }
    }

    /// How many bytes fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Room for `len` bytes, rounded up to a multiple of [`ALIGNMENT`], but no more than the capacity.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.start + len.next_multiple_of(ALIGNMENT).min(self.capacity);
        &mut self.memory[self.start..end]
    }

    /// The first `len` bytes.
    #[must_use]
    pub fn bytes(&self, len: usize) -> &[u8] {
        &self.memory[self.start..self.start + len]
    }

    /// The first `len` bytes, mutable.
    pub fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.start..self.start + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_aligned_and_keep_their_place() {
        for capacity in [1, 4096, 100_000] {
            let mut buffer = AlignedBuffer::new(capacity);
            assert_eq!(buffer.bytes(capacity).as_ptr().align_offset(ALIGNMENT), 0);
            assert!(buffer.capacity() >= capacity && buffer.capacity().is_multiple_of(ALIGNMENT));
            assert_eq!(buffer.room(1).len(), ALIGNMENT);
            buffer.room(capacity)[capacity - 1] = 7;
            assert_eq!(buffer.bytes(capacity)[capacity - 1], 7);
        }
    }
}
