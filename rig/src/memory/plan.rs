//! How a guest's memory shall look: ranges, file offsets, pages.

/// Bytes of a small page, to which file offsets and region sizes are rounded.
const PAGE: u64 = 4096;
/// Bytes of a huge page.
pub(super) const HUGE_PAGE: u64 = 2 << 20;
/// Guest-physical start of a plain plan's only region: not 0, so that forgotten addresses are out of range.
const DEFAULT_BASE: u64 = 1 << 30;

/// Which pages back the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pages {
    /// 4 KiB pages.
    #[default]
    Normal,
    /// hugetlbfs pages of 2 MiB (`/proc/sys/vm/nr_hugepages` must hold enough).
    Huge,
    /// 4 KiB pages that `MADV_COLLAPSE` (Linux 6.1) is asked to merge into huge ones at once.
    Collapsed,
}

/// One region to be: a guest-physical range and its place in the memfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionPlan {
    /// First guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Start in the memfd, bytes.
    pub file_offset: u64,
}

/// A guest's memory to be; see [`super::GuestMemory::with_plan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Guest-physical ranges, in the order of the memory table. They follow each other in the memfd.
    pub ranges: Vec<(u64, u64)>,
    /// Bytes left unused in the memfd before each region, so that file offsets are not guest offsets.
    pub file_gap: u64,
    /// Which pages back it.
    pub pages: Pages,
}

impl MemoryPlan {
    /// One region of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self::regions([(DEFAULT_BASE, size)])
    }

    /// Several regions, each a (guest-physical start, bytes); gaps between them are welcome.
    pub fn regions(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self { ranges: ranges.into_iter().collect(), file_gap: 0, pages: Pages::Normal }
    }

    /// `count` regions of `size` bytes each, with `gap` bytes of nothing between them.
    pub fn spread(count: u64, size: u64, gap: u64) -> Self {
        Self::regions((0..count).map(|index| (DEFAULT_BASE + index * (size + gap), size)))
    }

    /// The same plan on other pages.
    #[must_use]
    pub fn on(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// The same plan with `bytes` of the memfd left unused before each region.
    #[must_use]
    pub fn file_gap(mut self, bytes: u64) -> Self {
        self.file_gap = bytes;
        self
    }

    /// Bytes of all regions together.
    pub fn size(&self) -> u64 {
        self.ranges.iter().map(|(_, size)| size).sum()
    }

    /// The regions with their file offsets (sizes rounded up to pages), and the memfd's length.
    pub(super) fn laid_out(&self) -> (Vec<RegionPlan>, u64) {
        let unit = if self.pages == Pages::Normal { PAGE } else { HUGE_PAGE };
        let gap = self.file_gap.next_multiple_of(unit);
        let mut end = 0;
        let mut place = |&(guest, size): &(u64, u64)| {
            let plan = RegionPlan { guest, size: size.next_multiple_of(unit), file_offset: end + gap };
            end = plan.file_offset + plan.size;
            plan
        };
        let plans = self.ranges.iter().map(&mut place).collect();
        (plans, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_follow_each_other_in_the_file_with_the_gap_before_each() {
        let plan = MemoryPlan::regions([(0, 5000), (1 << 32, 4096)]).file_gap(4096);
        let (regions, length) = plan.laid_out();
        assert_eq!(regions[0], RegionPlan { guest: 0, size: 8192, file_offset: 4096 });
        assert_eq!(regions[1], RegionPlan { guest: 1 << 32, size: 4096, file_offset: 16384 });
        assert_eq!(length, 20480);
    }

    #[test]
    fn huge_plans_are_multiples_of_huge_pages() {
        let (regions, length) = MemoryPlan::new(1).on(Pages::Huge).laid_out();
        assert_eq!((regions[0].size, length), (HUGE_PAGE, HUGE_PAGE));
    }
}
