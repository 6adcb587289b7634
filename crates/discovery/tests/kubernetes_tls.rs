//! An API server over TLS that knows the gateway by a token: both the token and the server's authority change while the
//! gateway runs, as Kubernetes changes them. Real sockets, real files.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests count as tests: a panic is a failed test"
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use inflight_discovery::kubernetes::{Api, Service};
use inflight_discovery::{Reports, Source};
use inflight_tls::{ServerFiles, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// Replaces the file as Kubernetes does: nobody reads a half of it.
fn write(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    std::fs::rename(draft, path).unwrap();
}

/// A new authority in `ca.crt`, and a server with a certificate of it.
fn authority(directory: &Path) -> ServerTls {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let own = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let files = ServerFiles {
        certificate: directory.join("server.pem"),
        key: directory.join("server.key"),
        client_ca: None,
    };
    write(&files.certificate, &certificate.pem());
    write(&files.key, &key.serialize_pem());
    write(&directory.join("ca.crt"), &own.pem());
    ServerTls::load(files).unwrap()
}

/// What was asked for: the path, and the header with the token.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    path: String,
    authorization: String,
}

/// Answers one request: a list with one worker, or a watch that ends at once. `None`: there was no request.
async fn serve(listener: &TcpListener, tls: &ServerTls) -> Option<Asked> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = tls.accept(stream).await.ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let header = |line: &str| line.strip_prefix("authorization: ").map(str::to_owned);
    let authorization = head.lines().find_map(header).unwrap_or_default();
    let body = match path.contains("watch=true") {
        true => "",
        false => {
            r#"{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"s","resourceVersion":"4"},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"name":"grpc","port":8001}]}]}"#
        }
    };
    let length = body.len();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()?;
    Some(Asked {
        path,
        authorization,
    })
}

#[tokio::test]
async fn the_token_and_the_authority_are_those_of_now() {
    let directory: PathBuf =
        std::env::temp_dir().join(format!("service-account-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    write(&directory.join("namespace"), "ml\n");
    write(&directory.join("token"), "first\n");
    let tls = authority(&directory);
    #[expect(
        clippy::disallowed_methods,
        reason = "a real connection is what is tested"
    )]
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (servers, mut server) = mpsc::unbounded_channel();
    let (asked, mut requests) = mpsc::unbounded_channel();
    let serving = tokio::spawn(async move {
        let mut tls = tls;
        loop {
            let request = tokio::select! {
                next = server.recv() => {
                    let Some(next) = next else { return };
                    tls = next;
                    continue;
                }
                request = serve(&listener, &tls) => request,
            };
            if let Some(request) = request {
                asked.send(request).unwrap();
            }
        }
    });
    let api = Api::at(&url).unwrap().with_credentials(&directory);
    let service = Service::new("llama".parse().unwrap(), api);
    let reports = Reports::default();
    let following =
        tokio::spawn(Source::Service(service).follow(reports.reporter(0, "source".to_owned())));
    let said = timeout(PATIENCE, reports.next()).await.unwrap();
    assert_eq!(said[&0].listed, ["10.0.0.1:8001"]);
    let list = timeout(PATIENCE, requests.recv()).await.unwrap().unwrap();
    assert_eq!(list.authorization, "Bearer first");
    let begin = "/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices?labelSelector=";
    assert!(list.path.starts_with(begin), "{list:?}");
    let mut next_with = async |token: &str| {
        let waiting = async { while requests.recv().await.unwrap().authorization != token {} };
        timeout(PATIENCE, waiting)
            .await
            .expect("the new token in time");
    };
    write(&directory.join("token"), "second\n");
    next_with("Bearer second").await;
    servers.send(authority(&directory)).unwrap();
    write(&directory.join("token"), "third\n");
    next_with("Bearer third").await;
    following.abort();
    serving.abort();
    std::fs::remove_dir_all(&directory).unwrap();
}
