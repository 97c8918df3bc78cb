//! A forecast of a frame comes true when the frame is sent, for random tables, settings and frames, and changes nothing.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::wait_until;
use crate::dice::Dice;
use memlane::explain::Forecast;
use memlane::frame::MacAddress;
use memlane::id::PortId;
use memlane::network::{AttachSettings, Network};
use memlane::packet::Packet;
use memlane::policy::filter::{Action, Names, PolicyRule};
use memlane::policy::{AntiSpoof, Flood, PortLimits, Reserved};
use memlane::port::end::{Backend, Ends, ReceiveEnd, TransmitEnd};
use memlane::port::settings::PortSettings;
use memlane::port::{Offer, Port};
use memlane::ring::{OpenOutcome, PlaceOutcome};
use memlane::settings::Settings;
use memlane::shared::Shared;
use memlane::stats::PortTotals;
use memlane::table::{LearnedAddress, Table};
use memlane::time::cycles;
use memlane::worker::Worker;
use memlane_dataplane::pool::Pool;

/// Frames, and those of one network.
const CASES: usize = 10_000;
const CASES_OF_ONE: usize = 100;
const PORTS: usize = 6;
/// The IP address of each guest, where `anti-spoof = "all"` demands it.
const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// A network that is older is not used any more: MAC addresses that are held may be released.
const OLDEST: Duration = Duration::from_secs(4);

/// Frames that a port is to transmit.
type Queue = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// A port that transmits the frames in its queue, and takes every frame.
#[derive(Debug)]
struct Wire(Queue);

impl Backend for Wire {
    fn into_ends(self, _: &Arc<Pool>) -> std::io::Result<Ends> {
        Ok(Ends {
            transmit: Box::new(WireTransmit(self.0)),
            receive: Box::new(WireReceive),
            readable: None,
            writable: None,
            room: None,
        })
    }
}

/// One frame is in flight at a time, with the number 0.
#[derive(Debug)]
struct WireTransmit(Queue);

impl TransmitEnd for WireTransmit {
    fn look(&mut self, most: u16) -> u16 {
        most.min(self.0.lock().unwrap().len() as u16)
    }

    fn open(&mut self, packet: &mut Packet) -> OpenOutcome {
        let queue = self.0.lock().unwrap();
        let Some(frame) = queue.front() else { return OpenOutcome::Nothing };
        let transmit = packet.transmit;
        *packet = Packet::from_bytes(packet.source, frame);
        packet.transmit = transmit;
        OpenOutcome::Packet
    }

    fn keep(&mut self, _: &Packet) {
        self.0.lock().unwrap().pop_front();
    }

    fn release(&mut self, _: u16) {}

    fn size(&self) -> u16 {
        64
    }

    fn has_news(&self) -> bool {
        !self.0.lock().unwrap().is_empty()
    }

    fn wake(&mut self) {}
}

#[derive(Debug)]
struct WireReceive;

impl ReceiveEnd for WireReceive {
    fn place(&mut self, _: &mut Packet) -> PlaceOutcome {
        PlaceOutcome::Complete(1)
    }

    fn publish(&mut self) {}
}

/// A port of a random network.
struct Guest {
    port: Arc<Port>,
    queue: Queue,
    /// The queue is served and enabled.
    receives: bool,
    /// The queue is served.
    runs: bool,
}

/// A random network; this thread drives its worker.
struct World {
    network: Arc<Network>,
    worker: Worker,
    guests: Vec<Guest>,
    made: Instant,
}

/// State that a forecast must not change.
type Snapshot = (Vec<(LearnedAddress, PortId, u32)>, u32, Vec<PortTotals>);

fn address(number: usize) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 0, number as u8])
}

