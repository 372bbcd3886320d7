//! The plot: for each group, a bar for each contestant's median, with a whisker from the
//! lowest to the highest run.

use std::fmt::Write;

use crate::results::{Group, Results, Sample, Series};
use crate::stats::Spread;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 270.0;
const RIGHT: f64 = 150.0;
const BAR: f64 = 16.0;
const BAR_STEP: f64 = 24.0;
const TITLE: f64 = 34.0;
const HEAD: f64 = 60.0;
const FOOT: f64 = 20.0;

const OURS: &str = "#1f77b4";
const PEERS: &str = "#b0b0b0";
const FLOOR: &str = "#e0c060";

/// One quantity compared within one group, on its own scale.
struct Panel {
    group: Group,
    title: String,
    of: fn(&Sample) -> Option<f64>,
}

/// Wall times of every group, and the longest commits of groups with clients.
fn panels(results: &Results) -> Vec<Panel> {
    let mut panels = Vec::new();
    for group in results.groups() {
        let title = format!("{}: {}, {}, {}", group.scenario, group.server, group.cache, group.load);
        let clients = results
            .in_group(&group)
            .any(|series| series.samples.iter().any(|sample| sample.clients.is_some()));
        if clients {
            let title = format!("{title}: longest commit, ms");
            panels.push(Panel {
                group: group.clone(),
                title,
                of: |sample| Some(sample.clients?.commit_longest_ms),
            });
        }
        panels.push(Panel {
            group,
            title: format!("{title}: wall time, s"),
            of: |sample| Some(sample.wall_s),
        });
    }
    panels
}

/// The complete picture. It has its own background, so that it is readable on light and dark pages.
pub(crate) fn plot(results: &Results) -> String {
    let panels = panels(results);
    let rows: usize = panels.iter().map(|panel| results.in_group(&panel.group).count()).sum();
    let height = HEAD + panels.len() as f64 * TITLE + rows as f64 * BAR_STEP + FOOT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, 12.0, 22.0, "start", true, &format!("Results: {}", results.name));
    let machine = &results.machine;
    let below = format!(
        "{}, {} cores, {}; medians of {} runs, whiskers from the lowest to the highest; shorter is better",
        machine.cpu, machine.cores, machine.filesystem, results.rounds
    );
    text(&mut svg, 12.0, 40.0, "start", false, &below);
    let mut y = HEAD;
    for panel in &panels {
        y = draw_panel(&mut svg, results, panel, y);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, results: &Results, panel: &Panel, top: f64) -> f64 {
    text(svg, 12.0, top + 20.0, "start", true, &panel.title);
    let longest =
        results.in_group(&panel.group).filter_map(|series| series.spread(panel.of)).map(|values| values.max);
    let longest = longest.fold(0.0, f64::max);
    let scale = if longest > 0.0 { (WIDTH - LEFT - RIGHT) / longest } else { 0.0 };
    let mut y = top + TITLE;
    for series in results.in_group(&panel.group) {
        text(svg, LEFT - 8.0, y + 12.5, "end", false, &series.label);
        match series.spread(panel.of) {
            Some(values) => draw_bar(svg, series, values, scale, y),
            None => text(svg, LEFT + 4.0, y + 12.5, "start", false, "not measured"),
        }
        y += BAR_STEP;
    }
    y
}

fn draw_bar(svg: &mut String, series: &Series, values: Spread, scale: f64, y: f64) {
    let fill = match series.contestant.as_str() {
        id if id.starts_with("holdfast") => OURS,
        "floor" | "read-once" | "nothing" | "drain" | "put" => FLOOR,
        _ => PEERS,
    };
    let (end, low, high) = (values.median * scale, LEFT + values.min * scale, LEFT + values.max * scale);
    let middle = y + BAR / 2.0;
    // Writing to a string cannot fail.
    writeln!(svg, "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{end:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>")
        .ok();
    writeln!(
        svg,
        "<path d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {0:.1}V{1:.1}M{high:.1} {0:.1}V{1:.1}\" stroke=\"black\" fill=\"none\"/>",
        middle - 4.0,
        middle + 4.0
    )
    .ok();
    text(svg, high + 6.0, y + 12.5, "start", false, &format!("{:.2}", values.median));
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, bold: bool, content: &str) {
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{weight}>{content}</text>").ok();
}

#[cfg(test)]
mod tests {
    use super::{OURS, plot};
    use crate::report::tests::results;

    /// Every contestant has a line, even without a bar; names cannot break the picture.
    #[test]
    fn every_contestant_is_drawn() {
        let svg = plot(&results());
        assert_eq!(svg.matches("label of &lt;").count(), 4);
        assert_eq!(svg.matches("<path").count(), 3);
        assert!(svg.contains(OURS) && svg.contains("not measured"));
        assert!(!svg.contains("<floor>"));
    }
}
