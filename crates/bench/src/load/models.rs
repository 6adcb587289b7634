//! Asks a gateway which models it serves. One small request before a run: no part of what is measured.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::LoadError;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A list of models is far shorter.
const LONGEST_ANSWER: u64 = 1 << 20;

/// The first model that `address` lists.
///
/// # Errors
/// [`LoadError`]: nobody is there, or it names no model.
pub(crate) fn first_model(address: &str, api_key: Option<&str>) -> Result<String, LoadError> {
    let wrong = || LoadError::Address {
        address: address.to_owned(),
    };
    let resolved = address.to_socket_addrs().map_err(|_| wrong())?.next();
    let answer = ask(resolved.ok_or_else(wrong)?, address, api_key);
    let answer = answer.map_err(|source| LoadError::Connect {
        address: address.to_owned(),
        source,
    })?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    let list: Option<serde_json::Value> = body.and_then(|body| serde_json::from_str(body).ok());
    let name = list
        .as_ref()
        .and_then(|list| list["data"][0]["id"].as_str());
    name.map(str::to_owned).ok_or_else(|| LoadError::NoModel {
        address: address.to_owned(),
        answer: answer
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(80)
            .collect(),
    })
}

/// The whole answer; HTTP/1.0, so that it comes in one piece and ends with the connection.
fn ask(
    address: std::net::SocketAddr,
    host: &str,
    api_key: Option<&str>,
) -> std::io::Result<String> {
    let mut socket = TcpStream::connect_timeout(&address, TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let key = api_key.map(|key| format!("authorization: Bearer {key}\r\n"));
    let key = key.unwrap_or_default();
    let request = format!("GET /v1/models HTTP/1.0\r\nhost: {host}\r\n{key}\r\n");
    socket.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    socket.take(LONGEST_ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
