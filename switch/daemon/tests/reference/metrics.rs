//! The metrics, as the source states them: each family's name with its help, which stands behind the name or, as `help`, before it.

use memlane::stats::PortTotals;
use memlane_model::totals::Metric;

use super::sources::Sources;
use super::table;

pub fn page(sources: &Sources) -> String {
    // Literals of the source, each between two buffer segments of code.
    let parts: Vec<&str> = sources.text("control/metrics.rs").split('"').collect();
    let row = |at: usize| {
        let help = if parts[at + 1].contains("help") { parts[at - 2] } else { parts[at + 2] };
        assert!(help.ends_with('.'), "{} has no help: '{help}'", parts[at]);
        vec![format!("`{}`", parts[at]), help.to_owned()]
    };
    let is_family = |&at: &usize| ["memlane_", "process_"].into_iter().any(|start| parts[at].starts_with(start));
    let declared = PortTotals::COUNTERS.iter().filter_map(|counter| match counter.metric {
        Metric::Counter(name, help) | Metric::Gauge(name, help) => Some(vec![format!("`{name}`"), help.to_owned()]),
        Metric::Notification(_) | Metric::Limited(_) | Metric::None => None,
    });
    let rows: Vec<_> = declared.chain((1..parts.len()).step_by(2).filter(is_family).map(row)).collect();
    format!(
        "# Metrics\n\n`GET /metrics` of the control socket, and of the place that `metrics` names, in the Prometheus text format or OpenMetrics; names \
         of counters end in `_total`. How to scrape them, and which to alert on: [monitor a network](../how-to/monitor.md). Drop reasons: \
         [counters](counters.md).\n\n{}",
        table(&["metric", "meaning"], &rows)
    )
}
