//! KServe over gRPC for Triton's clients: the gateway as one address of many servers. Owns which calls are let in,
//! as over HTTP, and what becomes of a stream with several requests; which server answers is `upstream`'s.

mod stream;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::Extensions;
use inflight_base::accept::accept;
use inflight_base::net::Listener;
use inflight_clients::client::{Addresses, Client, ClientConnection};
use inflight_http_server::{Port, within_grace};
use inflight_kserve::client::{TransportOptions, server};
use inflight_kserve::inference as wire;
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use inflight_kserve::streamed::{StreamServer, StreamService, Unused, streams_elsewhere};
use inflight_openai::ApiError;
use inflight_streams::requests::{Witnessed, shortened};
use inflight_upstream::delivery::{CallContext, Permit, Witness};
use inflight_upstream::forward::ForwardCall;
use inflight_upstream::trace::EntryPoint;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::caller::caller;
use crate::error;
use crate::middleware::RequestContext;
use crate::state::AppState;

/// The method of a call whose answer comes in one piece.
const ONE: &str = "ModelInfer";
/// Calls at once on one connection: Triton's clients open one stream for each request.
const MAX_STREAMS: u32 = 1024;
/// Bytes of requests that one stream may send ahead of being read; a connection may send twice that.
const RECEIVE_WINDOW: u32 = 1 << 20;

/// What the port takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrpcLimits {
    pub max_message_bytes: usize,
    pub max_connections: usize,
    /// How long open calls may take once `shutdown` has resolved.
    pub grace: Duration,
}

/// Serves until `stopped` resolves and open calls have ended. Once `shutdown` has resolved, they have the grace
/// period.
pub(crate) async fn serve<L: Listener>(
    port: Port<L>,
    state: Arc<AppState>,
    limits: GrpcLimits,
    stopped: impl Future<Output = ()> + Send + 'static,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let service = Service {
        state,
        addresses: Arc::default(),
    };
    let service = StreamServer::new(service, limits.max_message_bytes);
    let serving = server(&TransportOptions {
        max_message_bytes: limits.max_message_bytes,
        stream_window_bytes: RECEIVE_WINDOW,
        connection_window_bytes: 2 * RECEIVE_WINDOW,
        ..TransportOptions::default()
    })
    .max_concurrent_streams(MAX_STREAMS)
    .add_service(service)
    .serve_with_incoming_shutdown(
        accept(port.listener, limits.max_connections, port.tls),
        stopped,
    );
    // A moment more than the HTTP port has: its end interrupts what is open here, too.
    let grace = limits.grace + Duration::from_secs(1);
    within_grace("gRPC", serving, shutdown, grace).await;
}

/// The service, before its calls are let in.
struct Service {
    state: Arc<AppState>,
    addresses: Arc<Addresses>,
}

/// Who may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everybody: it asks how the gateway is.
    Everybody,
    /// Who has a key, where keys are needed.
    Key,
}

/// A call that was let in.
struct LetIn {
    context: RequestContext,
    client: Option<Arc<Client>>,
}

impl LetIn {
    /// One of several requests of the call, which arrives now. Each counts among its client's.
    fn for_message(&self, state: &AppState, method: &'static str) -> Self {
        let mut context = self.context.for_message(method);
        context.deadline = state.deadline(context.started);
        Self {
            context,
            client: self.client.as_deref().map(Client::another),
        }
    }

    /// What is known of it where it needs no place.
    fn question(&self) -> CallContext {
        CallContext {
            caller: self.client.as_deref().map(caller),
            ..self.context.call()
        }
    }

    /// Lets a request make `model` work: with a place, traced and listed.
    ///
    /// # Errors
    /// No place is left for it.
    fn work(self, state: &AppState, model: &str) -> Result<CallContext, Status> {
        let Self {
            mut context,
            client,
        } = self;
        let method = context.route;
        context.record(state.tracer.as_ref(), EntryPoint::Grpc { method });
        let listed = state.requests.as_ref().map(|requests| {
            let owner = client.as_ref().map(|client| client.owner());
            let facts = context.facts(shortened(model), owner.unwrap_or_default());
            Witnessed::new(requests, facts)
        });
        let place = state.admission.admit(client.as_ref()).map_err(|error| {
            if let Some(listed) = &listed {
                listed.failed(&error);
            }
            let status = status(&error);
            context.trace.code(status.code());
            status
        })?;
        context.trace.received();
        Ok(CallContext {
            witness: listed.map(|it| it as Arc<dyn Witness>),
            caller: client.as_deref().map(caller),
            place: Some(Arc::new((place, client)) as Permit),
            ..context.call()
        })
    }
}

