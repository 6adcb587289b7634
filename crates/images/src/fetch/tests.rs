//! Fetching from servers of the test's own on loopback addresses, which are allowed here one by one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use inflight_clients::client::{ClientConnection, MAX_FETCHES};
use inflight_openai::ApiError;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n0123456789";

/// A server that answers each path with different bytes, and counts its connections.
struct Server {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Server {
    async fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let (answer, counted) = (Arc::new(answer), Arc::clone(&connections));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => head.push(byte),
                            Err(_) => return,
                        }
                    }
                    let head = String::from_utf8(head).unwrap();
                    assert!(!head.to_lowercase().contains("authorization"), "{head}");
                    let path = head.split(' ').nth(1).unwrap();
                    let _ = stream.write_all(&answer(path)).await;
                    if path.starts_with("/hang") {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { port, connections }
    }

    fn rules(&self, networks: &[&str]) -> Rules {
        let hosts = ["127.0.0.1", "127.0.0.2", "localhost", "*.invalid", "[::1]"];
        let hosts = hosts.map(|host| format!("{host}:{}", self.port).parse().unwrap());
        Rules {
            hosts: hosts.to_vec(),
            networks: networks
                .iter()
                .map(|range| range.parse().unwrap())
                .collect(),
            max_bytes: 18,
            max_total_bytes: 100,
            max_images: 2,
            timeout: Duration::from_millis(500),
        }
    }

    /// What becomes of a path on this server, where loopback is allowed.
    async fn fetch(&self, path: &str) -> Result<Bytes, Refusal> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        fetch(&self.rules(&["127.0.0.1/32"]), &url).await
    }
}

async fn fetch(rules: &Rules, url: &str) -> Result<Bytes, Refusal> {
    let target = Target::parse(url, rules)?;
    let fetcher = Fetcher::new(rules.timeout);
    let fetched = fetcher.fetch(rules, None, target, |_| Ok(())).await;
    fetched.map_err(|stop| match stop {
        Stop::Refused(refusal) => refusal,
        Stop::Busy(error) => panic!("{error}"),
    })
}

