//! The terminal: draws the screen after each report, key and resize, and restores the terminal however the program ends.
//!
//! Three threads send to the one that draws: keys, signals, and the reports, one per interval. They end with the process.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};

use super::view::{Sort, View};
use super::{Failure, REPORT, draw};
use crate::control::{Client, ControlError, Report};

/// Most messages that wait for the thread that draws.
const MOST_MESSAGES: usize = 64;
/// Signals that end the program.
const ENDING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT];

/// A message to the thread that draws.
enum Message {
    Key(KeyEvent),
    Resized,
    Report(Box<Result<Report, ControlError>>),
    /// The terminal cannot be read.
    Closed(io::Error),
    Signal(Signal),
}

/// How the screen ends.
enum End {
    Quit,
    Signal(Signal),
    Failed(Failure),
}

/// Shows the network until the user quits, a signal ends the program, or the network ends.
pub(super) fn run(client: Client, first: Report, interval: Duration, sort: Sort) -> Result<(), Failure> {
    let mut signals = SigSet::empty();
    ENDING.into_iter().for_each(|signal| signals.add(signal));
    // Threads started from here on leave these signals to the one that waits for them.
    signals.thread_block().map_err(Failure::running)?;
    let terminal = ratatui::try_init().map_err(|error| {
        ratatui::restore();
        Failure::Running(format!("the terminal cannot be set up: {error}"))
    })?;
    let messages = start_threads(client, interval, signals);
    let end = show(terminal, View::new(first, sort), &messages);
    // Fails if the terminal is gone, which is told below.
    let _ = ratatui::try_restore();
    match end {
        End::Quit => Ok(()),
        End::Failed(failure) => Err(failure),
        End::Signal(signal) => {
            // Ends as any program that the signal ends.
            signals.thread_unblock().map_err(Failure::running)?;
            raise(signal).map_err(Failure::running)?;
            Err(Failure::Running(format!("ended by {signal}")))
        }
    }
}

fn start_threads(client: Client, interval: Duration, signals: SigSet) -> Receiver<Message> {
    let (sender, messages) = sync_channel(MOST_MESSAGES);
    let (keys, reports) = (sender.clone(), sender.clone());
    thread::spawn(move || signals.wait().map(|signal| sender.send(Message::Signal(signal))));
    thread::spawn(move || read_keys(&keys));
    thread::spawn(move || read_reports(&client, interval, &reports));
    messages
}

fn read_keys(messages: &SyncSender<Message>) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) => Message::Key(key),
            Ok(Event::Resize(..)) => Message::Resized,
            Ok(_) => continue,
            Err(error) => Message::Closed(error),
        };
        let is_last = matches!(message, Message::Closed(_));
        if messages.send(message).is_err() || is_last {
            return;
        }
    }
}

fn read_reports(client: &Client, interval: Duration, messages: &SyncSender<Message>) {
    loop {
        thread::sleep(interval);
        if messages.send(Message::Report(Box::new(client.get(REPORT)))).is_err() {
            return;
        }
    }
}

fn show(mut terminal: DefaultTerminal, mut view: View, messages: &Receiver<Message>) -> End {
    let closed = |error| End::Failed(Failure::Running(format!("the terminal is gone: {error}")));
    loop {
        if let Err(error) = terminal.draw(|frame| draw::draw(&view, frame)) {
            return closed(error);
        }
        let Ok(mut message) = messages.recv() else { return End::Quit };
        // All messages that wait are taken before the next drawing.
        loop {
            match message {
                Message::Resized => {}
                Message::Signal(signal) => return End::Signal(signal),
                Message::Closed(error) => return closed(error),
                Message::Key(key) => {
                    let height = terminal.size().map_or(0, |size| size.height);
                    if !view.press(key, draw::rows(height)) {
                        return End::Quit;
                    }
                }
                Message::Report(report) => match *report {
                    Ok(report) => view.take(report),
                    // The network may be carrying out a long change.
                    Err(error @ ControlError::Silent { .. }) => view.notice = Some(error.to_string()),
                    Err(error) => return End::Failed(gone(&view, error)),
                },
            }
            match messages.try_recv() {
                Ok(next) => message = next,
                Err(_) => break,
            }
        }
    }
}

/// Why there are no more reports.
fn gone(view: &View, error: ControlError) -> Failure {
    match error {
        ControlError::Unreachable { .. } | ControlError::Ended { .. } => {
            Failure::Running(format!("the network {} has ended; `memlane list` shows those that run", view.report.name))
        }
        error => error.into(),
    }
}
