//! Requests that the engine gets in parts, one after another, and that can be stopped between these. Owns which are
//! open, by their ids; whose request an id names is `names`'.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::names::{Named, Names, RequestName};
use crate::executor::ClientId;

/// Those of one model.
#[derive(Clone, Debug, Default)]
pub(super) struct AllSeries(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    names: Names,
    /// Numbers, as client ids are, but not of the executor's requests.
    stops: HashMap<ClientId, watch::Sender<bool>>,
    last: u64,
}

/// One request in parts, which can be stopped as long as this lives.
#[derive(Debug)]
pub(crate) struct Series {
    all: AllSeries,
    name: RequestName,
    number: ClientId,
    stopped: watch::Receiver<bool>,
}

impl AllSeries {
    pub(super) fn begin(&self, id: &str, connection: Option<SocketAddr>) -> Series {
        let name = RequestName {
            id: id.into(),
            connection,
        };
        let (sender, stopped) = watch::channel(false);
        let mut open = self.0.lock();
        open.last += 1;
        let number = ClientId(open.last);
        open.stops.insert(number, sender);
        if !id.is_empty() {
            open.names.insert(name.clone(), &[number]);
        }
        Series {
            all: self.clone(),
            name,
            number,
            stopped,
        }
    }

    /// Stops what a client on `connection` may stop by this id; returns what was found.
    pub(super) fn stop(&self, id: &str, connection: Option<SocketAddr>) -> Named {
        let open = self.0.lock();
        let named = open.names.find(id, connection);
        if let Named::Found(numbers) = &named {
            for stop in numbers.iter().filter_map(|number| open.stops.get(number)) {
                stop.send_replace(true);
            }
        }
        named
    }
}

impl Series {
    /// Whether its client has asked to stop it.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits until its client asks to stop it.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as `self`.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let mut open = self.all.0.lock();
        open.stops.remove(&self.number);
        open.names.remove(&self.name, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_series_is_stopped_as_long_as_it_is_open() {
        let all = AllSeries::default();
        let here = "127.0.0.1:1".parse().ok();
        let (series, other) = (all.begin("a", here), all.begin("", here));
        assert_eq!(all.stop("b", here), Named::Unknown);
        assert_eq!(all.stop("a", None), Named::Others);
        assert!(!series.is_stopped());
        assert!(matches!(all.stop("a", here), Named::Found(_)));
        series.stopped().await;
        assert!(series.is_stopped() && !other.is_stopped());
        drop((series, other));
        assert_eq!(all.stop("a", here), Named::Unknown);
        assert!(all.0.lock().stops.is_empty());
    }
}
