//! One port of the hub: its guest's settings, and its rings.

use std::fs::File;
use std::io::{Read, Write};

use vhost::vhost_user::message::*;
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion};

const EVENT_IDX: u64 = 1 << 29;
const MRG_RXBUF: u64 = 1 << 15;
const GUEST_TSO4: u64 = 1 << 7;
const HEADER: usize = 12;
const RINGS: usize = 4;

/// A guest's memory: where its user addresses lie, and the mapping.
#[derive(Default, Clone)]
struct Memory {
    regions: Vec<(VhostUserMemoryRegion, std::sync::Arc<GuestRegionMmap>)>,
}

impl Memory {
    fn mapped(&self) -> GuestMemoryMmap {
        let mut regions: Vec<_> = self.regions.iter().map(|(_, region)| region.clone()).collect();
        regions.sort_by_key(|region| region.start_addr());
        GuestMemoryMmap::from_arc_regions(regions).unwrap_or_default()
    }

    fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> Result<()> {
        let offset = FileOffset::new(file, region.mmap_offset);
        let mapping = MmapRegion::from_file(offset, region.memory_size as usize).map_err(|_| Error::InvalidParam)?;
        let mapped = GuestRegionMmap::new(mapping, GuestAddress(region.guest_phys_addr)).ok_or(Error::InvalidParam)?;
        self.regions.push((*region, std::sync::Arc::new(mapped)));
        Ok(())
    }

    fn guest(&self, user: u64) -> Result<GuestAddress> {
        let holds = |region: &VhostUserMemoryRegion| user.checked_sub(region.user_addr).filter(|at| *at < region.memory_size);
        self.regions
            .iter()
            .find_map(|(region, _)| Some(GuestAddress(region.guest_phys_addr + holds(region)?)))
            .ok_or(Error::InvalidParam)
    }
}

struct Ring {
    queue: Queue,
    kick: Option<File>,
    call: Option<File>,
    enabled: bool,
    owes_call: bool,
    must_call: bool,
}

impl Ring {
    fn new() -> Self {
        Self { queue: Queue::new(32768).unwrap(), kick: None, call: None, enabled: false, owes_call: false, must_call: false }
    }
}

impl Ring {
    /// Uses several chains at once: the driver must see all buffers of a frame or none (virtio 1.4 section 5.1.6.4.1), but the
    /// crate shows each as it comes. So all but the last are written by hand, and the last by the crate, which then shows them all;
    /// as it counts only one of them, the driver gets an interrupt in any case.
    fn add_together(&mut self, memory: &GuestMemoryMmap, chains: &[(u16, u32)]) {
        let (last, others) = chains.split_last().unwrap();
        let (start, size) = (self.queue.next_used(), self.queue.size());
        for (offset, &(head, length)) in others.iter().enumerate() {
            let slot = u64::from(start.wrapping_add(offset as u16) % size);
            let element = [u32::from(head).to_le_bytes(), length.to_le_bytes()].concat();
            memory.write_slice(&element, GuestAddress(self.queue.used_ring() + 4 + 8 * slot)).unwrap();
        }
        self.queue.set_next_used(start.wrapping_add(others.len() as u16));
        self.queue.add_used(memory, last.0, last.1).unwrap();
        self.owes_call = true;
        self.must_call |= !others.is_empty();
    }
}

/// See the file's page.
pub struct Port {
    offered: u64,
    /// Features that the guest acknowledged.
    pub features: u64,
    memory: Memory,
    rings: Vec<Ring>,
    /// The numbers of the messages that came, in order.
    pub heard: Vec<&'static str>,
    /// Connections so far.
    pub connections: usize,
}

impl Port {
    pub fn new(offered: u64) -> Self {
        let rings = (0..RINGS).map(|_| Ring::new()).collect();
        Self { offered, features: 0, memory: Memory::default(), rings, heard: Vec::new(), connections: 0 }
    }

    pub fn connected(&mut self) {
        self.connections += 1;
    }

    pub fn disconnected(&mut self) {
        self.features = 0;
        self.memory = Memory::default();
        self.rings = (0..RINGS).map(|_| Ring::new()).collect();
    }

