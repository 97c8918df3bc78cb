//! One method a message, in the words of the specification.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{
    FrontendReq, VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserProtocolFeatures,
};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::{Acknowledge, Frontend, Inflight, Result, socket};

/// The payload bit of KICK, CALL and ERR that says "no file descriptor: poll, or do not notify".
const NO_DESCRIPTOR: u64 = 0x100;

/// Every method fails as messages do: [`FrontendError::Message`](super::FrontendError::Message) when the back end refuses,
/// answers nonsense, hangs up or is silent; [`FrontendError::Refused`](super::FrontendError::Refused) when a raw message
/// is acknowledged with anything but 0.
#[allow(clippy::missing_errors_doc)]
impl Frontend {
    /// SET_OWNER.
    pub fn set_owner(&mut self) -> Result<()> {
        self.say("SET_OWNER", |vhost| vhost.set_owner())
    }

    /// GET_FEATURES.
    pub fn features(&mut self) -> Result<u64> {
        self.say("GET_FEATURES", |vhost| vhost.get_features())
    }

    /// SET_FEATURES.
    pub fn set_features(&mut self, features: u64) -> Result<()> {
        self.say("SET_FEATURES", |vhost| vhost.set_features(features))
    }

    /// GET_PROTOCOL_FEATURES.
    pub fn protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        self.say("GET_PROTOCOL_FEATURES", |vhost| vhost.get_protocol_features())
    }

    /// SET_PROTOCOL_FEATURES. From here on, if REPLY_ACK is among them, messages ask for acknowledgements.
    pub fn set_protocol_features(&mut self, wanted: VhostUserProtocolFeatures, acknowledge: Acknowledge) -> Result<()> {
        self.say("SET_PROTOCOL_FEATURES", |vhost| vhost.set_protocol_features(wanted))?;
        self.protocol = wanted;
        if wanted.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            self.acknowledge = acknowledge;
        }
        Ok(())
    }

    /// GET_QUEUE_NUM: how many queues the back end serves. (In queue pairs for a network device, by custom.)
    pub fn queue_number(&mut self) -> Result<u64> {
        // The crate would from now on refuse ring indices above the answer; those are for the back end to refuse.
        self.ask("GET_QUEUE_NUM", FrontendReq::GET_QUEUE_NUM, &[])
    }

    /// GET_MAX_MEM_SLOTS.
    pub fn memory_slots(&mut self) -> Result<u64> {
        self.say("GET_MAX_MEM_SLOTS", |vhost| vhost.get_max_mem_slots())
    }

    /// SET_MEM_TABLE.
    pub fn set_memory_table(&mut self, regions: &[VhostUserMemoryRegionInfo]) -> Result<()> {
        if let Some(bases) = self.say("SET_MEM_TABLE", |vhost| vhost.set_mem_table(regions))? {
            self.bases = bases;
            self.say("SET_MEM_TABLE", |vhost| vhost.postcopy_ack_mem_regions(FrontendReq::SET_MEM_TABLE))?;
        }
        Ok(())
    }

    /// POSTCOPY_ADVISE and POSTCOPY_LISTEN; the userfaultfd of the back end, for page faults of memory that it is told of from now on.
    pub fn begin_postcopy(&mut self) -> Result<File> {
        let userfault = self.say("POSTCOPY_ADVISE", |vhost| vhost.postcopy_advise())?;
        self.say("POSTCOPY_LISTEN", |vhost| vhost.postcopy_listen())?;
        Ok(userfault)
    }

    /// Addresses of the regions of the memory table in the back end, while postcopy listens.
    pub fn postcopy_bases(&self) -> &[u64] {
        &self.bases
    }

    /// POSTCOPY_END.
    pub fn end_postcopy(&mut self) -> Result<()> {
        self.say("POSTCOPY_END", |vhost| vhost.postcopy_end())
    }

    /// ADD_MEM_REG.
    pub fn add_region(&mut self, region: &VhostUserMemoryRegionInfo) -> Result<()> {
        self.say("ADD_MEM_REG", |vhost| vhost.add_mem_region(region).map(drop))
    }

    /// REM_MEM_REG.
    pub fn remove_region(&mut self, region: &VhostUserMemoryRegionInfo) -> Result<()> {
        self.say("REM_MEM_REG", |vhost| vhost.remove_mem_region(region))
    }

    /// SET_VRING_NUM.
    pub fn set_ring_size(&mut self, ring: usize, size: u16) -> Result<()> {
        self.say("SET_VRING_NUM", |vhost| vhost.set_vring_num(ring, size))
    }

    /// SET_VRING_BASE.
    pub fn set_ring_base(&mut self, ring: usize, base: u16) -> Result<()> {
        self.say("SET_VRING_BASE", |vhost| vhost.set_vring_base(ring, base))
    }

    /// GET_VRING_BASE: stops the ring and tells the available index at which to go on.
    pub fn ring_base(&mut self, ring: usize) -> Result<u32> {
        self.say("GET_VRING_BASE", |vhost| vhost.get_vring_base(ring))
    }

    /// SET_VRING_ADDR; the addresses are user addresses.
    pub fn set_ring_addresses(&mut self, ring: usize, addresses: &VringConfigData) -> Result<()> {
        self.say("SET_VRING_ADDR", |vhost| vhost.set_vring_addr(ring, addresses))
    }

    /// SET_VRING_KICK; `None`: the back end shall poll.
    pub fn set_ring_kick(&mut self, ring: usize, fd: Option<RawFd>) -> Result<()> {
        match fd {
            Some(fd) => {
                let fd = event(fd)?;
                self.say("SET_VRING_KICK", |vhost| vhost.set_vring_kick(ring, &fd))
            }
            None => self.tell("SET_VRING_KICK", FrontendReq::SET_VRING_KICK, ring as u64 | NO_DESCRIPTOR),
        }
    }

    /// SET_VRING_CALL; `None`: the back end shall send no interrupts.
    pub fn set_ring_call(&mut self, ring: usize, fd: Option<RawFd>) -> Result<()> {
        match fd {
            Some(fd) => {
                let fd = event(fd)?;
                self.say("SET_VRING_CALL", |vhost| vhost.set_vring_call(ring, &fd))
            }
            None => self.tell("SET_VRING_CALL", FrontendReq::SET_VRING_CALL, ring as u64 | NO_DESCRIPTOR),
        }
    }

    /// SET_VRING_ERR.
    pub fn set_ring_error(&mut self, ring: usize, fd: RawFd) -> Result<()> {
        let fd = event(fd)?;
        self.say("SET_VRING_ERR", |vhost| vhost.set_vring_err(ring, &fd))
    }

    /// SET_VRING_ENABLE. (Not through the crate, which refuses it before SET_FEATURES; QEMU does send it that early.)
    pub fn enable_ring(&mut self, ring: usize, enable: bool) -> Result<()> {
        let state = ring as u64 | u64::from(enable) << 32;
        self.tell("SET_VRING_ENABLE", FrontendReq::SET_VRING_ENABLE, state)
    }

    /// GET_CONFIG: `length` bytes of the device's configuration space from `offset`.
    pub fn config(&mut self, offset: u32, length: u32) -> Result<Vec<u8>> {
        let blank = vec![0; length as usize];
        self.say("GET_CONFIG", |vhost| {
            vhost.get_config(offset, length, VhostUserConfigFlags::empty(), &blank).map(|(_, bytes)| bytes)
        })
    }

    /// SET_BACKEND_REQ_FD: the socket on which the back end may ask things of its own accord.
    pub fn set_backend_channel(&mut self, theirs: &OwnedFd) -> Result<()> {
        let fd = theirs.as_raw_fd();
        self.say("SET_BACKEND_REQ_FD", |vhost| vhost.set_backend_request_fd(&fd))
    }

    /// GET_INFLIGHT_FD: the back end's record of chains in flight, for so many queues of that size.
    pub fn inflight(&mut self, queues: u16, queue_size: u16) -> Result<Inflight> {
        let request = VhostUserInflight { mmap_size: 0, mmap_offset: 0, num_queues: queues, queue_size };
        let (reply, file) = self.say("GET_INFLIGHT_FD", |vhost| vhost.get_inflight_fd(&request))?;
        // The crate receives descriptors that programs would inherit.
        let closes = fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(io::Error::from);
        closes.map_err(|cause| socket("keeping the inflight region from other programs", cause))?;
        Ok(Inflight { file, size: reply.mmap_size, offset: reply.mmap_offset, queues, queue_size })
    }

    /// SET_INFLIGHT_FD: the record that an earlier back end has left.
    pub fn set_inflight(&mut self, inflight: &Inflight) -> Result<()> {
        let Inflight { file, size, offset, queues, queue_size } = inflight;
        let message = VhostUserInflight { mmap_size: *size, mmap_offset: *offset, num_queues: *queues, queue_size: *queue_size };
        self.say("SET_INFLIGHT_FD", |vhost| vhost.set_inflight_fd(&message, file.as_raw_fd()))
    }

    /// SET_LOG_BASE: the dirty log of `size` bytes at `offset` of the file. It is always answered.
    pub fn set_log_base(&mut self, file: RawFd, offset: u64, size: u64) -> Result<()> {
        let region = VhostUserDirtyLogRegion { mmap_size: size, mmap_offset: offset, mmap_handle: file };
        self.say("SET_LOG_BASE", |vhost| vhost.set_log_base(0, Some(region)))
    }

    /// SET_LOG_FD.
    pub fn set_log_fd(&mut self, fd: RawFd) -> Result<()> {
        self.say("SET_LOG_FD", |vhost| vhost.set_log_fd(fd))
    }

    /// SET_DEVICE_STATE_FD: the back end's state is to go to the front end (`save`) or to come from there, through `fd`.
    pub fn set_device_state_fd(&mut self, save: bool, fd: OwnedFd) -> Result<()> {
        let direction = if save { VhostTransferStateDirection::SAVE } else { VhostTransferStateDirection::LOAD };
        self.say("SET_DEVICE_STATE_FD", |vhost| {
            vhost.set_device_state_fd(direction, VhostTransferStatePhase::STOPPED, fd).map(drop)
        })
    }

    /// CHECK_DEVICE_STATE: whether the transfer succeeded.
    pub fn check_device_state(&mut self) -> Result<()> {
        self.say("CHECK_DEVICE_STATE", |vhost| vhost.check_device_state())
    }

    /// RESET_OWNER, which is deprecated.
    pub fn reset_owner(&mut self) -> Result<()> {
        self.say("RESET_OWNER", |vhost| vhost.reset_owner())
    }

    /// RESET_DEVICE.
    pub fn reset_device(&mut self) -> Result<()> {
        self.say("RESET_DEVICE", |vhost| vhost.reset_device())
    }

    /// SEND_RARP for `mac`.
    pub fn send_rarp(&mut self, mac: [u8; 6]) -> Result<()> {
        let mut number = [0; 8];
        number[..6].copy_from_slice(&mac);
        self.tell("SEND_RARP", FrontendReq::SEND_RARP, u64::from_le_bytes(number))
    }

    /// NET_SET_MTU.
    pub fn set_mtu(&mut self, mtu: u16) -> Result<()> {
        self.tell("NET_SET_MTU", FrontendReq::NET_SET_MTU, mtu.into())
    }

    /// SET_STATUS (virtio 1.4 section 2.1 bits).
    pub fn set_status(&mut self, status: u8) -> Result<()> {
        self.tell("SET_STATUS", FrontendReq::SET_STATUS, status.into())
    }

    /// GET_STATUS.
    pub fn status(&mut self) -> Result<u8> {
        Ok(self.ask("GET_STATUS", FrontendReq::GET_STATUS, &[])? as u8)
    }
}

/// An `EventFd` of a duplicate of `fd`, of any kind: the crate only passes it on.
fn event(fd: RawFd) -> Result<EventFd> {
    // SAFETY: `fd` is open during this call (the callers hold its owner); the duplicate is ours alone.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(socket("duplicating a kick or call descriptor", io::Error::last_os_error()));
    }
    // SAFETY: `copy` was opened just now and has no other owner.
    Ok(unsafe { EventFd::from_raw_fd(copy) })
}
