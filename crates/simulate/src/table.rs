//! What `inflight simulate` prints. Owns the columns, as text and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json as object};

use crate::figures::Figures;
/// A run.
#[derive(Debug)]
pub(crate) struct Row {
    /// Of its policy, or of which requests were split.
    pub(crate) name: &'static str,
    pub(crate) figures: Figures,
    /// With a goal: the workers that meet it, if any number does.
    pub(crate) needed: Option<Option<u32>>,
}

/// What a request has to meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objective {
    pub(crate) first_token_s: f64,
    pub(crate) between_s: f64,
}

/// A table. With a goal, hits and times are of the number of workers that meets it.
pub(crate) fn text(title: &str, ceiling: f64, rows: &[Row]) -> String {
    let mut header = vec![
        "policy", "hits %", "mean s", "p50 s", "p90 s", "p99 s", "uneven %",
    ];
    let has_goal = rows.iter().any(|row| row.needed.is_some());
    if has_goal {
        header.push("workers");
    }
    let cells = rows.iter().map(|row| {
        let figures = &row.figures;
        let mut cells = vec![
            row.name.to_owned(),
            format!("{:.1}", figures.hits() * 100.0),
        ];
        cells.push(format!("{:.3}", figures.mean_s()));
        cells.extend(
            [50.0, 90.0, 99.0].map(|percent| format!("{:.3}", figures.percentile_s(percent))),
        );
        cells.push(format!("{:.1}", figures.unevenness() * 100.0));
        if has_goal {
            cells.push(match row.needed.flatten() {
                Some(workers) => workers.to_string(),
                None => "none".to_owned(),
            });
        }
        cells
    });
    let lines = lines(&header, cells);
    let note = if has_goal {
        String::new()
    } else {
        format!(
            "\nOne cache of all workers' size would serve {:.1}% of the prompt tokens.\n",
            ceiling * 100.0
        )
    };
    format!("{title}\n\n{lines}\n{note}")
}

/// What a request that is split, and one that is not, came to.
pub(crate) fn phases_text(title: &str, objective: Objective, rows: &[Row]) -> String {
    let header = [
        "disaggregate",
        "split %",
        "hits %",
        "first s",
        "p99 s",
        "between ms",
        "p99 ms",
        "within %",
        "whole s",
    ];
    let cells = rows.iter().map(|row| {
        let figures = &row.figures;
        let good = figures.good_share(objective.first_token_s, objective.between_s);
        vec![
            row.name.to_owned(),
            format!("{:.1}", figures.split_share() * 100.0),
            format!("{:.1}", figures.hits() * 100.0),
            format!("{:.3}", figures.mean_s()),
            format!("{:.3}", figures.percentile_s(99.0)),
            format!("{:.2}", figures.gaps.mean_s() * 1e3),
            format!("{:.2}", figures.gaps.percentile_s(99.0) * 1e3),
            format!("{:.1}", good * 100.0),
            format!("{:.3}", figures.whole_s()),
        ]
    });
    let lines = lines(&header, cells);
    let (first, between) = (objective.first_token_s * 1e3, objective.between_s * 1e3);
    format!(
        "{title}\n\n{lines}\n\n`within`: requests whose first token came within {first} ms, and the others within \
         {between} ms on average.\n`whole`: until the last token.\n"
    )
}

/// The same as one JSON object; shares are from 0 to 1, times in seconds.
pub(crate) fn phases_json(objective: Objective, rows: &[Row]) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let figures = &row.figures;
            object!({
                "disaggregate": row.name,
                "split": figures.split_share(),
                "hits": figures.hits(),
                "mean_s": figures.mean_s(),
                "p99_s": figures.percentile_s(99.0),
                "between_mean_s": figures.gaps.mean_s(),
                "between_p99_s": figures.gaps.percentile_s(99.0),
                "within": figures.good_share(objective.first_token_s, objective.between_s),
                "whole_s": figures.whole_s(),
            })
        })
        .collect();
    format!("{}\n", object!({ "phases": rows }))
}

/// Columns of which all but the first are numbers.
fn lines(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for cells in rows {
        table.add_row(cells);
    }
    for place in 1..header.len() {
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let table = table.to_string();
    let lines = table.lines().map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n")
}

/// The same as one JSON object; shares are from 0 to 1, times in seconds.
pub(crate) fn json(ceiling: f64, rows: &[Row]) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let figures = &row.figures;
            let mut object = object!({
                "policy": row.name,
                "hits": figures.hits(),
                "mean_s": figures.mean_s(),
                "p50_s": figures.percentile_s(50.0),
                "p90_s": figures.percentile_s(90.0),
                "p99_s": figures.percentile_s(99.0),
                "unevenness": figures.unevenness(),
            });
            if let Some(needed) = row.needed {
                object["workers"] = needed.into();
            }
            object
        })
        .collect();
    format!("{}\n", object!({"ceiling": ceiling, "policies": rows}))
}
