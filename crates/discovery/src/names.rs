//! DNS names with a worker behind each of their addresses. Owns when they are looked up.

use std::io;
use std::time::Duration;

use crate::address::{HTTPS, WATCHED};
use crate::listing::{Listing, Missing};
use crate::reports::Reporter;

/// How often names are looked up: Kubernetes' DNS server holds answers for as long.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);

/// `NAME:PORT`, with `https://` before it for TLS.
#[derive(Clone, Debug)]
pub struct DnsName(pub String);

impl DnsName {
    /// Reports what it resolves to. Never returns.
    pub(crate) async fn follow(self, reporter: &Reporter) {
        let look_up = async |name: &str| {
            let found = tokio::net::lookup_host(name).await?;
            Ok(found.map(|address| address.to_string()).collect())
        };
        self.follow_with(look_up, reporter).await;
    }

    /// One lookup at a time, however long it takes: a server that does not answer must not gather threads that wait.
    async fn follow_with(
        self,
        look_up: impl AsyncFn(&str) -> io::Result<Vec<String>>,
        reporter: &Reporter,
    ) {
        let name = self.0.as_str();
        let mut schemes = [HTTPS, WATCHED].into_iter();
        let found = schemes.find_map(|scheme| Some((scheme, name.strip_prefix(scheme)?)));
        let (scheme, bare) = found.unwrap_or(("", name));
        let mut before = None;
        loop {
            match look_up(bare).await {
                Ok(found) => {
                    reporter.works();
                    let mut found: Vec<String> =
                        found.iter().map(|one| format!("{scheme}{one}")).collect();
                    found.sort();
                    found.dedup();
                    if before.as_ref() != Some(&found) {
                        reporter.say(Listing::new(found.clone(), Missing::Doubtful));
                        before = Some(found);
                    }
                }
                Err(reason) => reporter.fails(format!("the name is not found: {reason}")),
            }
            tokio::time::sleep(LOOK_UP_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::reports::Reports;

    #[tokio::test]
    async fn a_name_has_all_its_addresses() {
        for (name, expected) in [
            ("localhost:8001", "127.0.0.1:8001"),
            ("https://localhost:8001", "https://127.0.0.1:8001"),
            ("http://localhost:8001", "http://127.0.0.1:8001"),
        ] {
            let reports = Reports::default();
            let reporter = reports.reporter(0, "name".to_owned());
            let followed = tokio::select! {
                said = reports.next() => said,
                () = DnsName(name.to_owned()).follow(&reporter) => unreachable!(),
            };
            let listed = &followed[&0].listed;
            assert!(listed.contains(&expected.to_owned()), "{listed:?}");
        }
    }

    /// What a server answers, and after how many seconds.
    type Script = VecDeque<(u64, Result<&'static [&'static str], io::ErrorKind>)>;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_gone_or_slow_says_nothing_and_one_that_is_wrong_is_doubted() {
        let begun = Instant::now();
        let script: Script = [
            (0, Ok(&["b:1", "a:1", "b:1"][..])),
            (0, Err(io::ErrorKind::NotFound)),
            (600, Err(io::ErrorKind::TimedOut)),
            (0, Ok(&["a:1", "b:1"])),
            (0, Ok(&[])),
            (30, Ok(&["c:1"])),
        ]
        .into();
        let script = RefCell::new(script);
        let look_up = async |_: &str| {
            let next = script.borrow_mut().pop_front();
            let Some((seconds, answer)) = next else {
                return std::future::pending().await;
            };
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let owned = |found: &[&str]| found.iter().map(|one| (*one).to_owned()).collect();
            answer.map(owned).map_err(io::Error::from)
        };
        let reports = Reports::default();
        let reporter = reports.reporter(0, "name".to_owned());
        let following = DnsName("n:1".to_owned()).follow_with(look_up, &reporter);
        let heard = RefCell::new(Vec::new());
        let hearing = async {
            loop {
                let said = reports.next().await;
                let listing = said[&0].clone();
                assert_eq!(listing.missing, Missing::Doubtful);
                let at = begun.elapsed().as_secs();
                heard.borrow_mut().push((at, listing.listed.join(" ")));
            }
        };
        let _ = timeout(Duration::from_secs(1000), async {
            tokio::join!(following, hearing)
        })
        .await;
        let expected = [(0, "a:1 b:1"), (620, ""), (655, "c:1")];
        let expected = expected.map(|(at, listed)| (at, listed.to_owned()));
        assert_eq!(*heard.borrow(), expected);
    }
}
