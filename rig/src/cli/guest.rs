//! `memlane-rig guest`: a guest that answers ARP, neighbour discovery and ping, to try a port without a virtual machine.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use memlane_rig::frames::control::{self, Identity, Question};
use memlane_rig::frames::{Mac, NetHeader, check};
use memlane_rig::frontend::features;
use memlane_rig::guest::{GuestError, Habit, ToyGuest};

use super::{Verdict, signal};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Socket of the port.
    #[arg(value_name = "PATH")]
    socket: PathBuf,
    /// Listen at the socket instead of connecting to it.
    #[arg(long)]
    listen: bool,
    /// MAC address.
    #[arg(long, default_value = "02:00:00:00:00:63", value_parser = mac)]
    mac: Mac,
    /// IPv4 address.
    #[arg(long, default_value = "10.0.0.99")]
    ip: Ipv4Addr,
    /// IPv6 address.
    #[arg(long, default_value = "fd00::99")]
    ip6: Ipv6Addr,
    /// In which order the front end speaks: qemu, uml, dpdk or cloud-hypervisor.
    #[arg(long, default_value = "qemu", value_parser = super::habit)]
    habit: Habit,
    /// Ping this address once a second, besides answering.
    #[arg(long, value_name = "IP")]
    ping: Option<Ipv4Addr>,
    /// Stay so many seconds instead of until a signal.
    #[arg(long)]
    seconds: Option<f64>,
    /// Tell of frames that are not sound.
    #[arg(long)]
    check: bool,
    /// JSON, one object for each event.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  memlane-rig guest /run/memlane/a.sock --ip 10.0.0.5
  memlane-rig guest /run/memlane/b.sock --ip 10.0.0.6 --mac 02:00:00:00:00:06 --ping 10.0.0.5";

/// How long a wait for frames may last before signals are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

struct Session<'a> {
    arguments: &'a Arguments,
    guest: ToyGuest,
    me: Identity,
    /// MAC address of the pinged host, once it is known.
    pinged: Option<Mac>,
    asked: u16,
    last: Instant,
    answered: u64,
    seen: u64,
}

/// Answers until the end.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Verdict> {
    let quit = signal::quit_flag()?;
    let builder = ToyGuest::builder().mac(arguments.mac).habit(arguments.habit);
    let connected = match arguments.listen {
        true => builder.listen(&arguments.socket),
        false => builder.connect(&arguments.socket),
    };
    let guest = connected.with_context(|| arguments.socket.display().to_string())?;
    let me = Identity { mac: arguments.mac, v4: arguments.ip, v6: arguments.ip6 };
    let mut session = Session { arguments, guest, me, pinged: None, asked: 0, last: Instant::now(), answered: 0, seen: 0 };
    session.greet()?;
    let end = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds.max(0.0)));
    while !quit.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        session.turn()?;
    }
    let (seen, answered) = (session.seen, session.answered);
    session.tell("end", &format!("{seen} frames seen, {answered} questions answered"));
    Ok(Verdict::Good)
}

impl Session<'_> {
    fn greet(&mut self) -> anyhow::Result<()> {
        let agreed = features::names(self.guest.features()).join(" ");
        self.tell("connected", &format!("features {agreed}"));
        self.guest.send(&control::announcement(self.me.mac, self.me.v4))?;
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.ask()?;
        match self.guest.receive(POLL_INTERVAL) {
            Ok(frame) => self.hear(&frame.header, &frame.bytes)?,
            Err(GuestError::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if !self.guest.connected() {
            self.tell("lost", "the switch is gone; waiting for it");
            self.guest.reconnect().context("the switch did not come back")?;
            self.greet()?;
        }
        Ok(())
    }

    fn hear(&mut self, header: &NetHeader, frame: &[u8]) -> anyhow::Result<()> {
        self.seen += 1;
        if self.arguments.check
            && let Err(flaw) = check(header, frame)
        {
            self.tell("flaw", &format!("{flaw} (frame of {} bytes)", frame.len()));
        }
        if let Some((question, answer)) = control::answer(&self.me, frame) {
            self.answered += 1;
            self.guest.send(&answer)?;
            self.tell("answered", &describe(question));
        }
        self.note_answer(frame);
        Ok(())
    }

    /// Sends an ARP request or a ping once a second.
    fn ask(&mut self) -> anyhow::Result<()> {
        let Some(wanted) = self.arguments.ping.filter(|_| self.last.elapsed() >= Duration::from_secs(1)) else {
            return Ok(());
        };
        self.last = Instant::now();
        let question = match self.pinged {
            None => control::arp_request(self.me.mac, self.me.v4, wanted),
            Some(mac) => {
                self.asked = self.asked.wrapping_add(1);
                control::ping((self.me.mac, self.me.v4), (mac, wanted), self.asked, b"memlane-rig")
            }
        };
        self.guest.send(&question)?;
        Ok(())
    }

    /// Notes an answer to our own ARP request or ping.
    fn note_answer(&mut self, frame: &[u8]) {
        let Some(wanted) = self.arguments.ping else {
            return;
        };
        let Some(answer) = control::answered(frame, wanted) else {
            return;
        };
        match answer {
            control::Answer::Arp(mac) => self.pinged = Some(mac),
            control::Answer::Ping(number) if number == self.asked => {
                let microseconds = self.last.elapsed().as_micros();
                self.tell("pinged", &format!("{wanted} number {number}: {microseconds} us"));
            }
            control::Answer::Ping(_) => {}
        }
    }

    fn tell(&self, event: &str, text: &str) {
        if self.arguments.json {
            println!("{}", serde_json::json!({ "event": event, "text": text }));
        } else {
            println!("{event}: {text}");
        }
    }
}

fn describe(question: Question) -> String {
    match question {
        Question::Arp => "an ARP request".into(),
        Question::Neighbour => "a neighbour solicitation".into(),
        Question::Ping(from) => format!("a ping from {from}"),
    }
}

fn mac(text: &str) -> Result<Mac, String> {
    let bytes: Vec<u8> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()
        .map_err(|_| format!("{text:?} is no MAC address"))?;
    bytes.try_into().map_err(|_| format!("{text:?} is no MAC address: six bytes are"))
}
