//! Calls that are not streams: to one server that has the model, or to all.

use std::sync::Arc;

use futures_util::future::join_all;
use inflight_kserve::client::InferenceClient;
use tonic::{Response, Status};

use super::{Asked, CallContext, Forward, Target, lost};
use crate::upstream::pool::Link;
use crate::upstream::rpc;

impl Forward {
    /// Asks a server that has the model, under the name that the model has there.
    ///
    /// # Errors
    /// It failed, and no other server can answer.
    pub(super) async fn ask<R, F>(
        &self,
        (model, version): (&str, &str),
        context: &CallContext,
        ask: impl Fn(InferenceClient, String) -> F,
    ) -> Result<R, Status>
    where
        F: Future<Output = Result<Response<R>, Status>> + Send,
    {
        let asked = Asked {
            model,
            version,
            context,
            begins: false,
            works: false,
            shares: false,
        };
        let ask = |link: Arc<Link>, name| ask(link.client(), name);
        let (answer, _open) = self.call(asked, Target::Any, ask).await?;
        Ok(answer.into_inner())
    }

    /// Asks every server that is up; those that do not answer are left out.
    ///
    /// # Errors
    /// None is up, or none answers: then what the first one said.
    pub(super) async fn ask_all<R, F>(
        &self,
        ask: impl Fn(InferenceClient) -> F,
    ) -> Result<Vec<R>, Status>
    where
        F: Future<Output = Result<Response<R>, Status>> + Send,
    {
        let workers = self.table.workers();
        let up = workers.iter().filter(|slot| slot.takes_calls());
        let pools = up.filter_map(|slot| Some(Arc::clone(&slot.peer.served()?.pool)));
        let calls: Vec<_> = pools
            .map(|pool| rpc::call("a call to every worker", ask(pool.client())))
            .collect();
        if calls.is_empty() {
            return Err(Status::unavailable("no worker is ready; retry later"));
        }
        let (mut answers, mut failure) = (Vec::new(), None);
        for answer in join_all(calls).await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(rpc::RpcError::Failed { status, .. }) => {
                    failure.get_or_insert(lost(status));
                }
                Err(error) => {
                    failure.get_or_insert(Status::unavailable(rpc::describe(&error)));
                }
            }
        }
        match failure.filter(|_| answers.is_empty()) {
            Some(status) => Err(status),
            None => Ok(answers),
        }
    }
}