impl Service {
    /// Lets a call in.
    ///
    /// # Errors
    /// No key, or a wrong one.
    fn let_in<T>(&self, request: &Request<T>, access: Access) -> Result<LetIn, Status> {
        let headers = request.metadata().as_ref();
        let client = self.client(request.extensions());
        if access == Access::Key {
            let known = self.state.access.allows(client.as_deref(), headers);
            known.map_err(|error| status(&error))?;
        }
        let mut context = RequestContext::new(headers, ONE);
        context.deadline = self.state.deadline(context.started);
        Ok(LetIn { context, client })
    }

    /// A call that needs no place, if it is let in.
    fn question<T>(&self, request: &Request<T>, access: Access) -> Result<ForwardCall, Status> {
        let context = self.let_in(request, access)?.question();
        let forward = Arc::clone(&self.state.forward);
        Ok(ForwardCall { forward, context })
    }

    /// The caller. Counted for the call alone: gRPC's own limits bound a connection.
    fn client(&self, extensions: &Extensions) -> Option<Arc<Client>> {
        let info = extensions.get::<TcpConnectInfo>()?;
        let connection = ClientConnection::new(info.remote_addr()?, &self.addresses);
        Some(Client::new(Arc::new(connection)))
    }
}

/// A refusal in gRPC's words.
fn status(error: &ApiError) -> Status {
    Status::new(error::grpc_code(error), error.message.clone())
}

/// Calls that are let in and passed on.
macro_rules! passed_on {
    ($($rpc:ident($request:ident) -> $response:ident: $access:ident;)*) => {$(
        // Spelled as async_trait expands it: the attribute does not see into this macro.
        fn $rpc<'life0, 'async_trait>(
            &'life0 self,
            request: Request<wire::$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<wire::$response>, Status>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            // Without lifetimes, so that the compiler proves once that all the gateway's state may cross threads: with
            // them it takes most of a second for each method.
            fn pass_on(
                call: Result<ForwardCall, Status>,
                request: wire::$request,
            ) -> BoxFuture<'static, Result<Response<wire::$response>, Status>> {
                Box::pin(async move { call?.$rpc(Request::new(request)).await })
            }
            pass_on(self.question(&request, Access::$access), request.into_inner())
        }
    )*};
}

impl StreamService for Service {
    type Responses = stream::Responses;

    fn stream(
        &self,
        request: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<stream::Responses, Status> {
        let let_in = self.let_in(&request, Access::Key)?;
        Ok(stream::open(&self.state, let_in, request.into_inner()))
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    type ModelStreamInferStream = Unused;

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<Response<Unused>, Status> {
        Err(streams_elsewhere())
    }

    async fn model_infer(
        &self,
        request: Request<wire::ModelInferRequest>,
    ) -> Result<Response<wire::ModelInferResponse>, Status> {
        let let_in = self.let_in(&request, Access::Key)?;
        let (state, model) = (&self.state, &request.get_ref().model_name);
        let context = let_in.work(state, model)?;
        let forward = Arc::clone(&state.forward);
        let call = ForwardCall { forward, context };
        let answer = call.model_infer(Request::new(request.into_inner())).await;
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        call.context.trace.code(code);
        answer
    }

    passed_on! {
        server_live(ServerLiveRequest) -> ServerLiveResponse: Everybody;
        server_ready(ServerReadyRequest) -> ServerReadyResponse: Everybody;
        model_ready(ModelReadyRequest) -> ModelReadyResponse: Key;
        server_metadata(ServerMetadataRequest) -> ServerMetadataResponse: Key;
        model_metadata(ModelMetadataRequest) -> ModelMetadataResponse: Key;
        model_config(ModelConfigRequest) -> ModelConfigResponse: Key;
        model_statistics(ModelStatisticsRequest) -> ModelStatisticsResponse: Key;
        repository_index(RepositoryIndexRequest) -> RepositoryIndexResponse: Key;
        repository_model_load(RepositoryModelLoadRequest) -> RepositoryModelLoadResponse: Key;
        repository_model_unload(RepositoryModelUnloadRequest) -> RepositoryModelUnloadResponse: Key;
        system_shared_memory_status(SystemSharedMemoryStatusRequest) -> SystemSharedMemoryStatusResponse: Key;
        system_shared_memory_register(SystemSharedMemoryRegisterRequest) -> SystemSharedMemoryRegisterResponse: Key;
        system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest) -> SystemSharedMemoryUnregisterResponse: Key;
        cuda_shared_memory_status(CudaSharedMemoryStatusRequest) -> CudaSharedMemoryStatusResponse: Key;
        cuda_shared_memory_register(CudaSharedMemoryRegisterRequest) -> CudaSharedMemoryRegisterResponse: Key;
        cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest) -> CudaSharedMemoryUnregisterResponse: Key;
        trace_setting(TraceSettingRequest) -> TraceSettingResponse: Key;
        log_settings(LogSettingsRequest) -> LogSettingsResponse: Key;
    }
}
