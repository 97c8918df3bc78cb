//! A script: bytes that are read as numbers, little end first. Past its end there are zeroes.

/// See the module.
#[derive(Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// The script in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// True if nothing is left.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `length` bytes, or as many as are left.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// The next two bytes.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// True if the next byte is odd.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }
}
