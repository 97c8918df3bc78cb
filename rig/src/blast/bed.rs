//! From a plan to running ports: guests connected, rings filled, templates cut.

use std::sync::Arc;

use crate::frontend::features::{self, Features};
use crate::guest::{GuestError, ReceiveBuffers, SendBuffers, ToyGuest};
use crate::memory::MemoryPlan;
use crate::ring::RingError;

use super::flow::Source;
use super::plan::{Plan, PortPlace};
use super::port::{Mould, SinkPort, SourcePort, TapPlace, TapSink, TapSource, VuSink, VuSource, open_tap};
use super::stamp::{Carrier, Parts, Template, host};

/// Why a bed cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BedError {
    /// The guest of a port did not come up.
    #[error("port {port} ({place}): {cause}")]
    Guest {
        /// Which port.
        port: usize,
        /// Where it is.
        place: String,
        /// Why not.
        cause: GuestError,
    },
    /// The rings of a port could not be filled.
    #[error("port {port}: {cause}")]
    Ring {
        /// Which port.
        port: usize,
        /// Why not.
        cause: RingError,
    },
    /// A TAP device could not be had.
    #[error("port {port}: {cause}")]
    Tap {
        /// Which port.
        port: usize,
        /// Why not.
        cause: String,
    },
    /// Segments of frames of several sizes cannot be told apart.
    #[error("port {port} takes no unsegmented TCP (guest_tso4): then only one frame size can be measured; give one --sizes")]
    MixedSegments {
        /// The receiving port.
        port: usize,
    },
    /// The back end lacks a feature that the plan cannot do without.
    #[error("port {port}: the back end does not offer {lacking}, which {purpose} needs")]
    Lacking {
        /// Which port.
        port: usize,
        /// Names of features.
        lacking: String,
        /// The option of the run that needs them.
        purpose: &'static str,
    },
}

/// A flow's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Sending port.
    pub from: usize,
    /// Receiving port.
    pub to: usize,
    /// Which of the flows between the two.
    pub number: u16,
}

/// One queue of a port that sends, and the flows that go out there.
pub struct Outlet {
    /// The port's index.
    pub port: usize,
    /// Where frames go.
    pub source: SourcePort,
    /// Indices of flows.
    pub flows: Vec<usize>,
}

/// One queue of a port that receives.
pub struct Inlet {
    /// The port's index.
    pub port: usize,
    /// Where frames come from.
    pub sink: SinkPort,
}

/// All that a run works with.
pub struct Bed {
    /// Every sending queue.
    pub outlets: Vec<Outlet>,
    /// Every receiving queue.
    pub inlets: Vec<Inlet>,
    /// The flows' ways, by index.
    pub ways: Vec<Way>,
    /// The flows' sending ends, by index.
    pub sources: Vec<Source>,
    /// Lengths of each flow's frames in turn.
    pub lengths: Vec<Vec<u32>>,
    /// How many frames of each flow arrive for one that is sent.
    pub parts: Vec<u32>,
    /// Templates and payload from which frames are made.
    pub mould: Mould,
    /// Negotiated features, by port; 0 for TAP.
    pub features: Vec<Features>,
    /// The guests hold the connections and the memory.
    pub guests: Vec<ToyGuest>,
}

impl Bed {
    /// Connects every port and fills its rings.
    ///
    /// # Errors
    /// [`BedError`]: the first port that does not come up.
    pub fn new(plan: &Plan) -> Result<Self, BedError> {
        let mut bed = Self {
            outlets: Vec::new(),
            inlets: Vec::new(),
            ways: ways(plan),
            sources: Vec::new(),
            lengths: Vec::new(),
            parts: Vec::new(),
            mould: Mould { templates: Vec::new(), carrier: plan.carrier, touch: plan.touch },
            features: Vec::new(),
            guests: Vec::new(),
        };
        for (port, place) in plan.ports.iter().enumerate() {
            match place {
                PortPlace::Tap(place) => bed.add_tap(plan, port, place)?,
                PortPlace::Connect(_) | PortPlace::Listen(_) => bed.add_guest(plan, port, place)?,
            }
        }
        for flow in 0..bed.ways.len() {
            bed.cut(plan, flow)?;
        }
        bed.assign_flows();
        Ok(bed)
    }

    fn add_tap(&mut self, plan: &Plan, port: usize, place: &TapPlace) -> Result<(), BedError> {
        let offloads = plan.carrier != Carrier::Udp;
        let device = Arc::new(open_tap(place, offloads).map_err(|cause| BedError::Tap { port, cause })?);
        let source = SourcePort::Tap(TapSource::new(port, Arc::clone(&device)));
        self.outlets.push(Outlet { port, source, flows: Vec::new() });
        self.inlets.push(Inlet { port, sink: SinkPort::Tap(TapSink::new(port, device)) });
        self.features.push(0);
        Ok(())
    }

    fn add_guest(&mut self, plan: &Plan, port: usize, place: &PortPlace) -> Result<(), BedError> {
        let fault = |cause| BedError::Guest { port, place: place.to_string(), cause };
        let mut guest = connect(plan, port, place).map_err(fault)?;
        let features = guest.features();
        demand(plan, port, features)?;
        let mergeable = features & features::MRG_RXBUF != 0;
        let in_order = features & features::IN_ORDER != 0;
        let room = receive_bytes(plan, mergeable) + 12;
        for pair in guest.take_pairs() {
            let (receive, transmit) = pair.into_queues();
            let ring = |cause| BedError::Ring { port, cause };
            let mut sink = VuSink::new(port, receive, room, mergeable, plan.touch).map_err(ring)?;
            sink.announce();
            let longest = plan.longest() as usize;
            let source = VuSource::new(port, transmit, plan.port.shape, (longest, !plan.port.holes), in_order).map_err(ring)?;
            self.inlets.push(Inlet { port, sink: SinkPort::Vu(sink) });
            self.outlets.push(Outlet { port, source: SourcePort::Vu(source), flows: Vec::new() });
        }
        self.features.push(features);
        self.guests.push(guest);
        Ok(())
    }