    /// Whether frames can be given to it.
    pub fn running(&self) -> bool {
        self.rings[0].queue.ready() && self.rings[0].enabled
    }

    /// Whether its guest takes unsegmented TCP over IPv4.
    pub fn takes_unsegmented(&self) -> bool {
        self.features & GUEST_TSO4 != 0
    }

    /// Regions of memory that the guest announced.
    pub fn regions(&self) -> usize {
        self.memory.regions.len()
    }

    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        let memory = self.memory.mapped();
        let mut frames = Vec::new();
        for ring in self.rings.iter_mut().skip(1).step_by(2).filter(|ring| ring.queue.ready() && ring.enabled) {
            while let Some(chain) = ring.queue.pop_descriptor_chain(&memory) {
                let head = chain.head_index();
                let mut frame = Vec::new();
                chain.reader(&memory).unwrap().read_to_end(&mut frame).unwrap();
                frames.push(frame);
                ring.queue.add_used(&memory, head, 0).unwrap();
                ring.owes_call = true;
            }
        }
        frames
    }

    /// Writes one frame (with its header) into as many buffers as it needs; `false` when there are too few.
    pub fn give_frame(&mut self, frame: &[u8]) -> bool {
        let memory = self.memory.mapped();
        let mergeable = self.features & MRG_RXBUF != 0;
        let ring = &mut self.rings[0];
        if !ring.queue.ready() || !ring.enabled {
            return true;
        }
        let mark = ring.queue.next_avail();
        let (mut rest, mut chains) = (frame, Vec::new());
        while !rest.is_empty() {
            let Some(chain) = ring.queue.pop_descriptor_chain(&memory) else {
                ring.queue.set_next_avail(mark);
                return false;
            };
            let head = chain.head_index();
            let first = chain.clone().next().unwrap().addr();
            let mut writer = chain.writer(&memory).unwrap();
            let length = writer.available_bytes().min(rest.len());
            writer.write_all(&rest[..length]).unwrap();
            rest = &rest[length..];
            chains.push((head, length as u32, first));
            if !mergeable {
                break;
            }
        }
        assert!(rest.is_empty(), "a test sent a frame that the receiver has no buffer for");
        let count = if mergeable { chains.len() as u16 } else { 1 };
        memory.write_slice(&count.to_le_bytes(), GuestAddress(chains[0].2.0 + HEADER as u64 - 2)).unwrap();
        let used: Vec<_> = chains.iter().map(|&(head, length, _)| (head, length)).collect();
        ring.add_together(&memory, &used);
        true
    }

    /// Sends the guest an interrupt for completed chains, where it asks for that.
    pub fn call(&mut self) {
        let memory = self.memory.mapped();
        for ring in self.rings.iter_mut().filter(|ring| ring.owes_call) {
            ring.owes_call = false;
            let wanted = ring.queue.ready() && ring.queue.needs_notification(&memory).unwrap();
            let wanted = wanted | std::mem::take(&mut ring.must_call);
            if let Some(call) = ring.call.as_mut().filter(|_| wanted) {
                call.write_all(&1u64.to_ne_bytes()).unwrap();
            }
        }
    }

    /// Asks for kicks; `true` when there is something to do meanwhile. `hungry`: frames wait for buffers.
    pub fn arm(&mut self, hungry: bool) -> bool {
        let memory = self.memory.mapped();
        let mut more = false;
        for (index, ring) in self.rings.iter_mut().enumerate().filter(|(_, ring)| ring.queue.ready()) {
            let came = ring.queue.enable_notification(&memory).unwrap();
            more |= came && ring.enabled && (hungry || index % 2 == 1);
        }
        more
    }

    pub fn kicks(&self) -> Vec<File> {
        self.rings.iter().filter_map(|ring| ring.kick.as_ref()?.try_clone().ok()).collect()
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        self.rings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }
}

