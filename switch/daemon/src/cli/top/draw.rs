//! The screen: a head with the network's rates, the list of ports or a port's page, and a line of keys.
//!
//! A screen of 80 columns shows names and rates, a wider one segment and state too. Only the rows that fit are built.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table};

use super::rates::{PortRates, Rates};
use super::view::{Mode, Point, View};
use super::{numbers, percent};
use crate::cli::output::{bytes, rate, shown};
use crate::quantity::counted;

/// Lines of the head.
const HEAD: u16 = 4;
/// Widths of the columns of numbers, from TX frames to interrupts per frame.
const WIDTHS: [u16; 8] = [6, 6, 6, 6, 6, 6, 5, 5];
/// Columns from which on the list has segment and state.
const WIDE: u16 = 110;

/// Rows of the list on a screen of this height: without head, heading and keys.
pub(super) fn rows(height: u16) -> usize {
    height.saturating_sub(HEAD + 2).into()
}

/// Draws the screen.
pub(super) fn draw(view: &View, frame: &mut Frame) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(HEAD), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(view)), head);
    match view.mode {
        Mode::Page => page(view, frame, body),
        Mode::Pairs => pairs(view, frame, body),
        Mode::List | Mode::Filter => list(view, frame, body),
    }
    frame.render_widget(foot_line(view), foot);
}

fn head_lines(view: &View) -> Vec<Line<'static>> {
    let report = &view.report;
    let ports = counted(report.ports.len(), "port");
    let title = format!(
        "memlane top - {}, up for {} s, {ports}, frames hold {}, sorted by {}",
        shown(&report.name),
        report.uptime,
        bytes(report.memory_held),
        view.sort.name()
    );
    let title = Line::from(title).bold();
    let Some(rates) = &view.rates else { return vec![title, Line::from("measuring")] };
    let sum = |rate: fn(&PortRates) -> f64| rates.sum(rate);
    let totals = format!(
        "all ports  TX {} frames/s {}bit/s  RX {} frames/s {}bit/s  CPU {}",
        rate(sum(|port| port.transmit_frames)),
        rate(sum(|port| port.transmit_bits)),
        rate(sum(|port| port.receive_frames)),
        rate(sum(|port| port.receive_bits)),
        percent(sum(|port| port.cpu))
    );
    vec![title, Line::from(totals), Line::from(worker_loads(rates)), drop_line(rates)]
}

fn worker_loads(rates: &Rates) -> String {
    let loads: Vec<String> =
        rates.workers.iter().enumerate().map(|(index, worker)| format!("{index}: {}", percent(worker.load))).collect();
    format!("worker load  {}", loads.join("  "))
}

/// Drops per second, the most frequent reason first.
fn drop_line(rates: &Rates) -> Line<'static> {
    let mut drops: Vec<(&str, f64)> = rates.drops().into_iter().collect();
    if drops.is_empty() {
        return Line::from("no drops");
    }
    drops.sort_by(|a, b| b.1.total_cmp(&a.1));
    let drops: Vec<String> = drops.iter().map(|(reason, dropped)| format!("{} {}/s", shown(reason), rate(*dropped))).collect();
    Line::from(format!("drops  {}", drops.join("  "))).red()
}

fn list(view: &View, frame: &mut Frame, area: Rect) {
    let ports = view.ports();
    let (selected, fit) = (view.row(&ports), usize::from(area.height.saturating_sub(1)));
    // The list moves by whole screens, so that rows stay where they are while the selection moves on one of them.
    let first = selected.checked_div(fit).map_or(0, |screen| screen * fit);
    let is_wide = area.width >= WIDE;
    let row = |(index, port): (usize, &&PortRates)| {
        let name = Cell::from(shown(&port.name));
        let more = is_wide.then(|| [Cell::from(shown(&port.segment)), Cell::from(shown(&port.state))]);
        let numbers = numbers(port).map(|number| Cell::from(Line::from(number).right_aligned()));
        let row = Row::new([name].into_iter().chain(more.into_iter().flatten()).chain(numbers));
        let dropping = if port.dropped > 0.0 { Style::new().fg(Color::Red) } else { Style::new() };
        row.style(if index == selected { dropping.add_modifier(Modifier::REVERSED) } else { dropping })
    };
    let shown_rows = ports.iter().enumerate().skip(first).take(fit).map(row);
    let numbers = ["TX f/s", "TX b/s", "RX f/s", "RX b/s", "drop/s", "CPU", "wait", "irq/f"];
    let words: &[&str] = if is_wide { &["port", "segment", "state"] } else { &["port"] };
    let heading = words.iter().map(|word| Cell::from(*word));
    let heading = heading.chain(numbers.map(|word| Cell::from(Line::from(word).right_aligned())));
    let widths = [Constraint::Min(8)]
        .into_iter()
        .chain(is_wide.then_some([Constraint::Length(16), Constraint::Length(11)]).into_iter().flatten());
    let widths = widths.chain(WIDTHS.map(Constraint::Length));
    let table = Table::new(shown_rows, widths).header(Row::new(heading).style(Style::new().add_modifier(Modifier::UNDERLINED)));
    frame.render_widget(table, area);
}

