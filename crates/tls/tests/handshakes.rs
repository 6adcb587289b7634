//! Handshakes between our own ends, with authorities that each test makes: what connects, what does not and why, and
//! what happens when files change.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests count as tests: a panic is a failed test"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use inflight_tls::{ClientFiles, ClientTls, HandshakeError, ServerFiles, ServerTls, TlsError};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

/// A directory of PEM files; gone with the test.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "tls-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Replaces the file as tools do: nobody reads a half of it.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let draft = self.path("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, self.path(name)).unwrap();
        self.path(name)
    }

    /// An authority in `NAME.pem`.
    fn authority(&self, name: &str) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        Issuer::new(params, key)
    }

    /// A certificate for `host` in `NAME.pem`, and its key in `NAME.key`.
    fn certificate(&self, name: &str, host: &str, authority: &Issuer<'_, KeyPair>) {
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn server(&self, name: &str) -> ServerFiles {
        ServerFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            client_ca: None,
        }
    }

    fn client(&self, authority: &str) -> ClientFiles {
        ClientFiles {
            ca: Some(self.path(&format!("{authority}.pem"))),
            ..ClientFiles::default()
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One byte each way over a handshake with `host`. The client's error, or else the server's.
async fn exchange(server: &ServerTls, client: &ClientTls, host: &str) -> Result<(), String> {
    let (near, far) = duplex(1 << 14);
    let answer = async {
        let mut stream = server.accept(far).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte + 1).await?;
        stream.flush().await
    };
    let ask = async {
        let connected = client.connect(host, near).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        let text = |error: std::io::Error| error.to_string();
        stream.write_u8(1).await.map_err(text)?;
        stream.flush().await.map_err(text)?;
        match stream.read_u8().await.map_err(text)? {
            2 => Ok(()),
            other => Err(format!("read {other}")),
        }
    };
    let (asked, answered) = tokio::join!(ask, answer);
    asked.and(answered.map_err(|error| error.to_string()))
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_and_its_name() {
    let files = Files::new();
    let authority = files.authority("ca");
    files.authority("other");
    files.certificate("server", "worker.example", &authority);
    let server = ServerTls::load(files.server("server")).unwrap();
    let client = ClientTls::load(files.client("ca")).unwrap();
    assert_eq!(exchange(&server, &client, "worker.example").await, Ok(()));
    let error = exchange(&server, &client, "10.0.0.7").await.unwrap_err();
    assert!(error.contains("`10.0.0.7`"), "{error}");
    assert!(error.contains("`--upstream-server-name`"), "{error}");
    let named = ClientFiles {
        server_name: Some("worker.example".to_owned()),
        ..files.client("ca")
    };
    let named = ClientTls::load(named).unwrap();
    assert_eq!(exchange(&server, &named, "10.0.0.7").await, Ok(()));
    let stranger = ClientTls::load(files.client("other")).unwrap();
    let error = exchange(&server, &stranger, "worker.example").await;
    assert!(error.unwrap_err().contains("`--upstream-ca`"));
    // The machine's own authorities know none of these.
    let error = exchange(&server, &ClientTls::default(), "worker.example").await;
    assert!(error.is_err());
}

#[tokio::test]
async fn only_clients_with_a_certificate_connect_where_one_is_asked_for() {
    let files = Files::new();
    let authority = files.authority("ca");
    let clients = files.authority("clients");
    files.certificate("server", "worker.example", &authority);
    files.certificate("gateway", "gateway.example", &clients);
    files.certificate("stranger", "gateway.example", &authority);
    let server = ServerTls::load(ServerFiles {
        client_ca: Some(files.path("clients.pem")),
        ..files.server("server")
    });
    let server = server.unwrap();
    let with = |name: &str| {
        let ServerFiles {
            certificate, key, ..
        } = files.server(name);
        let files = ClientFiles {
            identity: Some((certificate, key)),
            ..files.client("ca")
        };
        ClientTls::load(files).unwrap()
    };
    let host = "worker.example";
    assert_eq!(exchange(&server, &with("gateway"), host).await, Ok(()));
    let nobody = ClientTls::load(files.client("ca")).unwrap();
    for refused in [&nobody, &with("stranger")] {
        assert!(exchange(&server, refused, host).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_used_and_bad_ones_are_not() {
    let files = Files::new();
    let (old, new) = (files.authority("old"), files.authority("new"));
    files.certificate("server", "a.example", &old);
    let server = ServerTls::load(files.server("server")).unwrap();
    let before = ClientTls::load(files.client("old")).unwrap();
    let after = ClientTls::load(files.client("new")).unwrap();
    assert_eq!(exchange(&server, &before, "a.example").await, Ok(()));
    let look = Duration::from_secs(2);
    // A key that is not the certificate's: what was there stays.
    files.write("server.key", &KeyPair::generate().unwrap().serialize_pem());
    tokio::time::advance(look).await;
    assert_eq!(exchange(&server, &before, "a.example").await, Ok(()));
    files.certificate("server", "a.example", &new);
    tokio::time::advance(look).await;
    assert_eq!(exchange(&server, &after, "a.example").await, Ok(()));
    assert!(exchange(&server, &before, "a.example").await.is_err());
    // And the client's own.
    let authority = std::fs::read_to_string(files.path("new.pem")).unwrap();
    files.write("old.pem", &authority);
    tokio::time::advance(look).await;
    assert_eq!(exchange(&server, &before, "a.example").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_given_up() {
    let files = Files::new();
    files.certificate("server", "a.example", &files.authority("ca"));
    let server = ServerTls::load(files.server("server")).unwrap();
    let (_silent, far) = duplex(64);
    let error = server.accept(far).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn who_speaks_plain_http_is_told() {
    let files = Files::new();
    files.certificate("server", "a.example", &files.authority("ca"));
    let server = ServerTls::load(files.server("server")).unwrap();
    let (mut near, far) = duplex(1 << 14);
    near.write_all(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    server.accept(far).await.unwrap_err();
    let mut answer = String::new();
    near.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(
        head.contains(&format!("Content-Length: {}", body.len())),
        "{head}"
    );
    assert!(body.contains("`https://`"), "{body}");
}

#[tokio::test]
async fn a_server_without_http2_or_tls_is_told_apart() {
    let files = Files::new();
    files.authority("ca");
    let client = ClientTls::load(files.client("ca")).unwrap();
    let (near, mut far) = duplex(1 << 14);
    far.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .await
        .unwrap();
    let error = client.connect("a.example", near).await.unwrap_err();
    assert!(error.to_string().contains("without `https://`"), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_is_wrong() {
    let files = Files::new();
    let authority = files.authority("ca");
    files.certificate("server", "a.example", &authority);
    files.certificate("other", "a.example", &authority);
    files.write("empty.pem", "");
    files.write(
        "broken.pem",
        "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
    );
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    files.write("locked.key", locked);
    files.write("long.pem", &"#".repeat((1 << 20) + 1));
    let load = |certificate: &str, key: &str| {
        let loaded = ServerTls::load(ServerFiles {
            certificate: files.path(certificate),
            key: files.path(key),
            client_ca: None,
        });
        loaded.map(|_| ()).unwrap_err().to_string()
    };
    for (certificate, key, named, said) in [
        ("no.pem", "server.key", "no.pem", "cannot read"),
        ("server.pem", "no.key", "no.key", "cannot read"),
        ("empty.pem", "server.key", "empty.pem", "has no certificate"),
        (
            "server.key",
            "server.key",
            "server.key",
            "has no certificate",
        ),
        ("broken.pem", "server.key", "broken.pem", "is not valid PEM"),
        (
            "long.pem",
            "server.key",
            "long.pem",
            "more than 1048576 bytes",
        ),
        (
            "server.pem",
            "server.pem",
            "server.pem",
            "has no private key",
        ),
        ("server.pem", "locked.key", "locked.key", "has a passphrase"),
        (
            "server.pem",
            "other.key",
            "other.key",
            "does not belong to the certificate",
        ),
    ] {
        let error = load(certificate, key);
        let path = files.path(named).display().to_string();
        assert!(error.contains(&format!("`{path}`")), "{error}");
        assert!(error.contains(said), "{error}");
    }
    let no_authority = ClientTls::load(ClientFiles {
        ca: Some(files.path("empty.pem")),
        ..ClientFiles::default()
    });
    assert!(matches!(
        no_authority,
        Err(HandshakeError::Files(TlsError::NoCertificate { .. }))
    ));
    let no_name = ClientTls::load(ClientFiles {
        server_name: Some("not a name".to_owned()),
        ..ClientFiles::default()
    });
    assert!(no_name.unwrap_err().to_string().contains("`not a name`"));
}

#[test]
fn nothing_shows_a_key() {
    let files = Files::new();
    files.certificate("server", "a.example", &files.authority("ca"));
    let server = ServerTls::load(files.server("server")).unwrap();
    let shown = format!("{server:?}");
    assert!(shown.contains("server.key"), "{shown}");
    assert!(
        !shown.contains(&secret(&files.path("server.key"))),
        "{shown}"
    );
}

/// The first line of a key's content.
fn secret(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().nth(1).unwrap().to_owned()
}
