//! A double of Kubernetes' API server in memory: one Service's EndpointSlices, listed and watched as `discovery.k8s.io/v1`
//! has it, and everything that can be wrong with that. Knows nothing of its clients.
//!
//! Its objects and streams have the form of the API's reference; no cluster was at hand to record them from.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inflight_base::net::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::memory::{Connections, MemoryListener, MemoryStream};

/// What an endpoint is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Ready,
    NotReady,
    Terminating,
}

/// What is wrong with the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Nobody listens.
    Gone,
    /// It accepts connections and says nothing.
    Silent,
    /// Each answer has this status.
    Status(u16),
    /// Lists work, and each watch ends at once.
    Ends,
    /// Lists work, and each watch is cut after half an event.
    Halves,
    /// Lists work, and each version to watch from is too old, as a status.
    Expired,
    /// The same as an event.
    ExpiredEvent,
    /// Answers are not Kubernetes'.
    Garbage,
    /// Answers are JSON of the right form, but for types.
    WrongTypes,
    /// Lists have nothing, and no version can be watched from.
    Empty,
}

/// A running server; closed when dropped.
#[derive(Debug)]
pub struct ApiServer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    serving: Option<(JoinHandle<()>, Connections)>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The version of the last change, or of the fault.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    version: u64,
    /// Each slice with the body of its object.
    slices: BTreeMap<String, (u64, String)>,
    /// What happened since: the version, and the line of a watch.
    events: Vec<(u64, String)>,
    /// Versions before this are too old.
    oldest: u64,
    lists: usize,
    watches: usize,
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// The object of a slice.
    fn object(name: &str, version: u64, body: &str) -> String {
        format!(
            r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{{"name":"{name}","namespace":"ml","uid":"4c2f","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"llama"}}}},{body}}}"#
        )
    }

    fn happen(&mut self, kind: &str, name: &str, body: &str) {
        let object = Self::object(name, self.version, body);
        let line = format!(r#"{{"type":"{kind}","object":{object}}}"#);
        self.events.push((self.version, line + "\n"));
    }
}

impl ApiServer {
    /// Starts without any slice.
    ///
    /// # Panics
    /// There is no free port.
    pub fn start() -> Self {
        let (changed, _) = watch::channel(0);
        let state = Mutex::new(State {
            // As of a cluster that has been there for a while.
            version: 1000,
            ..State::default()
        });
        let mut server = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            shared: Arc::new(Shared { state, changed }),
            serving: None,
        };
        server.listen();
        server
    }

    /// What `--kubernetes-api` is to be.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds or changes a slice of `addressType` IPv4 with a port called `grpc` for each of these workers: since workers of
    /// one machine differ in their ports, each is a slice of its own, called `name-PORT`.
    pub fn put(&self, name: &str, workers: &[(SocketAddr, Condition)]) {
        for (address, condition) in workers {
            let (ready, terminating) = match condition {
                Condition::Ready => (true, false),
                Condition::NotReady => (false, false),
                Condition::Terminating => (false, true),
            };
            let serving = ready || terminating;
            let port = address.port();
            let mut body = String::new();
            let _ = write!(
                body,
                r#""addressType":"IPv4","endpoints":[{{"addresses":["{}"],"conditions":{{"ready":{ready},"serving":{serving},"terminating":{terminating}}},"targetRef":{{"kind":"Pod","uid":"{port}"}}}}],"ports":[{{"name":"grpc","port":{port},"protocol":"TCP"}}]"#,
                address.ip()
            );
            self.change(|state| {
                let name = format!("{name}-{port}");
                let is_new = !state.slices.contains_key(&name);
                state.happen(if is_new { "ADDED" } else { "MODIFIED" }, &name, &body);
                state.slices.insert(name, (state.version, body));
            });
        }
    }

    /// Deletes every slice.
    pub fn delete_all(&self) {
        let names: Vec<String> = lock(&self.shared).slices.keys().cloned().collect();
        for name in names {
            self.change(|state| {
                if let Some((_, body)) = state.slices.remove(&name) {
                    state.happen("DELETED", &name, &body);
                }
            });
        }
    }

    /// Forgets what happened until now, so that watches from there are too old.
    pub fn compact(&self) {
        self.change(|state| {
            state.events.clear();
            state.oldest = state.version;
        });
    }

    /// From now on, and for the connections that are open.
    pub fn set_fault(&mut self, fault: Fault) {
        self.change(|state| state.fault = fault);
        if let Some((task, connections)) = &self.serving {
            connections.cut();
            if fault == Fault::Gone {
                task.abort();
                self.serving = None;
            }
        } else if fault != Fault::Gone {
            self.listen();
        }
    }

    /// Lists and watches that it was asked for.
    pub fn asked(&self) -> (usize, usize) {
        let state = lock(&self.shared);
        (state.lists, state.watches)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.shared);
        state.version += 1;
        change(&mut state);
        self.shared.changed.send_replace(state.version);
    }

    fn listen(&mut self) {
        let listener = MemoryListener::bind(self.address.port()).expect("the port is free");
        self.address = listener.address;
        let connections = listener.connections();
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        self.serving = Some((task, connections));
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some((task, connections)) = &self.serving {
            task.abort();
            connections.cut();
        }
    }
}

