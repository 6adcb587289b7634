//! How long a client allows for a request. Owns the parameter `timeout`; who ends the request then is `delivery`'s.

use std::time::Duration;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use tokio::time::Instant;

use super::Forward;
use crate::delivery::CallContext;
use crate::expiry::DEADLINE_GRACE;

impl Forward {
    /// Ends a request here as well, a moment after its worker must have: that one may be silent or lost. Where a plain
    /// Triton has the model, the parameter limits something else.
    pub(super) fn limit(
        &self,
        message: &ModelInferRequest,
        since: Instant,
        context: &mut CallContext,
    ) {
        let model = (&*message.model_name, &*message.model_version);
        self.end_within(model, timeout(message), since, context);
    }

    /// Whether a request in other words than KServe's own may be ended while the model is asked what its inputs are.
    pub fn limits_question(&self, model: (&str, &str)) -> bool {
        !self.knows_metadata(model) && self.table.ends_late_requests(model.0, model.1)
    }

    /// Ends it then. `time`: how long its client allows, as far as that is known before the model's inputs are.
    pub fn limit_question(
        &self,
        model: (&str, &str),
        time: Option<Duration>,
        context: &mut CallContext,
    ) {
        let since = context.since.unwrap_or_else(Instant::now);
        self.end_within(model, time, since, context);
    }

    fn end_within(
        &self,
        (model, version): (&str, &str),
        time: Option<Duration>,
        since: Instant,
        context: &mut CallContext,
    ) {
        let own = time.and_then(|time| since.checked_add(time.checked_add(DEADLINE_GRACE)?));
        let own = own.filter(|_| self.table.ends_late_requests(model, version));
        if let Some(own) = own {
            context.deadline = Some(context.deadline.map_or(own, |deadline| deadline.min(own)));
        }
    }
}

/// How long its client allows for a request; `None`: it does not say, or not so that a worker takes it.
fn timeout(message: &ModelInferRequest) -> Option<Duration> {
    let timeout = message.parameters.get(names::TIMEOUT)?;
    let microseconds = match timeout.parameter_choice.as_ref()? {
        ParameterChoice::Int64Param(time) => u64::try_from(*time).ok()?,
        ParameterChoice::Uint64Param(time) => *time,
        _ => return None,
    };
    // Zero is unlimited.
    (microseconds > 0).then(|| Duration::from_micros(microseconds))
}

/// Leaves a request that is sent again the rest of its client's time, in place of all of it anew. `since`: when the
/// request came.
pub(super) fn shorten_timeout(message: &mut ModelInferRequest, since: Instant) {
    let timeout = message.parameters.get_mut(names::TIMEOUT);
    let passed = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
    match timeout.and_then(|timeout| timeout.parameter_choice.as_mut()) {
        // Zero is unlimited.
        Some(ParameterChoice::Int64Param(left)) if *left > 0 => {
            *left = left.saturating_sub_unsigned(passed).max(1);
        }
        Some(ParameterChoice::Uint64Param(left)) if *left > 0 => {
            *left = left.saturating_sub(passed).max(1);
        }
        _ => {}
    }
}
