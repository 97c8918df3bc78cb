//! The state of the screen: the latest rates, their history, the order, the filter, the selected port.

use std::collections::{HashMap, VecDeque};

use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::rates::{PairRates, PortRates, Rates};
use crate::control::Report;

/// Most measurements of a port that are kept for its page.
pub(super) const HISTORY: usize = 200;
/// Longest filter, in characters.
const LONGEST_FILTER: usize = 64;

/// An order of ports: the largest first, or names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// TX and RX bit/s.
    Traffic,
    /// TX bit/s.
    Tx,
    /// RX bit/s.
    Rx,
    /// Drops.
    Drops,
    /// CPU time.
    Cpu,
    /// Frames that wait.
    Waiting,
    /// Interrupts per frame.
    Interrupts,
    /// Name.
    Name,
}

impl Sort {
    /// The order that a key selects.
    fn of_key(key: char) -> Option<Self> {
        Some(match key {
            'a' => Self::Traffic,
            't' => Self::Tx,
            'r' => Self::Rx,
            'd' => Self::Drops,
            'c' => Self::Cpu,
            'w' => Self::Waiting,
            'i' => Self::Interrupts,
            'n' => Self::Name,
            _ => return None,
        })
    }

    /// Name of the order, as on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Sorts ports; those that are equal stay in their order.
    pub(super) fn apply(self, ports: &mut [&PortRates]) {
        let key: fn(&PortRates) -> f64 = match self {
            Self::Name => return ports.sort_by(|a, b| a.name.cmp(&b.name)),
            Self::Traffic => |port| port.transmit_bits + port.receive_bits,
            Self::Tx => |port| port.transmit_bits,
            Self::Rx => |port| port.receive_bits,
            Self::Drops => |port| port.dropped,
            Self::Cpu => |port| port.cpu,
            Self::Waiting => |port| port.waiting as f64,
            Self::Interrupts => |port| port.interrupts_per_frame.unwrap_or(-1.0),
        };
        ports.sort_by(|a, b| key(b).total_cmp(&key(a)));
    }
}

/// A measurement of a port, for sparklines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    /// TX bit/s.
    pub transmit: f32,
    /// RX bit/s.
    pub receive: f32,
    /// Drops per second.
    pub dropped: f32,
    /// Frames that wait.
    pub waiting: f32,
}

/// Target of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The list of ports.
    List,
    /// The list of pairs of ports.
    Pairs,
    /// The filter is typed.
    Filter,
    /// A port's page.
    Page,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct View {
    /// The latest report.
    pub report: Report,
    /// Rates between the latest two reports.
    pub rates: Option<Rates>,
    /// A failure to be told until the next report.
    pub notice: Option<String>,
    /// Order of the list.
    pub sort: Sort,
    /// Part of the name or segment of all ports in the list.
    pub filter: String,
    /// Target of the keys.
    pub mode: Mode,
    /// Name of the selected port; the first if there is none, or it is not in the list.
    selected: String,
    history: HashMap<String, VecDeque<Point>>,
}

impl View {
    /// The screen before the first measurement.
    pub(super) fn new(report: Report, sort: Sort) -> Self {
        let (filter, selected, history) = (String::new(), String::new(), HashMap::new());
        Self { report, rates: None, notice: None, sort, filter, mode: Mode::List, selected, history }
    }

    /// Takes a report that is newer than the last.
    pub(super) fn take(&mut self, report: Report) {
        self.rates = Rates::between(&self.report, &report);
        self.report = report;
        self.notice = None;
        let Some(rates) = &self.rates else { return self.history.clear() };
        let mut before = std::mem::take(&mut self.history);
        // Ports that are gone are not carried over.
        for port in &rates.ports {
            let mut points = before.remove(&port.name).unwrap_or_default();
            if points.len() == HISTORY {
                points.pop_front();
            }
            points.push_back(Point {
                transmit: port.transmit_bits as f32,
                receive: port.receive_bits as f32,
                dropped: port.dropped as f32,
                waiting: port.waiting as f32,
            });
            self.history.insert(port.name.clone(), points);
        }
    }

    /// Ports of the list, in its order.
    pub(super) fn ports(&self) -> Vec<&PortRates> {
        let wanted = self.filter.to_lowercase();
        let is_wanted = |text: &str| text.to_lowercase().contains(&wanted);
        let all = self.rates.iter().flat_map(|rates| &rates.ports);
        let mut ports: Vec<&PortRates> =
            all.filter(|port| wanted.is_empty() || is_wanted(&port.name) || is_wanted(&port.segment)).collect();
        self.sort.apply(&mut ports);
        ports
    }

    /// Pairs of which a port fits the filter, the busiest first.
    pub(super) fn pairs(&self) -> Vec<&PairRates> {
        let wanted = self.filter.to_lowercase();
        let fits = |name: &str| name.to_lowercase().contains(&wanted);
        self.rates.iter().flat_map(|rates| &rates.pairs).filter(|pair| fits(&pair.from) || fits(&pair.to)).collect()
    }

    /// Index of the selected port in `ports`.
    pub(super) fn row(&self, ports: &[&PortRates]) -> usize {
        ports.iter().position(|port| port.name == self.selected).unwrap_or(0)
    }

    /// The port of the page, and its measurements, the oldest first; `None` if it is gone.
    pub(super) fn page(&self) -> Option<(&PortRates, &VecDeque<Point>)> {
        let port = self.rates.iter().flat_map(|rates| &rates.ports).find(|port| port.name == self.selected)?;
        Some((port, self.history.get(&port.name)?))
    }

    /// Name of the selected port.
    pub(super) fn selected(&self) -> &str {
        &self.selected
    }