/// Answers one request and ends the connection.
async fn serve(mut stream: MemoryStream, shared: Arc<Shared>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).expect("a head in ASCII");
    let path = head.split(' ').nth(1).expect("a path").to_owned();
    assert!(
        path.starts_with("/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices?")
            && path.contains("labelSelector=kubernetes.io%2Fservice-name%3Dllama"),
        "{path}"
    );
    let parameter = |name: &str| {
        let query = path
            .split(['?', '&'])
            .filter_map(|pair| pair.split_once('='));
        let mut found = query.filter(|(key, _)| *key == name);
        found.next().map(|(_, value)| value.to_owned())
    };
    // Its end is no error: a client may leave.
    let _ = match parameter("watch") {
        None => list(&mut stream, &shared).await,
        Some(_) => {
            let number = |name: &str| parameter(name).and_then(|text| text.parse().ok());
            let from = number("resourceVersion").expect("a version");
            let seconds = number("timeoutSeconds").expect("a time");
            watch_from(&mut stream, &shared, from, Duration::from_secs(seconds)).await
        }
    };
}

async fn answer(stream: &mut MemoryStream, status: u16, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} Some\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await
}

async fn list(stream: &mut MemoryStream, shared: &Shared) -> std::io::Result<()> {
    let (status, body) = {
        let mut state = lock(shared);
        state.lists += 1;
        let version = state.version;
        let items = |slices: &BTreeMap<String, (u64, String)>| {
            let items = slices.iter();
            let items = items.map(|(name, (version, body))| State::object(name, *version, body));
            items.collect::<Vec<_>>().join(",")
        };
        let page = |items: &str| {
            format!(
                r#"{{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#
            )
        };
        match state.fault {
            Fault::Silent => (0, String::new()),
            Fault::Status(status) => (status, r#"{"kind":"Status","message":"away"}"#.to_owned()),
            Fault::Garbage => (200, "<html>It works!</html>".to_owned()),
            Fault::WrongTypes => (200, page(r#"{"metadata":{"name":5},"endpoints":"none"}"#)),
            Fault::Empty => (200, page("")),
            _ => (200, page(&items(&state.slices))),
        }
    };
    if status == 0 {
        return std::future::pending().await;
    }
    answer(stream, status, &body).await
}

async fn watch_from(
    stream: &mut MemoryStream,
    shared: &Shared,
    mut from: u64,
    lasts: Duration,
) -> std::io::Result<()> {
    let mut changes = shared.changed.subscribe();
    let (fault, is_old) = {
        let mut state = lock(shared);
        state.watches += 1;
        (state.fault, from < state.oldest)
    };
    let expired = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}"#;
    match fault {
        Fault::Silent => return std::future::pending().await,
        Fault::Status(status) => return answer(stream, status, "{}").await,
        Fault::Expired => return answer(stream, 410, expired).await,
        _ => {}
    }
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let first = match fault {
        Fault::Ends => "",
        Fault::Halves => r#"{"type":"MODIFIED","object":{"kind":"EndpointSl"#,
        Fault::Garbage => "<html>\n",
        Fault::WrongTypes => "{\"type\":\"ADDED\",\"object\":{\"metadata\":[]}}\n",
        _ if is_old || matches!(fault, Fault::ExpiredEvent | Fault::Empty) => {
            let line = format!("{{\"type\":\"ERROR\",\"object\":{expired}}}\n");
            chunk(stream, &line).await?;
            return stream.write_all(b"0\r\n\r\n").await;
        }
        _ => {
            let until = Instant::now() + lasts;
            loop {
                let news = {
                    let state = lock(shared);
                    let news = state.events.iter().filter(|(version, _)| *version > from);
                    let news: String = news.map(|(_, line)| line.as_str()).collect();
                    from = state.version;
                    news
                };
                // A line may come in pieces.
                let (one, other) = news.split_at(news.len() / 3);
                for piece in [one, other] {
                    chunk(stream, piece).await?;
                }
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return Ok(()) },
                    () = sleep_until(until) => break,
                }
            }
            let bookmark = format!(
                "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"EndpointSlice\",\"metadata\":{{\"resourceVersion\":\"{from}\",\"creationTimestamp\":null}},\"endpoints\":null,\"ports\":null}}}}\n"
            );
            chunk(stream, &bookmark).await?;
            ""
        }
    };
    chunk(stream, first).await?;
    match fault {
        // Cut, and not ended.
        Fault::Halves => Ok(()),
        _ => stream.write_all(b"0\r\n\r\n").await,
    }
}

async fn chunk(stream: &mut MemoryStream, text: &str) -> std::io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let text = format!("{:x}\r\n{text}\r\n", text.len());
    stream.write_all(text.as_bytes()).await
}
