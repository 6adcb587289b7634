//! What `inflight simulate` prints. Owns the columns, as text and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json as object};

use crate::figures::Figures;
use crate::policy::Policy;

/// A policy's run.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) policy: Policy,
    pub(crate) figures: Figures,
    /// With a goal: the workers that meet it, if any number does.
    pub(crate) needed: Option<Option<u32>>,
}

/// A table. With a goal, hits and times are of the number of workers that meets it.
pub(crate) fn text(title: &str, ceiling: f64, rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec![
        "policy", "hits %", "mean s", "p50 s", "p90 s", "p99 s", "uneven %",
    ];
    let has_goal = rows.iter().any(|row| row.needed.is_some());
    if has_goal {
        header.push("workers");
    }
    let columns = header.len();
    table.set_header(header);
    for row in rows {
        let figures = &row.figures;
        let mut cells = vec![
            row.policy.name().to_owned(),
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
        table.add_row(cells);
    }
    for place in 1..columns {
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let table = table.to_string();
    let lines = table
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n");
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

/// The same as one JSON object; shares are from 0 to 1, times in seconds.
pub(crate) fn json(ceiling: f64, rows: &[Row]) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let figures = &row.figures;
            let mut object = object!({
                "policy": row.policy.name(),
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
