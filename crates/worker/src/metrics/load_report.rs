//! How loaded a model is, as a header of an answer: Open Request Cost Aggregation (ORCA), by which load balancers
//! choose a server without scraping it. Owns the header's forms; they and the names in it are Triton's and vLLM's.
//! Pure.

use super::gauges::Load;

/// The request's header, which names the form, and the answer's.
pub(crate) const ASKED: &str = "endpoint-load-metrics-format";
pub(crate) const REPORT: &str = "endpoint-load-metrics";

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl Form {
    /// The form that a request's header names.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            _ if name.eq_ignore_ascii_case("text") => Some(Self::Text),
            _ if name.eq_ignore_ascii_case("json") => Some(Self::Json),
            _ => None,
        }
    }
}

/// A report in this form. `None`: the executor says nothing of its cache.
pub(super) fn write(load: &Load, form: Form) -> Option<String> {
    let cache = load.cache.as_ref()?;
    let metrics = [
        // Triton's names.
        ("kv_cache_utilization", cache.usage),
        ("max_token_capacity", cache.blocks * cache.tokens_per_block),
        // vLLM's.
        ("kv_cache_usage_perc", cache.usage),
        ("num_requests_waiting", load.waiting),
    ];
    Some(match form {
        Form::Text => {
            let parts = metrics.map(|(name, value)| format!("named_metrics.{name}={value}"));
            format!("TEXT {}", parts.join(", "))
        }
        Form::Json => {
            let parts = metrics.map(|(name, value)| format!(r#""{name}": {value}"#));
            format!(r#"JSON {{"named_metrics": {{{}}}}}"#, parts.join(", "))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{IterationStats, KvCacheStats};

    #[test]
    fn a_report_is_written_as_tritons_and_vllms_clients_read_it() {
        let mut stats = IterationStats {
            kv_cache_stats: Some(KvCacheStats {
                max_num_blocks: 100,
                used_num_blocks: 25,
                free_num_blocks: 75,
                tokens_per_block: 32,
                ..KvCacheStats::default()
            }),
            ..IterationStats::default()
        };
        let report = |stats: &IterationStats, name: &str| {
            let load = Load::of(Some(stats), 3);
            write(&load, Form::named(name)?)
        };
        assert_eq!(
            report(&stats, "TEXT").unwrap(),
            "TEXT named_metrics.kv_cache_utilization=0.25, named_metrics.max_token_capacity=3200, \
             named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3"
        );
        assert_eq!(
            report(&stats, "json").unwrap(),
            r#"JSON {"named_metrics": {"kv_cache_utilization": 0.25, "max_token_capacity": 3200, "#
                .to_owned()
                + r#""kv_cache_usage_perc": 0.25, "num_requests_waiting": 3}}"#
        );
        assert_eq!(report(&stats, "BIN"), None);
        stats.kv_cache_stats = None;
        assert_eq!(report(&stats, "text"), None);
    }
}