    /// Takes a key; false if it ends the program. A page has `rows` rows.
    pub(super) fn press(&mut self, key: KeyEvent, rows: usize) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return !matches!(key.code, KeyCode::Char('c' | 'd'));
        }
        match self.mode {
            Mode::Filter => self.type_filter(key.code),
            Mode::Page => match key.code {
                KeyCode::Char('q') => return false,
                KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Left => self.mode = Mode::List,
                _ => {}
            },
            Mode::Pairs => match key.code {
                KeyCode::Char('q') => return false,
                KeyCode::Esc | KeyCode::Char('p') => self.mode = Mode::List,
                _ => {}
            },
            Mode::List => return self.press_in_list(key.code, rows),
        }
        true
    }

    fn press_in_list(&mut self, key: KeyCode, rows: usize) -> bool {
        match key {
            KeyCode::Char('q') => return false,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('p') => self.mode = Mode::Pairs,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Enter => self.open(),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-(rows as isize)),
            KeyCode::PageDown => self.select(rows as isize),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char(key) => self.sort = Sort::of_key(key).unwrap_or(self.sort),
            _ => {}
        }
        true
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.chars().count() < LONGEST_FILTER => self.filter.push(c),
            _ => {}
        }
    }

    /// Moves the selection by this number of rows.
    fn select(&mut self, rows: isize) {
        let ports = self.ports();
        let Some(last) = ports.len().checked_sub(1) else { return };
        let name = ports[self.row(&ports).saturating_add_signed(rows).min(last)].name.clone();
        self.selected = name;
    }

    fn open(&mut self) {
        self.select(0);
        if self.page().is_some() {
            self.mode = Mode::Page;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::report;
    use super::*;
    use serde_json::json;

    /// A screen after one measurement of ports "a" to "e", of which the later have more traffic.
    fn view() -> View {
        let ports: Vec<_> = ["a", "b", "c", "d", "e"].into_iter().zip(1_u64..).collect();
        let ports: Vec<_> =
            ports.iter().map(|(name, n)| (*name, json!({ "transmit-bytes": 1000 * n, "waiting": 10 - n }))).collect();
        let mut view = View::new(report(1_000_000_000, &[]), Sort::Traffic);
        view.take(report(2_000_000_000, &ports));
        view
    }

    fn names(view: &View) -> String {
        view.ports().iter().map(|port| &*port.name).collect()
    }

    fn press(view: &mut View, keys: &[KeyCode]) -> bool {
        keys.iter().all(|&key| view.press(KeyEvent::from(key), 3))
    }

    #[test]
    fn keys_sort_and_filter() {
        let mut view = view();
        assert_eq!(names(&view), "edcba");
        press(&mut view, &[KeyCode::Char('w')]);
        assert_eq!((names(&view), view.sort), ("abcde".into(), Sort::Waiting));
        press(&mut view, &[KeyCode::Char('r')]);
        assert_eq!(names(&view), "abcde", "equal ports stay in their order");
        press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('D')]);
        assert_eq!(names(&view), "d");
        press(&mut view, &[KeyCode::Char('q')]);
        assert_eq!((names(&view), view.mode), (String::new(), Mode::Filter));
        press(&mut view, &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!((names(&view), view.mode), ("d".into(), Mode::List));
        press(&mut view, &[KeyCode::Esc]);
        assert_eq!(names(&view), "abcde");
        press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('l'), KeyCode::Char('a'), KeyCode::Char('n')]);
        assert_eq!(names(&view), "abcde", "the segment is searched too");
        press(&mut view, &vec![KeyCode::Char('x'); 1000]);
        assert_eq!(view.filter.chars().count(), LONGEST_FILTER);
    }

    #[test]
    fn the_selection_follows_its_port() {
        let mut view = view();
        press(&mut view, &[KeyCode::Down, KeyCode::Down]);
        assert_eq!(view.selected(), "c");
        press(&mut view, &[KeyCode::Char('n'), KeyCode::PageDown]);
        assert_eq!(view.selected(), "e");
        press(&mut view, &[KeyCode::Home]);
        assert_eq!(view.selected(), "a");
        press(&mut view, &[KeyCode::End, KeyCode::Up, KeyCode::Enter]);
        assert_eq!((view.mode, &*view.page().unwrap().0.name), (Mode::Page, "d"));
        view.take(report(3_000_000_000, &[]));
        assert!(view.page().is_none(), "the port is gone");
        press(&mut view, &[KeyCode::Esc, KeyCode::Enter, KeyCode::Down, KeyCode::PageUp]);
        assert_eq!(view.mode, Mode::List);
    }

    #[test]
    fn q_and_control_c_end_it() {
        let mut view = view();
        assert!(!press(&mut view, &[KeyCode::Char('q')]));
        assert!(!press(&mut view, &[KeyCode::Enter, KeyCode::Char('q')]));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for mode in [Mode::List, Mode::Pairs, Mode::Filter, Mode::Page] {
            view.mode = mode;
            assert!(!view.press(interrupt, 3));
        }
    }

    #[test]
    fn the_history_is_bounded_and_ends_with_its_port() {
        let mut view = view();
        for second in 3..300 {
            view.take(report(second * 1_000_000_000, &[("a", json!({ "transmit-bytes": 1000 * second }))]));
        }
        assert_eq!(view.history.len(), 1);
        assert_eq!(view.history["a"].len(), HISTORY);
        assert_eq!(view.history["a"].back().unwrap().transmit, 8000.0);
        view.take(report(1, &[]));
        assert!(view.history.is_empty() && view.rates.is_none(), "started again");
    }
}
