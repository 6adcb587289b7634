//! What a request asks of llm-d's picker in its headers, and not of this one. Owns that its answer says so; the endpoint gets
//! the headers as they are.

use http::HeaderMap;

/// Names of llm-d's, each with that of the Gateway API Inference Extension before it: priority, fairness, the model's name
/// at the endpoint, and times to aim for.
const UNREAD: [&str; 10] = [
    "x-gateway-inference-objective",
    "x-llm-d-inference-objective",
    "x-gateway-inference-fairness-id",
    "x-llm-d-inference-fairness-id",
    "x-gateway-model-name-rewrite",
    "x-llm-d-model-name-rewrite",
    "x-slo-ttft-ms",
    "x-llm-d-slo-ttft-ms",
    "x-slo-tpot-ms",
    "x-llm-d-slo-tpot-ms",
];

/// Those that the request has, with commas between them; `None`: it has none.
pub(super) fn unread(headers: &HeaderMap) -> Option<String> {
    let there = UNREAD.iter().filter(|name| headers.contains_key(**name));
    let there: Vec<&str> = there.copied().collect();
    (!there.is_empty()).then(|| there.join(","))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn headers_without_an_effect_are_named() {
        for (there, expected) in [
            (&["content-type"][..], None),
            (
                &["X-LLM-D-SLO-TTFT-MS", "x-gateway-inference-objective"][..],
                Some("x-gateway-inference-objective,x-llm-d-slo-ttft-ms"),
            ),
        ] {
            let names = there.iter().map(|name| HeaderName::try_from(*name));
            let headers = names.map(|name| (name.unwrap(), HeaderValue::from_static("1")));
            assert_eq!(unread(&headers.collect()).as_deref(), expected);
        }
    }
}
