//! The page of `--plot`: for each policy, which share of the requests had its first token within a time. Owns the
//! drawing: one HTML file with an SVG, without scripts and without anything from elsewhere.

use std::fmt::Write;

use crate::table::Row;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 50.0;
const BOTTOM: f64 = 40.0;
/// Points of a curve.
const POINTS: usize = 200;
/// Seconds at the left and the right end of the axis, which is logarithmic.
const FROM: f64 = 0.01;
const TO: f64 = 100.0;
/// Distinguishable for most color-blind readers.
const COLORS: [&str; 10] = [
    "#bbbbbb", "#999933", "#882255", "#cc6677", "#ddaa33", "#aa4499", "#117733", "#88ccee",
    "#004488", "#000000",
];

/// The page.
pub(crate) fn page(title: &str, rows: &[Row]) -> String {
    let title = escape(title);
    let mut svg = String::new();
    for (label, seconds) in [
        ("10 ms", 0.01),
        ("100 ms", 0.1),
        ("1 s", 1.0),
        ("10 s", 10.0),
        ("100 s", 100.0),
    ] {
        let x = place(seconds);
        line(&mut svg, x, 0.0, x, HEIGHT, label);
        let y = HEIGHT + BOTTOM / 2.0;
        text(&mut svg, x, y, "middle", label);
    }
    for percent in [0, 25, 50, 75, 100] {
        let y = HEIGHT * (1.0 - f64::from(percent) / 100.0);
        line(&mut svg, LEFT, y, WIDTH, y, "");
        text(&mut svg, LEFT - 6.0, y + 4.0, "end", &format!("{percent}%"));
    }
    let mut legend = String::new();
    for (row, color) in rows.iter().zip(COLORS.iter().cycle()) {
        let mut path = String::new();
        for point in 0..=POINTS {
            let share = point as f64 / POINTS as f64;
            let x = place(row.figures.percentile_s(share * 100.0));
            let y = HEIGHT * (1.0 - share);
            // Writing to a string cannot fail.
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        let name = row.name;
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{path}\"><title>{name}</title></polyline>"
        );
        let figures = &row.figures;
        let _ = writeln!(
            legend,
            "<tr><td style=\"color:{color}\">■</td><td>{name}</td><td>{:.1}%</td><td>{:.3} s</td><td>{:.3} s</td></tr>",
            figures.hits() * 100.0,
            figures.mean_s(),
            figures.percentile_s(99.0)
        );
    }
    let (width, height) = (WIDTH + 20.0, HEIGHT + BOTTOM);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font:14px sans-serif;margin:2em}}td,th{{padding:0 1em 0 0;text-align:right}}\
         td:nth-child(2){{text-align:left}}</style>\n\
         <h1>Time to the first token</h1>\n<p>{title}</p>\n\
         <svg viewBox=\"0 -10 {width} {height}\" width=\"{width}\" role=\"img\">\n{svg}</svg>\n\
         <table><tr><th></th><th>policy</th><th>hits</th><th>mean</th><th>p99</th></tr>\n{legend}</table>\n</html>\n"
    )
}

fn place(seconds: f64) -> f64 {
    let share = (seconds.clamp(FROM, TO) / FROM).ln() / (TO / FROM).ln();
    LEFT + share * (WIDTH - LEFT)
}

fn line(svg: &mut String, x1: f64, y1: f64, x2: f64, y2: f64, name: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"><title>{name}</title></line>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>"
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}