impl World {
    fn new(dice: &mut Dice) -> Self {
        let settings = Settings { moves: dice.pick(&[0, 2, 2, 8]), ..Settings::default() };
        let (network, mut workers, _) = Network::unstarted(Shared::new(1, dice.number(), settings)).unwrap();
        let mut worker = workers.remove(0);
        let mut guests = Vec::new();
        for number in 0..PORTS {
            let limits = PortLimits {
                storm: dice.pick(&[0, 1, 1, 200_000]),
                anti_spoof: dice.pick(&[AntiSpoof::Off, AntiSpoof::Off, AntiSpoof::Mac, AntiSpoof::All]),
                addresses: vec![OWN_ADDRESS.into()],
                isolated: dice.once_in(4),
                reserved: dice.once_in(4).then_some(Reserved::Drop),
                vlan: dice.pick(&[None, None, None, None, Some(1), Some(2)]),
                trunk: dice.pick(&[vec![], vec![], vec!["1-2".parse().unwrap()]]),
                ..PortLimits::default()
            };
            let pinned = dice.once_in(2);
            let (runs, enabled) = (number == 0 || !dice.once_in(6), number == 0 || !dice.once_in(6));
            let segment = if dice.once_in(8) { "other" } else { "lan" };
            let queue = Queue::default();
            let port = while_it_steps(&mut worker, || {
                let mac = pinned.then(|| address(number));
                let settings = PortSettings { enabled, mac, limits: limits.clone(), ..PortSettings::default() };
                let name = format!("p{number}");
                let attach_settings = AttachSettings { name: &name, segment, settings: &settings, offer: Offer::default() };
                let port = network.add_port(&attach_settings, PORTS).unwrap();
                if runs {
                    network.serve(&port, Wire(Arc::clone(&queue))).unwrap();
                }
                port
            });
            guests.push(Guest { port, queue, runs, receives: runs && enabled });
        }
        if dice.once_in(3) {
            let names = |dice: &mut Dice| Names(if dice.once_in(3) { vec![] } else { vec![format!("p{}", dice.below(PORTS))] });
            let action = |dice: &mut Dice| Some(dice.pick(&[Action::Allow, Action::Deny]));
            let rules =
                [(); 4].map(|()| PolicyRule { from: names(dice), to: names(dice), action: action(dice), ..PolicyRule::default() });
            while_it_steps(&mut worker, || network.set_policy(&rules));
        }
        let world = Self { network, worker, guests, made: Instant::now() };
        world.fill(dice);
        world
    }

    /// Fills tables and storm limits by chance.
    fn fill(&self, dice: &mut Dice) {
        for guest in &self.guests {
            let table = guest.port.segment.table();
            for number in 0..if dice.once_in(10) { 1100 } else { dice.below(20) } {
                let learned = MacAddress::new([2, 0, 0, dice.below(3) as u8, (number >> 8) as u8, number as u8]);
                table.learn(learned, guest.port.id, 0);
            }
            if dice.once_in(2) {
                let flood = Flood { reaches_one: false, suspect: false, now: cycles() };
                let _ = (0..2000).filter(|_| guest.port.policy.take_flood(flood).is_ok()).count();
            }
            if dice.once_in(8) {
                guest.port.segment.set_uplink(Some(guest.port.id));
            }
        }
    }

    /// A frame of port `from`, half of them from its own address.
    fn frame(dice: &mut Dice, from: usize) -> Vec<u8> {
        let any = |dice: &mut Dice| match dice.below(12) {
            10 => [0; 6],
            11 => dice.pick(&[[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [1, 0x80, 0xc2, 0, 0, 0xe]]),
            number => address(number).bytes(),
        };
        let source = if dice.once_in(2) { address(from).bytes() } else { any(dice) };
        let mut frame = [any(dice), source].concat();
        if dice.once_in(3) {
            let tag = dice.pick(&[0_u16, 1, 2, 0xe002, 0xfff]);
            frame.extend(dice.pick(&[[0x81, 0x00], [0x88, 0xa8]]));
            frame.extend(tag.to_be_bytes());
        }
        match dice.below(6) {
            // No ARP packet that anyone can read.
            0 => frame.extend([0x08, 0x06]),
            1 => {
                frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
                frame.extend(dice.pick(&[OWN_ADDRESS, Ipv4Addr::new(10, 0, 0, 9)]).octets());
                frame.extend([10, 0, 0, 2]);
                // From a DHCP server's port, to that of its clients or another.
                frame.extend([[0, 67], dice.pick(&[[0, 68], [3, 0]]), [0, 8], [0, 0]].concat());
            }
            _ => frame.extend([0x88, 0xb5]),
        }
        frame.resize(60, dice.number() as u8);
        frame
    }

    fn totals(&self) -> Vec<PortTotals> {
        // Cycles are charged for looking too.
        self.guests.iter().map(|guest| PortTotals { cycles: 0, ..guest.port.totals() }).collect()
    }

    fn snapshot(&self, table: &Table) -> Snapshot {
        let records = table.records().into_iter().map(|record| (record.learned_address, record.port, record.confirmed));
        (records.collect(), table.generation(), self.totals())
    }

    fn forecast(&self, from: &Guest, frame: &[u8]) -> Forecast {
        Forecast::foresee(&self.network, &from.port, frame, self.made.elapsed().as_secs() as u32)
    }

    fn index(&self, name: &str) -> usize {
        self.guests.iter().position(|guest| guest.port.name == name).unwrap()
    }

    /// Receives and drops of each port after `before` if the forecast comes true.
    fn expected(&self, before: &[PortTotals], forecast: &Forecast) -> Outcomes {
        let mut outcomes = outcomes(before);
        forecast.receivers.iter().for_each(|name| outcomes[self.index(name)].0 += 1);
        for drop in &forecast.drops {
            *outcomes[self.index(&drop.port)].1.entry(drop.reason.clone()).or_default() += 1;
        }
        outcomes
    }
}

/// Frames received and dropped, by port.
type Outcomes = Vec<(u64, BTreeMap<String, u64>)>;

fn outcomes(totals: &[PortTotals]) -> Outcomes {
    totals.iter().map(|totals| (totals.receive_frames, totals.drops.clone())).collect()
}

/// Runs `work`, which waits for the worker, on another thread while the worker makes poll iterations.
fn while_it_steps<R: Send>(worker: &mut Worker, work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let operator = scope.spawn(work);
        while !operator.is_finished() {
            worker.step();
            std::thread::yield_now();
        }
        operator.join().unwrap()
    })
}

