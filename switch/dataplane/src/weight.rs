//! Weights: by how much a sender is served more than others.

/// Heaviest weight of a sender.
pub(crate) const MAX_WEIGHT: u16 = 1000;

/// Weight of a sender at a receiver: the configured one, reduced where the sender's bytes cost more than others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u32);

impl Weight {
    /// Fixed-point unit.
    const ONE: u32 = 1 << 16;

    /// The operator's weight, 1 to [`MAX_WEIGHT`].
    pub fn new(weight: u16) -> Self {
        Self(u32::from(weight.clamp(1, MAX_WEIGHT)) * Self::ONE)
    }

    /// The weight times `factor`, at most all of it.
    pub fn times(self, factor: f64) -> Self {
        Self(((f64::from(self.0) * factor) as u32).clamp(1, self.0))
    }

    /// `bytes` of a sender of this weight, converted to bytes at weight 1; in parts of [`Weight::PARTS`].
    pub fn divide(self, bytes: u64) -> u64 {
        // The longest batch is far below 2^32 bytes.
        ((bytes * Self::PARTS) << 16) / u64::from(self.0)
    }

    /// See [`Self::divide`].
    pub const PARTS: u64 = 1024;
}