fn pairs(view: &View, frame: &mut Frame, area: Rect) {
    let cells = |words: [String; 2], numbers: [String; 2]| {
        let numbers = numbers.map(|number| Cell::from(Line::from(number).right_aligned()));
        Row::new(words.map(Cell::from).into_iter().chain(numbers))
    };
    let pairs = view.pairs();
    let rows = pairs
        .iter()
        .take(area.height.into())
        .map(|pair| cells([shown(&pair.from), shown(&pair.to)], [rate(pair.frames), rate(pair.bits)]));
    let heading = cells(["from", "to"].map(String::from), ["f/s", "b/s"].map(String::from));
    let widths = [Constraint::Fill(1), Constraint::Fill(1), Constraint::Length(7), Constraint::Length(7)];
    let table = Table::new(rows, widths).header(heading.style(Style::new().add_modifier(Modifier::UNDERLINED)));
    frame.render_widget(table, area);
}

fn page(view: &View, frame: &mut Frame, area: Rect) {
    let Some((port, points)) = view.page() else {
        let text = format!("port {} is gone, or the network was started again; Esc goes back", shown(view.selected()));
        return frame.render_widget(Paragraph::new(text), area);
    };
    let text = page_lines(view, port);
    let height = (text.len() as u16).min(area.height / 2);
    let areas = Layout::vertical([
        Constraint::Length(height),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Fill(1),
    ]);
    let [head, transmit, receive, dropped, waiting] = areas.areas(area);
    frame.render_widget(Paragraph::new(text), head);
    spark(frame, transmit, "TX bit/s", points, |point| point.transmit);
    spark(frame, receive, "RX bit/s", points, |point| point.receive);
    spark(frame, dropped, "drops/s", points, |point| point.dropped);
    spark(frame, waiting, "waiting frames", points, |point| point.waiting);
}

/// A port's transmit rates, receive rates, interrupts per frame, and drops by reason.
fn page_lines(view: &View, port: &PortRates) -> Vec<Line<'static>> {
    let totals = &port.totals;
    let [transmit, transmit_bits, receive, receive_bits, dropped, cpu, waiting, interrupts] = numbers(port);
    let report = view.report.ports.iter().find(|report| report.name == port.name);
    let advice = report.and_then(|report| report.cause.as_ref().or(report.advice.as_ref()));
    let reasons: Vec<String> = totals.drops.iter().map(|(reason, count)| format!("{} {count}", shown(reason))).collect();
    let wait = if waiting == "1" { "frame waits" } else { "frames wait" };
    let lines = [
        Some(format!("port {} on segment {}: {}", shown(&port.name), shown(&port.segment), shown(&port.state))),
        Some(format!(
            "TX {transmit} frames/s, {transmit_bits}bit/s; {}, {} in all",
            counted(totals.transmit_frames, "frame"),
            bytes(totals.transmit_bytes)
        )),
        Some(format!(
            "RX {receive} frames/s, {receive_bits}bit/s; {}, {} in all",
            counted(totals.receive_frames, "frame"),
            bytes(totals.receive_bytes)
        )),
        Some(format!("CPU {cpu}, {waiting} {wait}, {interrupts} interrupts per frame, {dropped} drops/s")),
        (!reasons.is_empty()).then(|| format!("dropped in all: {}", reasons.join(", "))),
        advice.map(|advice| shown(advice)),
    ];
    lines.into_iter().flatten().map(Line::from).collect()
}

/// A series with its latest value and its largest; the newest measurement is at the right.
fn spark(frame: &mut Frame, area: Rect, name: &str, points: &VecDeque<Point>, value: fn(&Point) -> f32) {
    let [title, graph] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let most = points.iter().map(value).fold(0.0, f32::max);
    let latest = points.back().map_or(0.0, value);
    let text = format!("{name}  {}  (most {})", rate(latest.into()), rate(most.into()));
    frame.render_widget(Line::from(text).bold(), title);
    let newest = points.iter().skip(points.len().saturating_sub(graph.width.into()));
    frame.render_widget(Sparkline::default().data(newest.map(|point| value(point) as u64)), graph);
}

