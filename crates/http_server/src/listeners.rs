//! Where the gateway listens: its own ports, or sockets that a supervisor hands over and keeps, so that a
//! successor accepts what comes while this gateway ends. Knows nothing of HTTP.

use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};

use tokio::net::TcpListener;

/// Descriptors of listening sockets, separated by commas: for HTTP, with `--grpc-port` for gRPC, and with
/// `--endpoint-picker-port` for proxies. Set by `inflight launch` and `inflight serve`.
const VARIABLE: &str = "INFLIGHT_LISTENERS";

/// The sockets that were handed over, if any; each is taken once.
#[derive(Debug, Default)]
pub struct Listeners(std::vec::IntoIter<std::net::TcpListener>);

impl Listeners {
    /// Those that the environment names. Call once in a process.
    ///
    /// # Errors
    /// The variable does not name listening sockets.
    pub fn from_environment() -> Result<Self> {
        match std::env::var_os(VARIABLE) {
            Some(value) => Self::parse(&value),
            None => Ok(Self::default()),
        }
    }

    fn parse(value: &OsStr) -> Result<Self> {
        let no_number = |_| Error::new(ErrorKind::InvalidInput, "not a list of numbers");
        let text = value.to_str().unwrap_or_default();
        let numbers: Vec<u16> = text
            .split(',')
            .map(str::parse)
            .collect::<std::result::Result<_, _>>()
            .map_err(no_number)?;
        let adopt = |number: &u16| {
            // SAFETY: the supervisor opened it for this process, which takes it here and nowhere else.
            let given = unsafe { OwnedFd::from_raw_fd(i32::from(*number)) };
            // The copy is closed in processes that this one starts.
            let listener = std::net::TcpListener::from(given.try_clone()?);
            listener.local_addr()?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listeners: Result<Vec<_>> = numbers.iter().map(adopt).collect();
        Ok(Self(listeners?.into_iter()))
    }

    /// Whether another gateway may be accepting from the same sockets.
    pub fn are_shared(&self) -> bool {
        !self.0.as_slice().is_empty()
    }

    /// The next socket that was handed over, or a new one on `host:port`; port 0 becomes a free one.
    ///
    /// # Errors
    /// As the operating system says: in use, not permitted, no such address.
    pub async fn next(&mut self, host: &str, port: u16) -> Result<(TcpListener, SocketAddr)> {
        let listener = match self.0.next() {
            Some(listener) => TcpListener::from_std(listener)?,
            #[expect(
                clippy::disallowed_methods,
                reason = "the place where sockets are opened"
            )]
            None => TcpListener::bind((host, port)).await?,
        };
        let address = listener.local_addr()?;
        Ok((listener, address))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "as a supervisor does")]
    async fn sockets_that_were_handed_over_come_first() {
        let given = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = given.local_addr().unwrap();
        let number = given.into_raw_fd().to_string();
        let mut listeners = Listeners::parse(OsStr::new(&number)).unwrap();
        assert!(listeners.are_shared());
        let (_first, found) = listeners.next("127.0.0.1", 0).await.unwrap();
        assert_eq!(found, address);
        let (_second, other) = listeners.next("127.0.0.1", 0).await.unwrap();
        assert_ne!(other, address);
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
        for value in ["", "x", "3;4", &file.to_string()] {
            assert!(Listeners::parse(OsStr::new(value)).is_err(), "{value}");
        }
    }
}
