//! Completions in order (section 2.7.9): of a batch of chains the device may show only the last, in the batch's first place,
//! and move the used index by the size of the batch.

use std::collections::VecDeque;

use super::Used;

/// Chains in flight, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct InOrder {
    pub(super) out: VecDeque<u16>,
    /// The last chain of the batch that is being taken.
    batch: Option<Used>,
}

impl InOrder {
    /// The next completed chain, where the used ring's element reads `element`; `None` when none is in flight. Chains of a batch
    /// for which the device wrote no element of their own have length 0.
    pub(super) fn next(&mut self, element: Used) -> Option<Used> {
        let last = *self.batch.get_or_insert(element);
        let head = u32::from(self.out.pop_front()?);
        if head != last.head {
            return Some(Used { head, length: 0 });
        }
        self.batch = None;
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_shown_by_its_last_chain() {
        let mut order = InOrder { out: [4, 7, 2, 9].into(), batch: None };
        let stale = Used { head: 99, length: 99 };
        assert_eq!(order.next(Used { head: 2, length: 5 }), Some(Used { head: 4, length: 0 }));
        assert_eq!(order.next(stale), Some(Used { head: 7, length: 0 }));
        assert_eq!(order.next(stale), Some(Used { head: 2, length: 5 }));
        assert_eq!(order.next(Used { head: 9, length: 1 }), Some(Used { head: 9, length: 1 }));
        assert_eq!(order.next(Used { head: 4, length: 0 }), None);
    }
}
