//! A request of KServe's as people look at it. Owns what its end is called; `upstream` reports how it goes.

use std::sync::Arc;

use inflight_openai::ApiError;
use inflight_rest::RestError;
use inflight_upstream::delivery::Witness;
use tonic::{Code, Status};

use super::{End, Facts, Failure, OpenFacts, Requests};

/// Open for as long as anything of the request is. One that ends without a word was left by its client.
#[derive(Debug)]
pub struct Witnessed(OpenFacts);

impl Witnessed {
    /// Adds a request to those that are open. What it generates is not known until somebody says it.
    pub fn new(requests: &Arc<Requests>, facts: Facts) -> Arc<Self> {
        let facts = requests.add(facts);
        facts.uncounted();
        Arc::new(Self(facts))
    }

    /// It is answered with an error of the gateway's own.
    pub fn failed(&self, error: &ApiError) {
        let failure = Failure {
            code: error.code(),
            param: error.param.clone(),
        };
        self.fail(error.status(), Some(failure));
    }

    /// It is answered with an error of its server, or of the forms of KServe.
    pub fn failed_by_server(&self, error: &RestError) {
        self.fail(error.status.as_u16(), None);
    }

    fn fail(&self, status: u16, failure: Option<Failure>) {
        let finish = match self.0.facts.servers.lock().is_empty() {
            true => "refused",
            false => "error",
        };
        self.0.ended(End {
            status,
            failure,
            ..End::now(self.0.age(), finish)
        });
    }
}

impl Witness for Witnessed {
    fn sent(&self, server: &Arc<str>, because: Option<&'static str>) {
        self.0.sent(server, because);
    }

    fn first_output(&self) {
        self.0.first_output(self.0.age());
    }

    fn generated(&self, tokens: usize) {
        self.0.generated(tokens as u64);
    }

    fn ended(&self, code: Code) {
        match code {
            Code::Ok => self.0.ended(End::now(self.0.age(), "answered")),
            Code::Cancelled => self.0.ended(End::now(self.0.age(), "cancelled")),
            // As the HTTP port would answer it.
            _ => self.failed_by_server(&Status::new(code, "").into()),
        }
    }
}

impl Drop for Witnessed {
    fn drop(&mut self) {
        self.0.ended(End::now(self.0.age(), "cancelled"));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use inflight_clients::client::Owner;

    #[test]
    fn the_first_word_on_its_end_counts_and_none_means_that_its_client_left() {
        type Say = fn(&Witnessed);
        let sent = |one: &Witnessed| one.sent(&"a:1".into(), None);
        for (say, is_sent, finish, status) in [
            ((|_| ()) as Say, true, "cancelled", 0),
            (|it| it.ended(Code::Ok), true, "answered", 0),
            (|it| it.ended(Code::Cancelled), true, "cancelled", 0),
            (|it| it.ended(Code::Unavailable), true, "error", 503),
            (|it| it.ended(Code::NotFound), false, "refused", 404),
            (
                |it| it.failed(&ApiError::rate_limited("full")),
                false,
                "refused",
                429,
            ),
            (
                |it| it.failed_by_server(&RestError::invalid("wrong")),
                false,
                "refused",
                400,
            ),
            (
                |it| {
                    it.ended(Code::DeadlineExceeded);
                    it.ended(Code::Ok);
                },
                true,
                "error",
                504,
            ),
        ] {
            let list = Arc::new(Requests::default());
            let owner = Owner::default();
            let facts = Facts::new(
                "id".into(),
                "/v2",
                "m".into(),
                owner.clone(),
                Instant::now(),
            );
            let one = Witnessed::new(&list, facts);
            assert_eq!(list.open(&owner)[0].completion_tokens(), None);
            if is_sent {
                sent(&one);
            }
            say(&one);
            drop(one);
            let ended = list.ended(&owner);
            let end = ended[0].end().unwrap();
            assert_eq!((end.finish, end.status), (finish, status));
        }
    }
}
