//! A table by ports that is cheap to copy and to change: its entries are in blocks, and a copy shares the blocks. A change of one entry copies
//! one block, however many ports there are.

use std::sync::Arc;

use crate::id::PortId;

/// Entries of a block.
const BLOCK: usize = 64;

type Block<T> = [Option<Arc<T>>; BLOCK];

/// See the module.
#[derive(Debug)]
pub(crate) struct PortMap<T> {
    blocks: Vec<Arc<Block<T>>>,
}

impl<T> Default for PortMap<T> {
    fn default() -> Self {
        Self { blocks: Vec::new() }
    }
}

impl<T> Clone for PortMap<T> {
    fn clone(&self) -> Self {
        Self { blocks: self.blocks.clone() }
    }
}

impl<T> PortMap<T> {
    /// The entry of `port`.
    #[inline]
    pub(crate) fn get(&self, port: PortId) -> Option<&Arc<T>> {
        self.blocks.get(port.index() / BLOCK)?.get(port.index() % BLOCK)?.as_ref()
    }

    /// Replaces the entry of `port`.
    pub(crate) fn set(&mut self, port: PortId, entry: Option<Arc<T>>) {
        let block = port.index() / BLOCK;
        if block >= self.blocks.len() {
            if entry.is_none() {
                return;
            }
            self.blocks.resize_with(block + 1, || Arc::new(std::array::from_fn(|_| None)));
        }
        let block = self.blocks.get_mut(block).map(Arc::make_mut);
        if let Some(place) = block.and_then(|block| block.get_mut(port.index() % BLOCK)) {
            *place = entry;
        }
    }

    /// The ports with another entry than in `other`, in their order.
    pub(crate) fn differing(&self, other: &Self) -> Vec<PortId> {
        let count = self.blocks.len().max(other.blocks.len());
        let is_same = |block: &usize| match (self.blocks.get(*block), other.blocks.get(*block)) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let ports = (0..count).filter(|block| !is_same(block)).flat_map(|block| block * BLOCK..(block + 1) * BLOCK);
        let ports = ports.filter_map(|port| u16::try_from(port).ok().map(PortId));
        ports.filter(|&port| !is_same_entry(self.get(port), other.get(port))).collect()
    }
}

fn is_same_entry<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shares_all_but_the_block_that_changes() {
        let mut map = PortMap::default();
        for n in (0..2000).rev() {
            map.set(PortId(n), Some(Arc::new(n)));
        }
        let mut copy = map.clone();
        assert!(copy.differing(&map).is_empty());
        copy.set(PortId(1000), Some(Arc::new(7)));
        copy.set(PortId(1999), None);
        copy.set(PortId(5000), None);
        assert_eq!(
            (copy.differing(&map), map.differing(&copy)),
            (vec![PortId(1000), PortId(1999)], vec![PortId(1000), PortId(1999)])
        );
        assert_eq!((copy.get(PortId(1000)), map.get(PortId(1000))), (Some(&Arc::new(7)), Some(&Arc::new(1000))));
        let shared = copy.blocks.iter().zip(&map.blocks).filter(|(one, other)| Arc::ptr_eq(one, other)).count();
        assert_eq!((shared, copy.blocks.len()), (30, 32));
        copy.set(PortId(u16::MAX), Some(Arc::new(1)));
        assert_eq!(copy.differing(&map).last(), Some(&PortId(u16::MAX)));
    }
}