#[test]
fn what_is_foreseen_happens_for_random_tables_and_settings() {
    let mut dice = Dice::new();
    let (mut cases, mut limited, mut overtaken) = (0, 0_u32, 0_u32);
    let (mut reasons, mut delivered, mut flooded) = (BTreeMap::<String, u32>::new(), 0, 0);
    while cases < CASES {
        let mut world = World::new(&mut dice);
        for _ in 0..CASES_OF_ONE {
            if world.made.elapsed() > OLDEST {
                break;
            }
            let from = dice.below(PORTS);
            let frame = World::frame(&mut dice, from);
            let guest = &world.guests[from];
            if !guest.runs || !guest.receives {
                continue;
            }
            let table = guest.port.segment.table();
            let before = world.snapshot(&table);
            let forecast = world.forecast(guest, &frame);
            let again = world.forecast(guest, &frame);
            assert_eq!(world.snapshot(&table), before, "asking changes nothing: {forecast:?}");
            guest.queue.lock().unwrap().push_back(frame.clone());
            let queue = Arc::clone(&guest.queue);
            let is_taken = || {
                world.worker.step();
                queue.lock().unwrap().is_empty()
            };
            wait_until(is_taken, "the worker takes the frame");
            let happened = outcomes(&world.totals());
            let wanted = world.expected(&before.2, &forecast);
            // A limiter that was shut may open before the frame is sent.
            let is_limited = forecast.steps.iter().any(|step| step.contains("has used up its limit of flooded frames"));
            limited += u32::from(is_limited);
            if happened != wanted && is_limited {
                let receivers = world.guests.iter().enumerate().filter(|(index, other)| {
                    *index != from && other.receives && other.port.segment.id == world.guests[from].port.segment.id
                });
                let receivers = receivers.map(|(_, other)| other.port.name.clone()).collect();
                assert_eq!(happened, world.expected(&before.2, &Forecast { receivers, ..Forecast::default() }));
                overtaken += 1;
            } else {
                assert_eq!(happened, wanted, "{frame:02x?} from p{from}: {forecast:?}");
                assert_eq!(again.outcome(), forecast.outcome());
            }
            forecast.drops.iter().for_each(|drop| *reasons.entry(drop.reason.clone()).or_default() += 1);
            delivered += forecast.receivers.len().min(1);
            flooded += usize::from(forecast.receivers.len() > 1);
            cases += 1;
        }
    }
    let reached: Vec<_> = reasons.keys().map(String::as_str).collect();
    assert_eq!(
        reached,
        [
            "bad-source",
            "isolated",
            "loop",
            "not-a-server",
            "policy-denied",
            "receiver-absent",
            "reserved-group",
            "same-port",
            "spoofed-arp",
            "spoofed-ip",
            "spoofed-source",
            "storm",
            "vlan-not-carried"
        ],
        "all of a verdict"
    );
    println!("{delivered} delivered, {flooded} flooded, {limited} behind a limit, {reasons:?}");
    assert!(delivered > CASES / 20 && flooded > CASES / 50 && limited > 40, "{delivered} {flooded} {limited}");
    assert!(overtaken < 20 + limited / 4, "{overtaken} of {limited}");
}
