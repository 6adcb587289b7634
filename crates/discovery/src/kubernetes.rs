//! The Pods of a Kubernetes Service as workers: a list of its EndpointSlices, and a watch from there on. Owns when the list is
//! read again, and what is believed of a watch.
//!
//! This is one list and one watch over the HTTP client and the TLS that are here already. The `kube` crate with
//! `k8s-openapi` would do it as well, and adds some sixty crates to the build for types and a client of the whole API.

mod api;
mod events;
mod service;
mod slices;

use std::time::Duration;

use http_body_util::BodyExt;
use inflight_base::error_chain;
use tokio::time::{Instant, sleep, timeout};

use self::api::ApiError;
pub use self::api::{Api, CREDENTIALS, NoApi};
use self::events::{Event, Lines, Page};
pub use self::service::ServiceName;
use self::slices::Slices;
use crate::listing::Listing;
use crate::reports::Reporter;
use crate::retry::Backoff;

/// How long the server lets a watch last, and how long we do. It also bounds how late we notice that the server is gone
/// without a word. Watching on costs one small request.
const WATCH: Duration = Duration::from_secs(60);
const WATCH_AT_MOST: Duration = Duration::from_secs(75);
/// A watch that lasted that long has worked.
const LASTING: Duration = Duration::from_secs(5);
/// How often the list is read again though the watch works: whatever it may have missed is known then.
const LIST_EVERY: Duration = Duration::from_secs(600);
/// Pages of a list. The first has everything, except at servers that insist on less.
const MAX_PAGES: usize = 64;

/// A Service whose Pods are workers.
#[derive(Clone, Debug)]
pub struct Service {
    name: ServiceName,
    api: Api,
}

/// What is known of it.
struct Known {
    namespace: String,
    slices: Slices,
    /// What to watch from.
    version: String,
    listed: Instant,
}

impl Service {
    /// The Pods of this Service, by what this API server says.
    pub fn new(name: ServiceName, api: Api) -> Self {
        Self { name, api }
    }

    /// As the log names it.
    pub(crate) fn described(&self) -> String {
        let ServiceName {
            namespace, name, ..
        } = &self.name;
        match namespace {
            Some(namespace) => format!("Service {namespace}/{name}"),
            None => format!("Service {name}"),
        }
    }

    /// Reports its workers. Never returns.
    pub(crate) async fn follow(self, reporter: &Reporter) {
        let mut known = None;
        let mut said = Said {
            reporter,
            last: None,
        };
        let mut backoff = Backoff::default();
        loop {
            let begun = Instant::now();
            let is_old = |known: &mut Known| known.listed.elapsed() >= LIST_EVERY;
            // What was known counts until there is a new list.
            known.take_if(is_old);
            if let Err(error) = self.advance(&mut known, &mut said).await {
                // Nothing of a stream that made no sense is believed; what was lost on the way is watched again.
                let is_lost = matches!(
                    error,
                    ApiError::Unreachable(_)
                        | ApiError::Lost(_)
                        | ApiError::Late(_)
                        | ApiError::Handshake(_)
                        | ApiError::Tls(_)
                );
                if !is_lost {
                    known = None;
                }
                reporter.fails(error_chain(&error));
            }
            if begun.elapsed() >= LASTING {
                backoff = Backoff::default();
            }
            sleep(backoff.next()).await;
        }
    }

    /// Lists if that is needed, and watches once.
    async fn advance(
        &self,
        known: &mut Option<Known>,
        said: &mut Said<'_>,
    ) -> Result<(), ApiError> {
        let known = match known {
            Some(known) => known,
            None => {
                let listed = self.list().await?;
                said.say(self.listing(&listed.slices)?);
                said.reporter.works();
                known.insert(listed)
            }
        };
        let watching = self.watch(known, said);
        match timeout(WATCH_AT_MOST, watching).await {
            Ok(watched) => watched,
            Err(_) => Err(ApiError::Late(WATCH_AT_MOST)),
        }
    }

    async fn list(&self) -> Result<Known, ApiError> {
        let namespace = match &self.name.namespace {
            Some(namespace) => namespace.clone(),
            None => self.api.namespace().await?,
        };
        let mut slices = Slices::default();
        let mut next = String::new();
        for _ in 0..MAX_PAGES {
            // Version 0 is whatever the server has in memory, which it can answer without its database.
            let from = match next.is_empty() {
                true => "resourceVersion=0".to_owned(),
                false => format!("continue={}", escaped(&next)),
            };
            let path = self.path(&namespace, &from);
            let answer = self.api.get_whole(&path).await?;
            let page: Page = serde_json::from_slice(&answer).map_err(ApiError::Form)?;
            for slice in page.items.into_iter().flatten() {
                slices.put(slice)?;
            }
            next = page.metadata.next;
            if next.is_empty() {
                let version = page.metadata.resource_version;
                return Ok(Known {
                    namespace,
                    slices,
                    version,
                    listed: Instant::now(),
                });
            }
        }
        Err(ApiError::TooLarge)
    }

    async fn watch(&self, known: &mut Known, said: &mut Said<'_>) -> Result<(), ApiError> {
        let from = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
            WATCH.as_secs(),
            escaped(&known.version)
        );
        let path = self.path(&known.namespace, &from);
        let mut body = self.api.get(&path).await?;
        said.reporter.works();
        let mut lines = Lines::default();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(ApiError::Lost)?.into_data() else {
                continue;
            };
            lines.push(data)?;
            let mut has_changed = false;
            while let Some(line) = lines.pop() {
                has_changed |= known.take(events::read(&line)?)?;
            }
            // What came at once is said at once.
            if has_changed {
                said.say(self.listing(&known.slices)?);
            }
        }
        Ok(())
    }

    fn listing(&self, slices: &Slices) -> Result<Listing, ApiError> {
        Ok(slices.listing(self.name.scheme, &self.name.port)?)
    }

    fn path(&self, namespace: &str, query: &str) -> String {
        let namespace = escaped(namespace);
        let name = &self.name.name;
        format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices\
             ?labelSelector=kubernetes.io%2Fservice-name%3D{name}&{query}"
        )
    }
}

impl Known {
    /// Takes an event; returns whether the workers may have changed.
    fn take(&mut self, event: Event) -> Result<bool, ApiError> {
        match event {
            Event::Put(slice) => {
                let version = slice.metadata.resource_version.clone();
                self.slices.put(slice)?;
                self.version = version;
                Ok(true)
            }
            Event::Deleted(metadata) => {
                self.slices.remove(&metadata.name);
                self.move_to(metadata.resource_version);
                Ok(true)
            }
            Event::Bookmark(version) => {
                self.move_to(version);
                Ok(false)
            }
            Event::Gone => Err(ApiError::Gone),
            Event::Other => Ok(false),
        }
    }

    fn move_to(&mut self, version: String) {
        if !version.is_empty() {
            self.version = version;
        }
    }
}

/// What was reported last: a slice changes more often than its addresses do.
struct Said<'a> {
    reporter: &'a Reporter,
    last: Option<Listing>,
}

impl Said<'_> {
    fn say(&mut self, listing: Listing) {
        if self.last.as_ref() != Some(&listing) {
            self.reporter.say(listing.clone());
            self.last = Some(listing);
        }
    }
}

fn escaped(text: &str) -> percent_encoding::PercentEncode<'_> {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}
