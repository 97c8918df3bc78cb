//! Which descriptors are free, and which belong to which chain: the driver's private notes.

/// The free list and the length of each chain. Private to the driver: the device cannot spoil it.
#[derive(Debug, Clone)]
pub(super) struct Chains {
    /// The descriptor after this one: in its chain, or in the free list.
    next: Vec<u16>,
    /// Descriptors in the chain that starts here; 0 where none does.
    lengths: Vec<u16>,
    /// Most recently freed descriptor; meaningless when none is free.
    free: u16,
    left: u16,
}

impl Chains {
    pub(super) fn new(size: u16) -> Self {
        Self { next: (1..=size).map(|index| index % size).collect(), lengths: vec![0; usize::from(size)], free: 0, left: size }
    }

    /// Free descriptors.
    pub(super) fn left(&self) -> u16 {
        self.left
    }

    /// Takes `count` descriptors (at least 1) from the free list; the first is the head, [`Chains::after`] leads on.
    pub(super) fn take(&mut self, count: u16) -> Option<u16> {
        if count == 0 || count > self.left {
            return None;
        }
        let head = self.free;
        self.lengths[usize::from(head)] = count;
        self.left -= count;
        for _ in 0..count {
            self.free = self.next[usize::from(self.free)];
        }
        Some(head)
    }

    /// The descriptor that follows `index`.
    pub(super) fn after(&self, index: u16) -> u16 {
        self.next[usize::from(index)]
    }

    /// Whether a chain that starts at `head` is in flight.
    pub(super) fn is_in_flight(&self, head: u32) -> bool {
        self.lengths.get(head as usize).is_some_and(|&length| length > 0)
    }

    /// Frees the descriptors of the chain at `head`; `false` when there is none.
    pub(super) fn give_back(&mut self, head: u16) -> bool {
        let Some(length) = self.lengths.get_mut(usize::from(head)).filter(|length| **length > 0) else {
            return false;
        };
        let count = std::mem::take(length);
        let last = (1..count).fold(head, |index, _| self.next[usize::from(index)]);
        self.next[usize::from(last)] = self.free;
        self.free = head;
        self.left += count;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_chain_comes_back_whole_and_only_once() {
        let mut chains = Chains::new(8);
        let first = chains.take(3).unwrap();
        let second = chains.take(5).unwrap();
        assert_eq!(chains.take(1), None);
        assert!(chains.give_back(first));
        assert!(!chains.give_back(first));
        assert_eq!(chains.left(), 3);
        assert!(chains.give_back(second));
        assert_eq!(chains.left(), 8);
        assert!(!chains.is_in_flight(99));
    }

    proptest! {
        /// No order of taking and releasing puts a descriptor into two chains at once.
        #[test]
        fn no_descriptor_is_in_two_chains(steps in prop::collection::vec((any::<bool>(), 1u16..6), 1..200)) {
            let mut chains = Chains::new(16);
            let mut out: Vec<(u16, Vec<u16>)> = Vec::new();
            for (take, number) in steps {
                if take {
                    if let Some(head) = chains.take(number) {
                        let members: Vec<u16> =
                            std::iter::successors(Some(head), |&at| Some(chains.after(at))).take(number.into()).collect();
                        for (_, others) in &out {
                            prop_assert!(members.iter().all(|member| !others.contains(member)));
                        }
                        out.push((head, members));
                    }
                } else if !out.is_empty() {
                    let (head, _) = out.remove(usize::from(number) % out.len());
                    prop_assert!(chains.give_back(head));
                }
                let held: usize = out.iter().map(|(_, members)| members.len()).sum();
                prop_assert_eq!(usize::from(chains.left()) + held, 16);
            }
        }
    }
}
