//! Remedies of drops, by reason.

use crate::stats::DropReason::{self, self as R};

/// The remedies, and the reasons of each.
const REMEDIES: [(&[DropReason], &str); 31] = [
    (
        &[
            R::ChainLoop,
            R::ChainNext,
            R::ChainIndirect,
            R::ChainIndirectLength,
            R::ChainAddress,
            R::ChainDirection,
            R::ChainTooLong,
            R::HeadTwice,
            R::Runt,
        ],
        "The guest's driver breaks the rules of virtio: update it",
    ),
    (
        &[R::BadChecksumOffload, R::BadSegmentation, R::OffloadNotAgreed],
        "Update the guest's driver, or turn its offloads off: ethtool -K DEVICE tx off",
    ),
    (
        &[R::ChecksumMisplaced],
        "Have the sender complete the checksums of tunnels and fragments itself: in a container ethtool -K DEVICE tx off; memlane capture --drops -c 1 \
             shows the frame",
    ),
    (
        &[R::BadSource],
        "Give the guest an address of its own, or take the key mac from the port that has it; memlane capture --drops -c 1 shows the frame",
    ),
    (&[R::SamePort], "The guest's own bridge delivers such frames: no fault, unless an address was taken over by another port"),
    (
        &[R::Storm],
        "Raise the key storm, its limit a second, or set it to 0 for no limit (memlane set --storm); or find the source of the broadcasts",
    ),
    (
        &[R::SpoofedSource],
        "Have the guest use the address of the port's key mac (without it, the one that memlane list shows), or set anti-spoof = \"off\" where it is a router or bridges others",
    ),
    (
        &[R::SpoofedIp, R::SpoofedArp],
        "Add the address to the port's key addresses, or to allowed for a router; memlane events names it; memlane capture --drops -c 1 shows the frame",
    ),
    (&[R::Isolated], "As the key isolated of both ports says: frames pass only if one of them is not isolated"),
    (&[R::VlanNotCarried], "Add the VLAN to the port's trunk, or have the guest send without tags where the port has vlan alone"),
    (
        &[R::ReservedGroup],
        "Set reserved = \"pass\" where the port leads to a machine that is to receive spanning tree, LACP, 802.1X or LLDP",
    ),
    (&[R::PolicyDenied], "Add a [[policy]] that allows the frame before the one that denies it; memlane denials names both"),
    (
        &[R::NotAServer],
        "Add may-serve = [\"dhcp\"] or [\"ra\"] to the port of the DHCP server or router; memlane events names the one that sends",
    ),
    (
        &[R::Loop],
        "Find the guest that bridges two ports of the segment, or two guests with one MAC address; address-moves = 0 turns the check off",
    ),
    (&[R::TransmitDisabled], "The front end has disabled the transmit queue: no fault while the guest boots or stops"),
    (&[R::SenderStopped], "No fault where the guest was stopped or reset"),
    (
        &[R::SenderMemory, R::ReceiverMemory],
        "Have the front end take the guest's memory first: prealloc=on for QEMU's memory back end",
    ),
    (&[R::ReceiverAbsent], "Start the guest, or bring its interface up; if it is disabled, enable it"),
    (
        &[R::ReceiverFull, R::FloodNoRoom],
        "The guest is slower than its senders: give it more CPU time or longer rings (rx_queue_size=1024 for QEMU), or limit the senders by the \
             key transmit",
    ),
    (
        &[R::ReceiverStalled],
        "The guest took nothing for stall-timeout-ms: see that it runs (it may be paused, or have crashed) and that its interface is up",
    ),
    (
        &[R::TooLong],
        "No fault while senders learn the MTU of the way; else give the sender's port the same key mtu, or remove it, so that the uplink's is offered",
    ),
    (
        &[R::TooLongForReceiver],
        "Use the same MTU in all guests of the segment (the key mtu offers it; ip link set DEVICE mtu 1500), or mergeable receive buffers",
    ),
    (&[R::BadReceiveChains], "The guest's driver posts invalid receive buffers: update it"),
    (&[R::LinkLoss], "As link emulation is configured; memlane set --link none ends it"),
    (&[R::LinkFull], "Raise the queue of the link, or memory-mib"),
    (&[R::TapRefused], "See that the interface is up and takes frames of this length: ip link set DEVICE up mtu 1500"),
    (
        &[R::SocketFull],
        "The port sends faster than the switch forwards: limit it by the key transmit, or see which receiver is slow; without CAP_NET_ADMIN, \
             raise net.core.rmem_max",
    ),
    (
        &[R::NoFlow],
        "Nothing to do for single frames, which are late answers; a frame from outside needs a forward of the passt port",
    ),
    (
        &[R::NotTranslated],
        "Have the guest send TCP, UDP or echo requests, without fragments, to addresses outside its segment: the router translates no others",
    ),
    (&[R::TwinHeaders], "Have the sender use shorter extension headers or options: to a twin, 140 bytes of a frame are read"),
    (&[R::GrantRefused], "See that both domains of Xen run: a page of one could not be reached"),
];

/// The remedy where frames are dropped for `reason`.
pub fn remedy(reason: DropReason) -> &'static str {
    REMEDIES.iter().find(|(reasons, _)| reasons.contains(&reason)).map_or("", |(_, remedy)| remedy)
}

// Each reason has one remedy.
const _: () = {
    let (mut seen, mut at) = (0_u64, 0);
    while at < REMEDIES.len() {
        let (reasons, mut of) = (REMEDIES[at].0, 0);
        while of < reasons.len() {
            let bit = 1 << reasons[of] as u8;
            assert!(seen & bit == 0, "a drop reason has two remedies");
            (seen, of) = (seen | bit, of + 1);
        }
        at += 1;
    }
    assert!(seen.count_ones() as usize == DropReason::ALL.len(), "a drop reason has no remedy");
};