impl VhostUserBackendReqHandlerMut for Port {
    fn set_owner(&mut self) -> Result<()> {
        self.heard.push("owner");
        Ok(())
    }
    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }
    fn reset_device(&mut self) -> Result<()> {
        self.rings.iter_mut().for_each(|ring| *ring = Ring::new());
        Ok(())
    }
    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered)
    }
    fn set_features(&mut self, features: u64) -> Result<()> {
        self.heard.push("features");
        self.features = features;
        self.rings.iter_mut().for_each(|ring| ring.queue.set_event_idx(features & EVENT_IDX != 0));
        Ok(())
    }
    fn set_mem_table(&mut self, regions: &[VhostUserMemoryRegion], files: Vec<File>, _: Option<bool>) -> Result<Option<Vec<u64>>> {
        self.heard.push("memory table");
        let mut memory = Memory::default();
        for (region, file) in regions.iter().zip(files) {
            memory.add(region, file)?;
        }
        self.memory = memory;
        Ok(None)
    }
    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        self.ring(index)?.queue.set_size(size as u16);
        Ok(())
    }
    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        let memory = self.memory.clone();
        let mapped = memory.mapped();
        let (descriptors, available) = (memory.guest(descriptors)?, memory.guest(available)?);
        let used = memory.guest(used)?;
        let queue = &mut self.ring(index)?.queue;
        queue.try_set_desc_table_address(descriptors).map_err(|_| Error::InvalidParam)?;
        queue.try_set_avail_ring_address(available).map_err(|_| Error::InvalidParam)?;
        queue.try_set_used_ring_address(used).map_err(|_| Error::InvalidParam)?;
        let index: u16 = mapped.read_obj(GuestAddress(used.0 + 2)).map_err(|_| Error::InvalidParam)?;
        queue.set_next_used(index);
        Ok(())
    }
    /// The used index in memory tells more than the base, see `set_vring_kick`.
    fn set_vring_base(&mut self, index: u32, _: u32) -> Result<()> {
        self.ring(index).map(drop)
    }
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.heard.push("stop");
        let ring = self.ring(index)?;
        ring.queue.set_ready(false);
        ring.kick = None;
        let base = ring.queue.next_avail();
        Ok(VhostUserVringState::new(index, base.into()))
    }
    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.heard.push("kick");
        let plain = self.features & (1 << 30) == 0;
        let ring = self.ring(index.into())?;
        ring.kick = fd;
        ring.queue.set_next_avail(ring.queue.next_used());
        ring.queue.set_ready(true);
        ring.enabled |= plain;
        Ok(())
    }
    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring(index.into())?.call = fd;
        Ok(())
    }
    fn set_vring_err(&mut self, _: u8, _: Option<File>) -> Result<()> {
        Ok(())
    }
    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        type P = VhostUserProtocolFeatures;
        Ok(P::MQ | P::REPLY_ACK | P::CONFIGURE_MEM_SLOTS | P::RESET_DEVICE | P::CONFIG)
    }
    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }
    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(RINGS as u64 / 2)
    }
    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.heard.push(if enable { "enable" } else { "disable" });
        self.ring(index)?.enabled = enable;
        Ok(())
    }
    fn get_config(&mut self, _: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Ok(vec![7; size as usize])
    }
    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("set_config"))
    }
    fn set_gpu_socket(&mut self, _: vhost::vhost_user::GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("gpu"))
    }
    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("shared object"))
    }
    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("inflight"))
    }
    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(Error::InvalidOperation("inflight"))
    }
    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(509)
    }
    fn add_mem_region(&mut self, region: &VhostUserSingleMemoryRegion, file: File, _: Option<bool>) -> Result<Option<u64>> {
        self.heard.push("add region");
        self.memory.add(region, file)?;
        Ok(None)
    }
    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.heard.push("remove region");
        let gone = region.guest_phys_addr;
        self.memory.regions.retain(|(region, _)| { region.guest_phys_addr } != gone);
        Ok(())
    }
    fn set_device_state_fd(&mut self, _: VhostTransferStateDirection, _: VhostTransferStatePhase, _: File) -> Result<Option<File>> {
        Err(Error::InvalidOperation("state"))
    }
    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("state"))
    }
    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("shmem"))
    }
    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidOperation("log"))
    }
    fn postcopy_advice(&mut self) -> Result<File> {
        Err(Error::InvalidOperation("postcopy"))
    }
    fn postcopy_listen(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("postcopy"))
    }
    fn postcopy_end(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("postcopy"))
    }
    fn postcopy_ack_mem_regions(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("postcopy"))
    }
}
