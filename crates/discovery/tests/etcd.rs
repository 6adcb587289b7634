//! A real etcd, where there is one: `INFLIGHT_TEST_ETCD` names the program, or it is on PATH. Without it these tests pass and
//! test nothing.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a real program, with real time; a panic is a failed test"
)]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use inflight_discovery::etcd::{Etcd, Registration};
use inflight_discovery::{Listing, Missing, Reports, Source};
use inflight_kserve::client::TransportOptions;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Starting an etcd included.
const PATIENCE: Duration = Duration::from_secs(60);

fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("INFLIGHT_TEST_ETCD") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|one| one.join("etcd"));
    found.find(|program| program.is_file())
}

/// An etcd of one member with a directory; ended with the test.
struct Server {
    child: Child,
    directory: PathBuf,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    fn start(directory: PathBuf, port: u16) -> Self {
        let client = format!("http://127.0.0.1:{port}");
        let peer = format!("http://127.0.0.1:{}", free_port());
        let child = Command::new(program().unwrap())
            .arg(format!("--data-dir={}", directory.display()))
            .args([
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, directory }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Etcd's own API over HTTP, which needs no client of ours.
async fn post(port: u16, path: &str, body: String) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asking = async {
        loop {
            let ask = async {
                let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                let length = body.len();
                let request = format!(
                    "POST {path} HTTP/1.1\r\nhost: etcd\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                stream.write_all(request.as_bytes()).await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await?;
                std::io::Result::Ok(answer)
            };
            match ask.await {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => return answer,
                // It has only just started.
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let answered = timeout(PATIENCE, asking).await;
    answered.unwrap_or_else(|_| panic!("etcd answers {path} in time"))
}

/// Base 64, as that API has keys and values.
fn encoded(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |three: &[u8]| {
        let number = three
            .iter()
            .fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
        let number = number << (8 * (3 - three.len()));
        let digit = |place: usize| match place <= three.len() {
            true => char::from(DIGITS[(number >> (18 - 6 * place)) as usize & 63]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    text.as_bytes().chunks(3).map(encode).collect()
}

async fn put(port: u16, key: &str, value: &str) {
    let body = format!(
        r#"{{"key":"{}","value":"{}"}}"#,
        encoded(key),
        encoded(value)
    );
    post(port, "/v3/kv/put", body).await;
}

async fn delete(port: u16, key: &str) {
    let body = format!(r#"{{"key":"{}"}}"#, encoded(key));
    post(port, "/v3/kv/deleterange", body).await;
}

struct Follower {
    reports: Reports,
    task: JoinHandle<()>,
}

impl Follower {
    fn of(servers: &str) -> Self {
        let place = format!("http://{servers}/inflight/llama/").parse().unwrap();
        let etcd = Etcd::new(place, TransportOptions::default());
        let reports = Reports::default();
        let task =
            tokio::spawn(Source::Etcd(etcd).follow(reports.reporter(0, "source".to_owned())));
        Self { reports, task }
    }

    /// The next listing, which must be this.
    async fn expect(&self, listed: &[&str]) {
        let next = timeout(PATIENCE, self.reports.next()).await;
        let next = next.unwrap_or_else(|_| panic!("{listed:?} in time"));
        let listed = listed.iter().map(|one| (*one).to_owned()).collect();
        assert_eq!(next[&0], Listing::new(listed, Missing::Doubtful));
    }

    async fn expect_nothing(&self, time: Duration) {
        let next = timeout(time, self.reports.next()).await;
        assert!(next.is_err(), "{next:?}");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("etcd-{name}-{}", std::process::id()))
}

#[tokio::test]
async fn keys_are_followed_while_etcd_comes_and_goes() {
    if program().is_none() {
        return;
    }
    let port = free_port();
    let mut server = Server::start(directory("follow"), port);
    put(port, "inflight/llama/a", "10.0.0.1:8001").await;
    put(port, "inflight/other/b", "10.0.0.9:8001").await;
    // Nobody listens at the first address.
    let follower = Follower::of(&format!("127.0.0.1:9,127.0.0.1:{port}"));
    follower.expect(&["10.0.0.1:8001"]).await;
    put(
        port,
        "inflight/llama/b",
        r#"{"Op":0,"Addr":"10.0.0.2:8001","Metadata":null}"#,
    )
    .await;
    follower.expect(&["10.0.0.1:8001", "10.0.0.2:8001"]).await;
    // One writer's mistake changes nothing.
    put(port, "inflight/llama/c", "nonsense").await;
    put(port, "inflight/llama/b", "10.0.0.3:8001").await;
    follower.expect(&["10.0.0.1:8001", "10.0.0.3:8001"]).await;
    server.kill();
    follower.expect_nothing(Duration::from_secs(2)).await;
    let mut server = Server::start(server.directory.clone(), port);
    delete(port, "inflight/llama/a").await;
    follower.expect(&["10.0.0.3:8001"]).await;
    // A registry that has lost everything.
    server.kill();
    std::fs::remove_dir_all(&server.directory).unwrap();
    let _server = Server::start(server.directory.clone(), port);
    put(port, "elsewhere", "").await;
    follower.expect(&[]).await;
}

#[tokio::test]
async fn a_lease_that_ends_and_a_history_that_is_gone_are_noticed() {
    if program().is_none() {
        return;
    }
    let port = free_port();
    let server = Server::start(directory("lease"), port);
    put(port, "inflight/llama/a", "10.0.0.1:8001").await;
    post(port, "/v3/lease/grant", r#"{"TTL":2,"ID":77}"#.to_owned()).await;
    let (key, value) = (encoded("inflight/llama/b"), encoded("10.0.0.2:8001"));
    let body = format!(r#"{{"key":"{key}","value":"{value}","lease":77}}"#);
    post(port, "/v3/kv/put", body).await;
    let follower = Follower::of(&format!("127.0.0.1:{port}"));
    follower.expect(&["10.0.0.1:8001", "10.0.0.2:8001"]).await;
    follower.expect(&["10.0.0.1:8001"]).await;
    // Stopped for longer than connections may be silent, and asked from a revision that is gone.
    server.signal("-STOP");
    tokio::time::sleep(Duration::from_secs(22)).await;
    server.signal("-CONT");
    for number in 0..20 {
        put(port, "inflight/llama/a", &format!("10.0.1.{number}:8001")).await;
    }
    let answer = post(port, "/v3/kv/range", format!(r#"{{"key":"{key}"}}"#)).await;
    let (_, revision) = answer.split_once(r#""revision":""#).unwrap();
    let (revision, _) = revision.split_once('"').unwrap();
    post(
        port,
        "/v3/kv/compaction",
        format!(r#"{{"revision":{revision}}}"#),
    )
    .await;
    let reached = async {
        loop {
            let next = follower.reports.next().await;
            if next[&0].listed == ["10.0.1.19:8001"] {
                break;
            }
        }
    };
    timeout(PATIENCE, reached).await.unwrap();
}

/// Keeps a worker registered until the returned sender is used or dropped.
fn register(port: u16, address: &str) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let place = format!("http://127.0.0.1:9,127.0.0.1:{port}/inflight/llama/");
    let place = place.parse().unwrap();
    let registration = Registration::new(place, TransportOptions::default(), address.to_owned());
    let (end, ended) = oneshot::channel();
    let task = tokio::spawn(registration.keep(async move {
        let _ = ended.await;
    }));
    (end, task)
}

#[tokio::test]
async fn a_worker_is_registered_as_long_as_it_lives() {
    if program().is_none() {
        return;
    }
    let port = free_port();
    let mut server = Server::start(directory("register"), port);
    put(port, "elsewhere", "").await;
    let follower = Follower::of(&format!("127.0.0.1:{port}"));
    follower.expect(&[]).await;
    let (end, task) = register(port, "10.0.0.1:8001");
    follower.expect(&["10.0.0.1:8001"]).await;
    let (_never, killed) = register(port, "https://10.0.0.2:8001");
    follower
        .expect(&["10.0.0.1:8001", "https://10.0.0.2:8001"])
        .await;
    // Longer than a lease lasts: it is renewed.
    follower.expect_nothing(Duration::from_secs(20)).await;
    end.send(()).unwrap();
    task.await.unwrap();
    follower.expect(&["https://10.0.0.2:8001"]).await;
    // A registry that has lost everything has it again.
    server.kill();
    std::fs::remove_dir_all(&server.directory).unwrap();
    let _server = Server::start(server.directory.clone(), port);
    let known = async {
        loop {
            let next = follower.reports.next().await;
            if next[&0].listed == ["https://10.0.0.2:8001"] {
                break;
            }
        }
    };
    timeout(PATIENCE, known).await.unwrap();
    killed.abort();
    follower.expect(&[]).await;
}
