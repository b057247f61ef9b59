//! A plot of one area: how many times better or worse than the baseline each metric is, on a logarithmic scale, with
//! the baseline as a line in the middle. Colours are mid-tones without a background, readable on white and on black.

use super::{Better, Metric, short};

const WIDTH: f64 = 840.0;
const ROW: f64 = 60.0;
const TOP: f64 = 58.0;
/// Half of the plot's width, around the line of the baseline.
const REACH: f64 = 340.0;
const TEXT: &str = "#7d8590";
const GOOD: &str = "#2f9e5b";
const BAD: &str = "#d9822b";

/// The chart as a whole SVG file.
pub fn chart(area: &str, metrics: &[&Metric]) -> String {
    // How much better: above 1 is good whichever way the metric counts.
    let gain = |m: &Metric| if m.better == Better::Lower { 1.0 / m.ratio() } else { m.ratio() };
    let finite = |m: &Metric| gain(m).is_finite() && gain(m) > 0.0;
    let shown: Vec<&Metric> = metrics.iter().copied().filter(|m| finite(m)).collect();
    // At least a factor of 2 each way, so that small differences look small.
    let most = shown.iter().map(|m| gain(m).log2().abs()).fold(1.0, f64::max);
    let height = TOP + ROW * shown.len() as f64 + 12.0;
    let middle = WIDTH / 2.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"{TEXT}\">\n\
         <title>{area}: nanomc against its baselines</title>\n\
         <text x=\"8\" y=\"20\" font-size=\"15\" font-weight=\"600\">{area}: against the baseline (log scale)</text>\n\
         <text x=\"{left}\" y=\"42\" text-anchor=\"end\">worse</text>\n\
         <text x=\"{right}\" y=\"42\">better</text>\n\
         <line x1=\"{middle}\" y1=\"30\" x2=\"{middle}\" y2=\"{bottom}\" stroke=\"{TEXT}\"/>\n",
        left = middle - 8.0,
        right = middle + 8.0,
        bottom = height - 6.0,
    );
    for (i, m) in shown.iter().enumerate() {
        let y = TOP + ROW * i as f64;
        let length = (gain(m).log2().abs() / most * REACH).max(1.0);
        let better = gain(m) >= 1.0;
        let (x, colour) = if better { (middle, GOOD) } else { (middle - length, BAD) };
        let factor = if better { gain(m) } else { 1.0 / gain(m) };
        let label = format!("{}×", short(factor));
        // The name is on the side where the bar is not.
        let (name_x, anchor) = if better { (middle - 10.0, "end") } else { (middle + 10.0, "start") };
        let (label_x, label_anchor) =
            if better { (middle + length + 6.0, "start") } else { (middle - length - 6.0, "end") };
        let figures = format!("{} against {} {}", short(m.value), short(m.baseline), m.unit);
        text.push_str(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"20\" rx=\"2\" fill=\"{colour}\"/>\n\
             <text x=\"{label_x:.1}\" y=\"{base:.1}\" text-anchor=\"{label_anchor}\">{label}</text>\n\
             <text x=\"{name_x:.1}\" y=\"{base:.1}\" text-anchor=\"{anchor}\" font-weight=\"600\">{name}</text>\n\
             <text x=\"{name_x:.1}\" y=\"{below:.1}\" text-anchor=\"{anchor}\" font-size=\"12\">{figures}</text>\n\
             <text x=\"{name_x:.1}\" y=\"{last:.1}\" text-anchor=\"{anchor}\" font-size=\"11\">{against}</text>\n",
            base = y + 15.0,
            below = y + 30.0,
            last = y + 44.0,
            name = escape(m.name),
            figures = escape(&figures),
            against = escape(m.baseline_name),
        ));
    }
    text.push_str("</svg>\n");
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(value: f64, better: Better) -> Metric {
        Metric { name: "a.b", value, unit: "ns", better, baseline_name: "Map<K>", baseline: 1.0 }
    }

    #[test]
    fn better_is_green_whichever_way_the_metric_counts() {
        for (value, better, colour) in [
            (0.5, Better::Lower, GOOD),
            (2.0, Better::Higher, GOOD),
            (2.0, Better::Lower, BAD),
            (0.5, Better::Higher, BAD),
        ] {
            let chart = chart("a", &[&metric(value, better)]);
            assert!(chart.contains(&format!("fill=\"{colour}\"")), "{value} {better:?}");
            assert!(chart.contains("2.00×"));
        }
    }

    #[test]
    fn names_are_escaped_and_a_figure_that_cannot_be_drawn_is_left_out() {
        let chart = chart("a", &[&metric(0.0, Better::Higher), &metric(1.0, Better::Lower)]);
        assert!(chart.contains("Map&lt;K&gt;"));
        assert_eq!(chart.matches("<rect").count(), 1);
        assert!(chart.starts_with("<svg") && chart.ends_with("</svg>\n"));
    }
}
