//! The gateway: OpenAI's API and KServe's in front, KServe v2 gRPC towards the workers, no state in between.
//!
//! [`serve`] runs it inside a tokio runtime; [`main_with_args`] is the whole command, with signals, log and
//! runtime:
//!
//! ```
//! use clap::Parser;
//! use inflight_gateway::{GatewayOptions, serve};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let arguments = ["gateway", "--worker", "127.0.0.1:8001", "--port", "0"];
//! let options = GatewayOptions::try_parse_from(arguments).unwrap();
//! let on_bound = |address| println!("listening on http://{address}");
//! let shutdown = async {}; // e.g. a signal; here at once
//! serve(&options, on_bound, shutdown).await.unwrap();
//! # });
//! ```
//!
//! The rest of the crate is private. Its modules, from the outside in:
//!
//! | module | owns |
//! |---|---|
//! | `cli`, `options`, `option_layers`, `option_file`, `template_option`, `log`, `run` | the command, its options and where they may be, the log, the gateway's life |
//! | `router`, `routes`, `handled`, `middleware` | routes, what every request passes through |
//! | `tls_options`, `option_list`, `openapi`, `console` | options of certificates, the options as pages list them, the API's description, the page for people |
//! | `access`, `caller`, `request_body` | which requests are let in, who may stop them, the memory of their bodies |
//! | `handlers`, `query` | the resources of the API, and KServe's calls over HTTP |
//! | `batches`, `batch_runner` | files and batches: where they are kept, and running them |
//! | `state`, `metrics`, `error` | what all handlers share, the page for Prometheus, errors over HTTP |
//! | `grpc` | KServe's calls over gRPC |
//! | `picker` | proxies that ask where requests go |
//!
//! Sockets and clients' connections are [`inflight_http_server`]'s. How a request becomes sampling parameters is
//! [`inflight_translate`]'s, and how a server's output becomes text and events, [`inflight_streams`]'. Servers (which
//! there are, connecting, picking, sending, reading) are [`inflight_upstream`]'s, and what their models can do
//! [`inflight_models`]'. Who a client is and what it may have open and use is [`inflight_clients`]'s, images are
//! [`inflight_images`]'s, responses that clients may come back to [`inflight_response_store`]'s, and whether schemas
//! and regular expressions can be followed [`inflight_guides`]'s.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod access;
mod batch_runner;
mod batches;
mod caller;
mod cli;
mod console;
mod error;
mod grpc;
mod handled;
mod handlers;
mod log;
mod metrics;
mod middleware;
mod openapi;
mod option_file;
mod option_layers;
mod option_list;
mod options;
mod picker;
mod query;
mod request_body;
mod router;
mod routes;
mod run;
mod state;
mod template_option;
mod tls_options;

pub use cli::{main, main_with_args};
pub use handlers::transcriptions::check_form;
pub use log::{LogFormat, flush_log, set_log_level, start_log};
pub use option_file::{OptionValues, check_option_file, read_option_file};
pub use option_list::{OptionInfo, check_arguments, option_list};
pub use options::GatewayOptions;
pub use run::{ServeError, serve, serve_on_network};