fn foot_line(view: &View) -> Line<'static> {
    if let Some(notice) = &view.notice {
        return Line::from(shown(notice)).red();
    }
    match view.mode {
        Mode::Filter => Line::from(format!("filter: {}_   Enter keeps it, Esc clears it", shown(&view.filter))),
        Mode::Page => Line::from("Esc back  q quit"),
        Mode::Pairs => Line::from("Esc or p ports  q quit   rates of pairs are estimated by sampled frames"),
        Mode::List if view.filter.is_empty() => {
            Line::from("q quit / find p pair Enter port a all t TX r RX d drop c CPU w wait i irq n name")
        }
        Mode::List => Line::from(format!("filter: {}   / changes it, Esc clears it", shown(&view.filter))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::report;
    use super::super::view::Sort;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    /// Lines of a screen of this size.
    fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(view, frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(line).collect()
    }

    fn view(ports: usize) -> View {
        let most = u64::MAX / 16;
        let totals = json!({
            "transmit-frames": most, "transmit-bytes": most, "receive-frames": most, "receive-bytes": most, "waiting": u64::MAX,
            "interrupts": most, "cycles": 900_000_000_u64, "drops": { "receiver-stalled": most }
        });
        let names: Vec<String> = (0..ports).map(|n| format!("port-{n:04}")).collect();
        let senders = |name: &str| json!({ "senders": { "port-0000": 1, (name): 3 } });
        let ports: Vec<_> = names
            .iter()
            .map(|name| {
                let mut totals = totals.clone();
                totals.as_object_mut().unwrap().extend(senders(name).as_object().unwrap().clone());
                (&**name, totals)
            })
            .collect();
        let mut view = View::new(report(1_000_000_000, &[]), Sort::Name);
        view.take(report(2_000_000_000, &ports));
        view
    }

    #[test]
    fn numbers_have_their_columns_at_80_columns() {
        let lines = screen(&view(3), 80, 24);
        let wanted = "port-0001                     1.15E  9.22E  1.15E  9.22E  1.15E  90.0% 18.4E  0.50";
        let row = lines.iter().find(|line| line.starts_with("port-0001")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), wanted.split_whitespace().collect::<Vec<_>>());
        assert!(lines[4].trim_end().ends_with("RX b/s drop/s    CPU  wait irq/f"), "{lines:?}");
        assert!(lines[3].contains("receiver-stalled 3.46E/s"), "{lines:?}");
        assert!(lines[23].contains("q quit") && lines[23].contains("n name"), "{lines:?}");
    }

    #[test]
    fn the_list_shows_the_screen_of_the_selected_port() {
        use ratatui::crossterm::event::{KeyCode, KeyEvent};
        let mut view = view(1000);
        let lines = screen(&view, 200, 50);
        assert_eq!(lines.iter().filter(|line| line.starts_with("port-")).count(), rows(50));
        assert!(lines[5].contains("lan") && lines[5].contains("running"), "{lines:?}");
        view.press(KeyEvent::from(KeyCode::End), rows(50));
        assert!(screen(&view, 200, 50).iter().any(|line| line.starts_with("port-0999")));
        view.press(KeyEvent::from(KeyCode::Enter), rows(50));
        let lines = screen(&view, 80, 24);
        assert!(lines[4].contains("port port-0999 on segment lan: running"), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("waiting frames  18.4E")), "{lines:?}");
    }

    #[test]
    fn pairs_have_a_list_of_their_own() {
        use ratatui::crossterm::event::{KeyCode, KeyEvent};
        let mut view = view(3);
        view.press(KeyEvent::from(KeyCode::Char('p')), rows(24));
        let lines = screen(&view, 80, 24);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines[4]), ["from", "to", "f/s", "b/s"]);
        assert_eq!(words(&lines[6]), ["port-0001", "port-0001", "865P", "6.92E"]);
        assert_eq!(lines.iter().filter(|line| line.starts_with("port-")).count(), 5);
        view.press(KeyEvent::from(KeyCode::Esc), rows(24));
        assert!(screen(&view, 80, 24)[4].starts_with("port "));
    }

    #[test]
    fn every_size_of_a_screen_can_be_drawn() {
        let mut view = view(30);
        for mode in [Mode::List, Mode::Pairs, Mode::Filter, Mode::Page] {
            view.mode = mode;
            for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 6), (1, 100), (300, 80)] {
                screen(&view, width, height);
            }
        }
    }

    #[test]
    fn names_of_any_characters_stay_in_their_column() {
        let names = ["a\x1b[2J\nb", "\u{202e}abc", "宽宽宽宽宽宽宽宽宽宽宽宽宽宽宽宽宽宽宽宽宽宽", "e\u{301}\u{301}\u{301}x", ""];
        let mut view = View::new(report(1_000_000_000, &[]), Sort::Name);
        view.take(report(2_000_000_000, &names.map(|name| (name, json!({ "transmit-frames": 7 })))));
        let lines = screen(&view, 80, 24);
        let rows = &lines[5..10];
        assert!(rows.iter().all(|line| line.trim_end().ends_with("0.00") && line.contains("7.0")), "{rows:?}");
        assert!(!lines.concat().contains(|c: char| c.is_control()), "{lines:?}");
    }
}
