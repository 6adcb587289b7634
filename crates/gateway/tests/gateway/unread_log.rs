//! A log that nobody reads, with the real process.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::support::{Client, PATIENCE};

#[tokio::test]
async fn a_gateway_whose_log_nobody_reads_serves_on_and_ends_when_asked() {
    let arguments = ["--worker", "127.0.0.1:9", "--port", "0", "--log", "debug"];
    let mut process = Command::new(env!("CARGO_BIN_EXE_inflight-gateway"))
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Kept open, and not read after the first lines.
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "it has ended");
        if let Some((_, address)) = line.split_once("listening on http://") {
            break address.trim().to_owned();
        }
    };
    let mut client = Client::over(TcpStream::connect(address).await.unwrap()).await;
    // Some 300 bytes of log each: more than a pipe and the gateway's own buffer hold.
    let path = format!("/v1/models/{}", "x".repeat(64));
    for _ in 0..6_000 {
        client.get(&path).await;
    }
    let started = Instant::now();
    let stop = Command::new("kill").arg(process.id().to_string()).status();
    assert!(stop.unwrap().success());
    let ended = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        assert!(started.elapsed() < PATIENCE, "SIGTERM ends it");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(ended.code(), Some(0));
    drop((log, client));
}
