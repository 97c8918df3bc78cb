//! Cloud Hypervisor's conversation with a back end, message by message, as its `virtio-devices/src/vhost_user/vu_common_ctrl.rs` and the
//! crate `vhost` hold it for the arguments of `memlane ch`: 1024 entries a virtqueue, two virtqueues.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use crate::common::*;
use memlane::port::PortState;
use memlane_rig::deadline::Deadline;
use memlane_rig::frontend::{features, wire};
use memlane_rig::memory::GuestMemory;
use vhost::vhost_user::message::{FrontendReq as Request, VhostUserProtocolFeatures as Protocol};
use vmm_sys_util::eventfd::EventFd;

/// Entries of a virtqueue.
const SIZE: u32 = 1024;
/// Bytes between two areas of virtqueues: a descriptor table of 1024 entries is as long.
const STEP: u64 = 16 << 10;

/// An answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// None.
    Silence,
    /// A number.
    Number,
    /// The acknowledgement of success, once REPLY_ACK is negotiated.
    Success,
}

struct Conversation {
    stream: UnixStream,
    flags: u32,
}

impl Conversation {
    /// Sends a message; returns the number in the answer.
    fn say(&self, request: Request, body: &[u8], files: &[i32], answer: Answer) -> u64 {
        wire::send(&self.stream, request as u32, self.flags, body, files).unwrap();
        if answer == Answer::Silence {
            return 0;
        }
        let told = wire::receive(&self.stream, Deadline::after(TIMEOUT)).unwrap();
        assert_eq!((told.code, told.flags & wire::REPLY, told.body.len()), (request as u32, wire::REPLY, 8), "{request:?}");
        let number = told.number().unwrap();
        assert!(answer == Answer::Number || number == 0, "{request:?}: {number}");
        number
    }

    fn ring(&self, request: Request, ring: u32, number: u32) {
        self.say(request, &[ring.to_le_bytes(), number.to_le_bytes()].concat(), &[], Answer::Success);
    }

    fn enable(&self, on: u32) {
        (0..2).for_each(|ring| self.ring(Request::SET_VRING_ENABLE, ring, on));
    }
}

#[test]
fn its_conversation_is_answered_as_it_expects() {
    let bed = Bed::with("", &["queues = 1"]);
    let memory = GuestMemory::new(64 << 20).unwrap();
    let mut talk = Conversation { stream: UnixStream::connect(bed.socket(0)).unwrap(), flags: wire::VERSION };

    // negotiate_features_vhost_user
    talk.say(Request::SET_OWNER, &[], &[], Answer::Silence);
    let offered = talk.say(Request::GET_FEATURES, &[], &[], Answer::Number);
    let wanted = features::VERSION_1 | features::MRG_RXBUF | features::GUEST_CSUM | features::PROTOCOL_FEATURES;
    assert_eq!(offered & wanted, wanted);
    let protocol = talk.say(Request::GET_PROTOCOL_FEATURES, &[], &[], Answer::Number);
    let known = Protocol::MQ | Protocol::CONFIGURE_MEM_SLOTS | Protocol::REPLY_ACK;
    let agreed = protocol & known.bits();
    assert_ne!(agreed & Protocol::REPLY_ACK.bits(), 0);
    talk.say(Request::SET_PROTOCOL_FEATURES, &agreed.to_le_bytes(), &[], Answer::Silence);
    talk.flags |= wire::NEED_REPLY;
    assert!(talk.say(Request::GET_QUEUE_NUM, &[], &[], Answer::Number) >= 1);

    // setup_vhost_user
    talk.say(Request::SET_FEATURES, &(offered & wanted).to_le_bytes(), &[], Answer::Success);
    let region = memory.table_entry(0);
    let fields = [region.guest_phys_addr, region.memory_size, region.userspace_addr, region.mmap_offset];
    let table = [&[1_u32, 0].map(u32::to_le_bytes).concat()[..], &fields.map(u64::to_le_bytes).concat()].concat();
    talk.say(Request::SET_MEM_TABLE, &table, &[region.mmap_handle], Answer::Success);
    (0..2).for_each(|ring| talk.ring(Request::SET_VRING_NUM, ring, SIZE));
    let events: Vec<EventFd> = (0..4).map(|_| EventFd::new(0).unwrap()).collect();
    for ring in 0..2_u32 {
        let [descriptors, available, used] = [0, 1, 2].map(|area| region.userspace_addr + (u64::from(ring) * 3 + area) * STEP);
        let addresses = [descriptors, used, available, 0].map(u64::to_le_bytes).concat();
        let body = [&[ring, 0].map(u32::to_le_bytes).concat()[..], &addresses].concat();
        talk.say(Request::SET_VRING_ADDR, &body, &[], Answer::Success);
        // The available index: of a guest that has posted nothing yet.
        talk.ring(Request::SET_VRING_BASE, ring, 0);
        for (request, event) in [(Request::SET_VRING_CALL, 2 * ring), (Request::SET_VRING_KICK, 2 * ring + 1)] {
            let file = events[event as usize].as_raw_fd();
            talk.say(request, &u64::from(ring).to_le_bytes(), &[file], Answer::Success);
        }
    }
    talk.enable(1);
    events[1].write(1).unwrap();
    events[3].write(1).unwrap();
    bed.wait_for(|bed| bed.state(0) == PortState::Running, "the port runs");

    // pause_vhost_user and resume_vhost_user; reset_vhost_user, and the guest's driver starts anew.
    for on in [0, 1, 0, 1] {
        talk.enable(on);
    }
    talk.say(Request::SET_FEATURES, &(offered & wanted).to_le_bytes(), &[], Answer::Success);
    assert_eq!(bed.state(0), PortState::Running);
    assert_eq!(bed.daemon().network().port(memlane::id::PortId(0)).unwrap().quarantines(), 0);
}
