//! One server process: started from a command template on its own core, waited for until it is
//! ready, and ended when dropped.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use inflight_kserve::client::{self, TransportOptions};
use inflight_kserve::inference::ServerReadyRequest;

use crate::process;

/// A Python process with NumPy on a busy core takes seconds to start; a minute is a hang.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// What a server gets to end by itself before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// How much of a failed server's output is shown.
const OUTPUT_BYTES: usize = 2000;

/// How a server says that it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// `GET /health/ready` answers 200.
    Http,
    /// `ServerReady` answers true.
    Grpc,
}

impl Ready {
    /// Whether the server on this port says so now.
    pub(crate) fn is_reached(self, port: u16) -> bool {
        match self {
            Self::Http => answers_http(port),
            Self::Grpc => answers_grpc(port),
        }
    }
}

/// The values of a command's placeholders.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) inflight: String,
    pub(super) pace: Duration,
    pub(super) worker_port: Option<u16>,
    /// Where the server runs, and where this process continues.
    pub(super) core: usize,
    pub(super) own_core: usize,
}

impl Template {
    /// The command's words. Split before the placeholders are filled in, so that a path may hold
    /// spaces.
    fn words(&self, command: &str, port: u16, metrics_port: u16) -> Vec<String> {
        let values = [
            ("{inflight}", self.inflight.clone()),
            ("{port}", port.to_string()),
            ("{metrics_port}", metrics_port.to_string()),
            (
                "{worker_port}",
                self.worker_port
                    .map_or_else(String::new, |port| port.to_string()),
            ),
            ("{pace_ms}", self.pace.as_millis().to_string()),
            ("{step_us}", self.pace.as_micros().to_string()),
        ];
        let fill = |word: &str| {
            values.iter().fold(word.to_owned(), |word, (name, value)| {
                word.replace(name, value)
            })
        };
        command.split_whitespace().map(fill).collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    #[error("the command template is empty")]
    Empty,
    #[error("no free port")]
    Port(#[source] io::Error),
    #[error("`{command}` cannot be started")]
    Start { command: String, source: io::Error },
    #[error("`{command}` ended with {status} before it was ready: {output}")]
    Ended {
        command: String,
        status: ExitStatus,
        output: String,
    },
    #[error("`{command}` was not ready after {} s: {output}", START_TIMEOUT.as_secs())]
    NotReady { command: String, output: String },
}

/// A running server.
pub(super) struct Server {
    child: Child,
    pub(super) port: u16,
    output: PathBuf,
}

impl Server {
    /// Starts the command on its core and waits until it is ready.
    pub(super) fn start(
        command: &str,
        template: &Template,
        ready: Ready,
    ) -> Result<Self, ServerError> {
        let (port, metrics_port) = free_ports().map_err(ServerError::Port)?;
        let words = template.words(command, port, metrics_port);
        let (program, arguments) = words.split_first().ok_or(ServerError::Empty)?;
        let name = words.join(" ");
        let failed = |source| ServerError::Start {
            command: name.clone(),
            source,
        };
        let file = format!("inflight-bench-{}-{port}.log", std::process::id());
        let output = std::env::temp_dir().join(file);
        let log = File::create(&output).map_err(failed)?;
        // A child starts where its parent runs. A missing core was reported at the start.
        let _ = process::pin_to_core(template.core);
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .spawn();
        let _ = process::pin_to_core(template.own_core);
        let mut server = Self {
            child: child.map_err(failed)?,
            port,
            output,
        };
        server.wait_until_ready(&name, ready)?;
        Ok(server)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self, command: &str, ready: Ready) -> Result<(), ServerError> {
        let until = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                let (command, output) = (command.to_owned(), self.output_tail());
                return Err(ServerError::Ended {
                    command,
                    status,
                    output,
                });
            }
            if ready.is_reached(self.port) {
                return Ok(());
            }
            if Instant::now() >= until {
                let (command, output) = (command.to_owned(), self.output_tail());
                return Err(ServerError::NotReady { command, output });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn output_tail(&self) -> String {
        let text = std::fs::read(&self.output).unwrap_or_default();
        let tail = text
            .get(text.len().saturating_sub(OUTPUT_BYTES)..)
            .unwrap_or_default();
        match String::from_utf8_lossy(tail).trim() {
            "" => "it printed nothing".to_owned(),
            text => text.to_owned(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        process::terminate(self.child.id());
        let until = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Ok(Some(_)) | Err(_) => break,
            }
        }
        // Neither matters once it has ended: killing says that it is gone, waiting how it ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.output);
    }
}

/// Two ports that nothing listens on at this moment.
fn free_ports() -> io::Result<(u16, u16)> {
    // Both are held until both are known, so that they differ.
    let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let second = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok((first.local_addr()?.port(), second.local_addr()?.port()))
}

fn answers_http(port: u16) -> bool {
    let ask = || -> io::Result<bool> {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.write_all(
            b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        )?;
        let mut status = [0; 12];
        socket.read_exact(&mut status)?;
        Ok(&status == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}

fn answers_grpc(port: u16) -> bool {
    let ask = async {
        let options = TransportOptions::default();
        let channel = client::connect(&format!("127.0.0.1:{port}"), &options)
            .await
            .ok()?;
        let mut client = client::inference_client(channel, &options);
        let answer = client.server_ready(ServerReadyRequest {}).await.ok()?;
        Some(answer.into_inner().ready)
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.is_ok_and(|runtime| {
        let in_time = async { tokio::time::timeout(Duration::from_secs(2), ask).await };
        runtime.block_on(in_time).ok().flatten().unwrap_or(false)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        Template {
            inflight: "/a path/inflight".to_owned(),
            pace: Duration::from_millis(20),
            worker_port: Some(7),
            core: 0,
            own_core: 0,
        }
    }

    #[test]
    fn templates_are_split_before_they_are_filled_in() {
        let command = "{inflight} x --listen 127.0.0.1:{port} {metrics_port} {worker_port} {pace_ms} {step_us}";
        assert_eq!(
            template().words(command, 1, 2),
            [
                "/a path/inflight",
                "x",
                "--listen",
                "127.0.0.1:1",
                "2",
                "7",
                "20",
                "20000"
            ]
        );
    }

    #[test]
    fn a_server_that_cannot_start_says_why() {
        let cases = [
            ("", "the command template is empty"),
            (
                "/no/such/program --port 1",
                "`/no/such/program --port 1` cannot be started",
            ),
        ];
        for (command, expected) in cases {
            let Err(error) = Server::start(command, &template(), Ready::Http) else {
                panic!("`{command}` started");
            };
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_server_that_ends_shows_what_it_printed() {
        let Err(error) = Server::start("ls /no/such/folder", &template(), Ready::Http) else {
            panic!("`ls` became ready");
        };
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
    }
}