fn ok(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn redirect(status: u16, location: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} x\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn a_file_comes_whole_with_and_without_a_length() {
    let server = Server::start(|path| match path {
        "/declared" => ok("content-length: 18\r\n", PNG),
        "/chunked" => {
            let chunks = [
                b"8\r\n",
                &PNG[..8],
                b"\r\na\r\n",
                &PNG[8..],
                b"\r\n0\r\n\r\n",
            ]
            .concat();
            ok("transfer-encoding: chunked\r\n", &chunks)
        }
        _ => ok("", PNG),
    })
    .await;
    for path in ["/declared", "/chunked", "/until-it-closes?a=b"] {
        assert_eq!(server.fetch(path).await.unwrap(), PNG, "{path}");
    }
}

#[tokio::test]
async fn what_is_no_image_of_the_right_size_is_refused() {
    let server = Server::start(|path| match path {
        "/declared" => ok("content-length: 19\r\n", PNG),
        "/chunked" => ok(
            "transfer-encoding: chunked\r\n",
            b"13\r\n\x89PNG\r\n\x1a\n01234567890\r\n0\r\n\r\n",
        ),
        "/closed" => ok("", &[PNG, b"!"].concat()),
        "/page" => ok("content-type: image/png\r\n", b"<!DOCTYPE html>"),
        "/empty" => ok("content-length: 0\r\n", b""),
        "/absent" => b"HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n".to_vec(),
        "/cut" => ok("content-length: 18\r\n", &PNG[..9]),
        "/cut-chunk" => ok("transfer-encoding: chunked\r\n", b"12\r\n\x89PNG"),
        "/no-chunk" => ok("transfer-encoding: chunked\r\n", b"no number\r\n"),
        "/compressed" => ok("content-encoding: gzip\r\n", PNG),
        "/plain" => ok("content-encoding: identity\r\n", PNG),
        "/other" => b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(),
        "/head" => ok(&format!("x: {}\r\n", "y".repeat(4 * MAX_HEAD_BYTES)), PNG),
        "/nowhere" => b"HTTP/1.1 302 x\r\ncontent-length: 0\r\n\r\n".to_vec(),
        "/unreadable" => redirect(302, "/\u{e4}"),
        "/wrong" => redirect(302, "http://["),
        _ => Vec::new(),
    })
    .await;
    let too_large = Refusal::TooLarge { limit: 18 };
    let host = || "127.0.0.1".to_owned();
    let failed = |reason| Refusal::Unreachable {
        host: host(),
        reason,
    };
    let cut = failed("it ended the connection before the file was whole");
    let misled = |to: &str| Refusal::Misled {
        host: host(),
        to: to.to_owned(),
    };
    let absent = Refusal::Status {
        host: "127.0.0.1".to_owned(),
        status: 404,
    };
    for (path, expected) in [
        ("/declared", &too_large),
        ("/chunked", &too_large),
        ("/closed", &too_large),
        ("/page", &Refusal::Kind),
        ("/empty", &Refusal::Empty),
        ("/absent", &absent),
        ("/cut", &cut),
        ("/cut-chunk", &cut),
        ("/no-chunk", &failed("its answer is malformed")),
        ("/compressed", &failed("it sent the file compressed")),
        ("/other", &failed("it does not speak HTTP/1.1")),
        ("/head", &failed("the headers of its answer are too large")),
        (
            "/nothing",
            &failed("it ended the connection without an answer"),
        ),
        ("/nowhere", &misled("nowhere")),
        ("/unreadable", &misled("a URL that is not valid")),
        ("/wrong", &misled("a URL that is not valid")),
    ] {
        assert_eq!(server.fetch(path).await.as_ref(), Err(expected), "{path}");
    }
    assert_eq!(server.fetch("/plain").await.unwrap(), PNG);
}

#[tokio::test]
async fn a_host_that_takes_its_time_is_given_up() {
    let server = Server::start(|path| match path {
        "/hang-before" => Vec::new(),
        "/hang-in-head" => b"HTTP/1.1 200 OK\r\n".to_vec(),
        _ => ok("content-length: 18\r\n", &PNG[..9]),
    })
    .await;
    for path in ["/hang-before", "/hang-in-head", "/hang-in-body"] {
        let refusal = server.fetch(path).await.unwrap_err();
        assert_eq!(refusal, Refusal::Late { seconds: 0 }, "{path}");
    }
}

#[tokio::test]
async fn redirects_are_followed_to_a_limit() {
    let server = Server::start(|path| match path {
        "/1" => redirect(301, "/2"),
        "/2" => redirect(307, "3?x"),
        "/3?x" => redirect(308, "/file"),
        "/file" => ok("", PNG),
        _ => redirect(303, "/1"),
    })
    .await;
    assert_eq!(server.fetch("/1").await.unwrap(), PNG);
    let limit = MAX_REDIRECTS;
    assert_eq!(server.fetch("/0").await, Err(Refusal::Redirects { limit }));
}

#[tokio::test]
async fn a_redirect_leads_to_no_address_that_is_not_allowed() {
    let inner = Server::start(|_| ok("", PNG)).await;
    let port = inner.port;
    let outer = Server::start(move |path| match path {
        "/address" => redirect(302, &format!("http://127.0.0.2:{port}/")),
        "/name" => redirect(302, &format!("http://localhost:{port}/")),
        "/other" => redirect(302, &format!("http://10.0.0.1:{port}/")),
        _ => redirect(302, "http://127.0.0.1:22/"),
    })
    .await;
    let mut rules = outer.rules(&["127.0.0.1/32"]);
    rules.hosts.extend(inner.rules(&[]).hosts);
    // Where the name has an address of IPv6, that one is not allowed; where it has none, only 127.0.0.1 is there.
    for (path, host) in [("/address", "127.0.0.2"), ("/other", "10.0.0.1")] {
        let url = format!("http://127.0.0.1:{}{path}", outer.port);
        let refusal = fetch(&rules, &url).await.unwrap_err();
        let expected = match host {
            "10.0.0.1" => Refusal::Misled {
                host: "127.0.0.1".to_owned(),
                to: format!("`{host}:{port}`, from which this server does not fetch images"),
            },
            _ => Refusal::Address(host.to_owned()),
        };
        assert_eq!(refusal, expected, "{path}");
    }
    let url = format!("http://127.0.0.1:{}/port", outer.port);
    let refusal = fetch(&rules, &url).await.unwrap_err();
    let expected = Refusal::Misled {
        host: "127.0.0.1".to_owned(),
        to: "`127.0.0.1:22`, from which this server does not fetch images".to_owned(),
    };
    assert_eq!(refusal, expected);
    assert_eq!(inner.connections.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn nobody_is_asked_at_an_address_that_is_not_allowed() {
    let server = Server::start(|_| ok("", PNG)).await;
    // No address is allowed besides the internet's; names and addresses lead to loopback.
    let rules = server.rules(&[]);
    for host in ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"] {
        let url = format!("http://{host}:{}/", server.port);
        let shown = host.trim_matches(['[', ']']).to_owned();
        assert_eq!(
            fetch(&rules, &url).await,
            Err(Refusal::Address(shown)),
            "{host}"
        );
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 0);
    let url = format!("http://nobody.invalid:{}/", server.port);
    let refusal = fetch(&rules, &url).await.unwrap_err();
    assert!(
        matches!(&refusal, Refusal::Unreachable { host, .. } if host == "nobody.invalid"),
        "{refusal}"
    );
}

#[tokio::test]
async fn what_the_caller_has_no_room_for_ends_the_fetch() {
    let server = Server::start(|_| ok("", PNG)).await;
    let rules = server.rules(&["127.0.0.1/32"]);
    let url = format!("http://127.0.0.1:{}/", server.port);
    let target = Target::parse(&url, &rules).unwrap();
    let full = |_| Err(Stop::Busy(ApiError::unavailable("full")));
    let stopped = Fetcher::new(rules.timeout)
        .fetch(&rules, None, target, full)
        .await;
    assert!(matches!(stopped, Err(Stop::Busy(_))));
}

#[tokio::test]
async fn a_fetch_that_finds_no_place_is_no_fault_of_its_image() {
    let server = Server::start(|_| ok("", PNG)).await;
    let rules = server.rules(&["127.0.0.1/32"]);
    let url = format!("http://127.0.0.1:{}/", server.port);
    let target = Target::parse(&url, &rules).unwrap();
    let fetcher = Fetcher::new(Duration::from_millis(20));
    let _all = fetcher.places.acquire_many(PLACES as u32).await.unwrap();
    let stopped = fetcher.fetch(&rules, None, target, |_| Ok(())).await;
    assert!(matches!(stopped, Err(Stop::Busy(_))));
}

/// A client on a separate connection, from a separate address.
fn client(address: &str) -> Arc<Client> {
    let address = SocketAddr::new(address.parse().unwrap(), 1);
    let connection = ClientConnection::new(address, &Arc::default());
    Client::new(Arc::new(connection))
}

#[tokio::test]
async fn one_client_leaves_places_to_the_others() {
    let server = Server::start(|path| match path {
        "/hang" => Vec::new(),
        _ => ok("", PNG),
    })
    .await;
    let mut rules = server.rules(&["127.0.0.1/32"]);
    rules.timeout = Duration::from_secs(60);
    let fetcher = Fetcher::new(rules.timeout);
    let (one, other) = (client("192.0.2.1"), client("192.0.2.2"));
    let fetch = |client, path: &str| {
        let url = format!("http://127.0.0.1:{}{path}", server.port);
        let target = Target::parse(&url, &rules).unwrap();
        fetcher.fetch(&rules, Some(client), target, |_| Ok(()))
    };
    let many: FuturesUnordered<_> = (0..PLACES + 6).map(|_| fetch(&one, "/hang")).collect();
    let mut many = many.into_future();
    tokio::select! {
        biased;
        _ = &mut many => panic!("a host that says nothing has answered"),
        file = fetch(&other, "/file") => assert_eq!(file.unwrap(), PNG),
    }
    assert!(server.connections.load(Ordering::Relaxed) <= MAX_FETCHES + 1);
    // Its own are all in use while its next one waits.
    let impatient = Fetcher {
        timeout: Duration::from_millis(20),
        ..Fetcher::new(rules.timeout)
    };
    let url = format!("http://127.0.0.1:{}/file", server.port);
    let target = Target::parse(&url, &rules).unwrap();
    let stopped = impatient.fetch(&rules, Some(&one), target, |_| Ok(()));
    assert!(matches!(stopped.await, Err(Stop::Busy(error)) if error.status() == 429));
}

#[tokio::test]
async fn a_slow_name_server_holds_few_threads() {
    let server = Server::start(|_| ok("", PNG)).await;
    let (begun, (release, released)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel::<()>());
    let (counted, released) = (Arc::clone(&begun), Mutex::new(released));
    let fetcher = Fetcher {
        look_up: Arc::new(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            // Until the other end is dropped.
            let _ = released.lock().recv();
            Err(io::ErrorKind::Other.into())
        }),
        ..Fetcher::new(Duration::from_millis(200))
    };
    let rules = server.rules(&["127.0.0.1/32"]);
    let fetch = |host: &str| {
        let url = format!("http://{host}:{}/", server.port);
        let target = Target::parse(&url, &rules).unwrap();
        fetcher.fetch(&rules, None, target, |_| Ok(()))
    };
    let all = join_all((0..2 * LOOKUPS).map(|_| fetch("slow.invalid"))).await;
    let late =
        |stop: &&Result<Bytes, Stop>| matches!(stop, Err(Stop::Refused(Refusal::Late { .. })));
    let busy = |stop: &&Result<Bytes, Stop>| matches!(stop, Err(Stop::Busy(_)));
    assert_eq!(all.iter().filter(late).count(), LOOKUPS);
    assert_eq!(all.iter().filter(busy).count(), LOOKUPS);
    // Their time is over, and their threads are not free yet.
    assert!(matches!(fetch("slow.invalid").await, Err(Stop::Busy(_))));
    assert_eq!(begun.load(Ordering::Relaxed), LOOKUPS);
    // An address needs none.
    assert_eq!(fetch("127.0.0.1").await.unwrap(), PNG);
    drop(release);
    assert!(matches!(
        fetch("slow.invalid").await,
        Err(Stop::Refused(Refusal::Unreachable { .. }))
    ));
}

#[tokio::test]
async fn a_host_without_a_certificate_of_an_authority_is_not_asked() {
    // It does not speak TLS at all.
    let server = Server::start(|_| ok("", PNG)).await;
    let rules = server.rules(&["127.0.0.1/32"]);
    let url = format!("https://127.0.0.1:{}/", server.port);
    let refusal = fetch(&rules, &url).await.unwrap_err();
    assert!(
        matches!(refusal, Refusal::Unreachable { .. } | Refusal::Late { .. }),
        "{refusal}"
    );
}