    /// Cuts the templates of a flow; the receiver's negotiated features decide whether its frames arrive as GSO frames or as
    /// segments.
    fn cut(&mut self, plan: &Plan, flow: usize) -> Result<(), BedError> {
        let way = self.ways[flow];
        let sizes = plan.sizes(way.from);
        let first = self.mould.templates.len() as u32;
        let segmented = self.must_be_segmented(plan, way.to);
        let parts = |length| match plan.carrier {
            Carrier::Tcp { mss } if segmented => Parts::segments(plan.carrier, length, mss),
            _ => Parts::UNSEGMENTED,
        };
        let template =
            |&(size, _): &(u32, u32)| Template::new(plan.carrier, way.from, way.to, way.number, size).in_parts(parts(size));
        let templates: Vec<Template> = sizes.0.iter().map(template).collect();
        let count = templates.iter().map(|template| template.parts.count).max().unwrap_or(1);
        if count > 1 && templates.len() > 1 {
            return Err(BedError::MixedSegments { port: way.to });
        }
        let order = sizes.schedule();
        let arriving = order.iter().flat_map(|&index| templates[index].parts.lengths(plan.carrier, templates[index].length));
        self.lengths.push(arriving.collect());
        let schedule = order.iter().map(|&index| (first + index as u32, templates[index].length)).collect();
        self.sources.push(Source::new(flow as u16, schedule));
        self.parts.push(count);
        self.mould.templates.extend(templates);
        Ok(())
    }

    /// Whether a port's guest takes no unsegmented TCP.
    fn must_be_segmented(&self, plan: &Plan, port: usize) -> bool {
        !matches!(plan.ports[port], PortPlace::Tap(_)) && self.features[port] & features::GUEST_TSO4 == 0
    }

    /// Spreads each port's flows over its queues.
    fn assign_flows(&mut self) {
        for (flow, way) in self.ways.iter().enumerate() {
            let mut queues: Vec<_> = self.outlets.iter_mut().filter(|outlet| outlet.port == way.from).collect();
            let least = queues.iter_mut().min_by_key(|outlet| outlet.flows.len());
            least.into_iter().for_each(|outlet| outlet.flows.push(flow));
        }
    }
}

fn connect(plan: &Plan, port: usize, place: &PortPlace) -> Result<ToyGuest, GuestError> {
    // The rings get the generator's own buffers; the guest posts none.
    let none = ReceiveBuffers { count: Some(0), size: 0, iovec: 1, repost: false };
    let builder = ToyGuest::builder()
        .mac(host(port).mac)
        .features(plan.port.features | features::PROTOCOL_FEATURES | features::VERSION_1)
        .queue_pairs(plan.port.queues)
        .ring_size(plan.port.ring_size)
        .indirect_tables(2)
        .receive_buffers(none)
        .send_buffers(SendBuffers { count: 1, size: 64 })
        .memory(memory_plan(plan))
        .habit(plan.port.habit)
        .timeout(plan.timeout);
    match place {
        PortPlace::Listen(path) => builder.listen(path),
        PortPlace::Connect(path) => builder.connect(path),
        PortPlace::Tap(_) => unreachable!("TAP ports are added by add_tap"),
    }
}

/// Memory for both rings with all their buffers, for any set of negotiated features.
fn memory_plan(plan: &Plan) -> MemoryPlan {
    let size = u64::from(plan.port.ring_size);
    let receive = VuSink::stride(receive_bytes(plan, false).max(receive_bytes(plan, true)) + 12);
    let send = VuSource::stride(plan.longest() as usize);
    let rings = 64 * size + 4096;
    let pair = size * (receive + send + 64 + 32) + 2 * rings;
    MemoryPlan::new(plan.port.queues as u64 * pair + (1 << 20)).on(plan.port.pages)
}

fn receive_bytes(plan: &Plan, mergeable: bool) -> usize {
    match plan.port.receive_bytes {
        0 if mergeable => 2048,
        0 => plan.longest().max(2048) as usize,
        bytes => bytes as usize,
    }
}

/// Features that the plan cannot do without.
fn demand(plan: &Plan, port: usize, features: Features) -> Result<(), BedError> {
    let indirect = match plan.port.shape {
        super::port::Shape::Indirect => features::INDIRECT_DESC,
        _ => 0,
    };
    let offloads = match plan.carrier {
        Carrier::Tcp { .. } => features::HOST_TSO4 | features::CSUM,
        Carrier::Udp => 0,
    };
    for (needed, purpose) in [(indirect, "--shape indirect"), (offloads, "--tso")] {
        let lacking = needed & !features;
        if lacking != 0 {
            let lacking = features::names(lacking).join(", ");
            return Err(BedError::Lacking { port, lacking, purpose });
        }
    }
    Ok(())
}

fn ways(plan: &Plan) -> Vec<Way> {
    let pairs = plan.pattern.pairs(plan.ports.len());
    pairs.into_iter().flat_map(|(from, to)| (0..plan.flows).map(move |number| Way { from, to, number })).collect()
}
