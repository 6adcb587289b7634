//! Calls that are not streams: to one server that has the model, or to all.

use std::sync::Arc;

use futures_util::future::join_all;
use inflight_kserve::client::InferenceClient;
use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use tonic::{Code, Response, Status};

use super::failures::lost;
use super::timeout::shorten_timeout;
use super::{CallSpec, Forward, OpenCall, PreparedCall, Target};
use crate::delivery::CallContext;
use crate::rpc;

impl Forward {
    /// Sends one request whose answer comes in one piece.
    ///
    /// # Errors
    /// It failed, and no other server can answer.
    pub(super) async fn infer(
        &self,
        message: ModelInferRequest,
        context: &CallContext,
    ) -> Result<ModelInferResponse, Status> {
        let answer = self.infer_once(message, context).await;
        match &answer {
            Ok(_) => {
                context.first_output_came();
                context.ended(Code::Ok);
            }
            Err(status) => context.ended(status.code()),
        }
        answer
    }

    async fn infer_once(
        &self,
        mut message: ModelInferRequest,
        context: &CallContext,
    ) -> Result<ModelInferResponse, Status> {
        let mut context = context.clone();
        let prepared = self.prepare(&message, &mut context).await?;
        let PreparedCall {
            since,
            target,
            prompt,
        } = prepared;
        let id = message.id.clone();
        match &target {
            Target::Same(source) => message.id.clone_from(&source.id),
            Target::Any => self.make_own(&mut message),
        }
        let asked = CallSpec {
            is_stream: false,
            ..CallSpec::stream(&message, &context, prompt.as_ref())
        };
        let ask = |open: &OpenCall| {
            let mut message = message.clone();
            message.model_name.clone_from(&open.picked.model);
            shorten_timeout(&mut message, since);
            if let Some(stoppable) = &context.stoppable {
                stoppable.is_at(open.source(&message.id));
            }
            let request = context.request(message);
            let mut client = open.link.client();
            async move { client.model_infer(request).await }
        };
        let answer = self.call(asked, target, ask).await?;
        let mut answer = answer.into_inner();
        if !id.is_empty() {
            answer.id = id;
        }
        Ok(answer)
    }

    /// Asks a server that has the model, under the name that the model has there.
    ///
    /// # Errors
    /// It failed, and no other server can answer.
    pub(super) async fn ask<R, F>(
        &self,
        model: (&str, &str),
        context: &CallContext,
        ask: impl Fn(InferenceClient, String) -> F + Send,
    ) -> Result<R, Status>
    where
        R: Send,
        F: Future<Output = Result<Response<R>, Status>> + Send,
    {
        // A request asks about its model on its way, and nobody looks at that.
        let context = &CallContext {
            witness: None,
            ..context.clone()
        };
        let asked = CallSpec::question(model, context);
        let ask = move |open: &OpenCall| ask(open.link.client(), open.picked.model.clone());
        let answer = self.call(asked, Target::Any, ask).await?;
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
