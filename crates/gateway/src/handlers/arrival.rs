//! Where a request came from: whose it is, and its place among the admitted ones. Knows nothing of what it says.

use std::sync::Arc;

use inflight_clients::admission::Admitted;
use inflight_clients::client::{Client, Owner};
use inflight_upstream::delivery::{CallContext, Permit};

use crate::middleware::RequestContext;

/// Where a request came from, and its place among the admitted ones.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) context: RequestContext,
    pub(super) admitted: Admitted,
    pub(super) client: Option<Arc<Client>>,
}

impl Arrival {
    /// Whose it is.
    pub(super) fn owner(&self) -> Owner {
        let client = self.client.as_ref();
        client.map(|client| client.owner()).unwrap_or_default()
    }

    /// For calls that are not streams of the gateway's own; with the place that they hold.
    pub(super) fn call(self) -> (CallContext, Arc<Admitted>) {
        let Self {
            context, admitted, ..
        } = self;
        let place = Arc::new(admitted);
        let call = CallContext {
            // Its calls may be many, and at once.
            trace: context.trace.as_parent(),
            place: Some(Arc::clone(&place) as Permit),
            ..context.call()
        };
        (call, place)
    }
}
