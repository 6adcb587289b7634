//! The gateway's options: name, default and reason, each declared once. Acts on nothing.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, ArgGroup, Command, CommandFactory, Parser};
use http::{HeaderValue, Uri};
use inflight_batches::{DataUrl, ObjectsUrl};
use inflight_clients::api_key::{ApiKey, KeyFile};
use inflight_clients::quota::Limits;
use inflight_discovery::address::{endpoint_address, worker_address};
use inflight_discovery::etcd::EtcdPlace;
use inflight_discovery::file::AddressFile;
use inflight_discovery::kubernetes::{Api, CREDENTIALS, ServiceName};
use inflight_images::{HostRule, Network};
use inflight_models::for_model::ForModel;
use inflight_models::format_options::FormatChoice;
use inflight_openai::ReasoningField;
use inflight_parsers::{ReasoningFormat, ToolFormat};
use inflight_traces::DEFAULT_RATIO;
use inflight_upstream::phases::Disaggregate;

use crate::log::LogFormat;
use crate::template_option::{
    ChatTemplateOption, HistoryTemplate, history_template, history_template_file,
};

/// An OpenAI-compatible gateway in front of Inflight workers and Triton servers.
#[derive(Clone, Debug, Parser)]
#[command(name = "inflight-gateway", version)]
#[command(group = ArgGroup::new("keys").args(["api_key", "api_key_file"]).multiple(true))]
pub struct GatewayOptions {
    /// File of options in TOML, such as `max-connections = 100`. Flags win over it, and so do environment variables:
    /// `INFLIGHT_` and an option's name, such as `INFLIGHT_MAX_CONNECTIONS`, with commas between several values
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address to listen on; loopback by default, because no key is required by default
    // The short names are openai_trtllm's, here and below.
    #[arg(long, short_alias = 'H', default_value = "127.0.0.1")]
    pub host: String,

    /// Port to listen on; 0 picks a free port
    #[arg(long, short_alias = 'p', default_value_t = 8000)]
    pub port: u16,

    /// Port for KServe over gRPC, for Triton's clients: one address of all workers [default: none]
    #[arg(long, value_name = "PORT")]
    pub grpc_port: Option<u16>,

    /// Port on which a proxy such as Envoy asks, by its external processing protocol, for each request which
    /// worker's host it goes to [default: none]
    #[arg(long, value_name = "PORT")]
    pub endpoint_picker_port: Option<u16>,

    /// Port at workers' hosts that such requests go to: that of a gateway there [default: the workers' own, for
    /// KServe's clients]
    #[arg(long, value_name = "PORT", requires = "endpoint_picker_port", value_parser = clap::value_parser!(u16).range(1..))]
    pub endpoint_port: Option<u16>,

    /// Endpoints besides the first that are named for such a request, the next best first, for a proxy that
    /// retries: at most 3. None by default, because not every proxy can read a list
    // As llm-d's picker, whose `maxNumOfEndpoints` is 1. At most four tries: a client that waits longer should hear of it.
    #[arg(long, value_name = "N", requires = "endpoint_picker_port")]
    #[arg(default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub endpoint_fallbacks: u8,

    /// Whether KServe's HTTP API is served under `/v2`, besides its health. A key's limit on tokens does not count
    /// those of this API
    #[arg(long, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    #[arg(default_value_t = true)]
    pub kserve: bool,

    /// Whether browsers get the console at `/`: a page to chat with the models and to watch the gateway
    #[arg(long, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    #[arg(default_value_t = true)]
    pub console: bool,

    /// Certificate of these ports and its chain, as a PEM file: clients then use `https://`
    /// and gRPC over TLS. Read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,

    /// The certificate's private key, as a PEM file without a passphrase
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,

    /// Client CA certificates, as a PEM file: only clients with a certificate that one of them signed may connect,
    /// health checks included
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_client_ca: Option<PathBuf>,

    /// gRPC address of a worker or Triton server, with `https://` before it if the server speaks TLS; repeat for
    /// several
    #[arg(long = "worker", alias = "triton-endpoint", short_alias = 't')]
    #[arg(value_name = "HOST:PORT", value_parser = worker_address)]
    #[arg(required_unless_present_any = ["worker_files", "worker_names", "worker_services", "worker_etcd", "endpoints", "endpoint_files", "endpoint_names"])]
    pub workers: Vec<String>,

    /// File of worker addresses, one on each line, `#` starts a comment; read again when it changes. A removed
    /// worker gets no more requests and finishes those it has
    #[arg(long = "worker-file", value_name = "FILE", value_parser = AddressFile::read)]
    pub worker_files: Vec<AddressFile>,

    /// DNS name with a worker behind each of its addresses, such as a headless Kubernetes Service; looked up
    /// again every 5 seconds
    #[arg(long = "worker-dns", value_name = "NAME:PORT", value_parser = worker_address)]
    pub worker_names: Vec<String>,

    /// Kubernetes Service with a worker in each of its Pods, followed by a watch of its EndpointSlices. Without a
    /// namespace, the gateway's own; without a port, the only one of the Service or the one called `grpc`
    #[arg(long = "worker-service", value_name = "[NAMESPACE/]NAME[:PORT]")]
    pub worker_services: Vec<ServiceName>,

    /// URL of Kubernetes' API server, such as that of `kubectl proxy` [default: that of the cluster in which the
    /// gateway runs]
    #[arg(long, value_name = "URL", value_parser = Api::at)]
    pub kubernetes_api: Option<Api>,

    /// Directory with what is shown to that server: the files `token`, `ca.crt` and `namespace`, read again for
    /// each request. By default, where Kubernetes puts them
    #[arg(long, value_name = "DIRECTORY", default_value = CREDENTIALS)]
    pub kubernetes_credentials: PathBuf,

    /// Keys of etcd whose values are workers, as `HOST:PORT` or as JSON with that as `Addr`: all that begin with
    /// PREFIX, followed by a watch. With `https://`, etcd is reached as workers over TLS are
    #[arg(
        long = "worker-etcd",
        value_name = "http://HOST:PORT[,HOST:PORT]/PREFIX"
    )]
    pub worker_etcd: Vec<EtcdPlace>,

    /// Seconds a worker stays that its source lists no more though it still answers: DNS, say, that knows less than it
    /// should. By default longer than such a fault often lasts; 0: not at all. Files are taken at their word
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub unlisted_worker_s: u64,

    /// Address of another maker's server that answers OpenAI's clients itself, such as vLLM, SGLang or
    /// trtllm-serve. It is only watched: requests reach it through a proxy that asks this gateway where to send
    /// them; repeat for several
    #[arg(long = "endpoint", value_name = "http://HOST:PORT", value_parser = endpoint_address)]
    pub endpoints: Vec<String>,

    /// File of such addresses, one on each line, `#` starts a comment; read again when it changes
    #[arg(long = "endpoint-file", value_name = "FILE", value_parser = AddressFile::read_endpoints)]
    pub endpoint_files: Vec<AddressFile>,

    /// DNS name with such a server behind each of its addresses; looked up again every 5 seconds
    #[arg(long = "endpoint-dns", value_name = "http://NAME:PORT", value_parser = endpoint_address)]
    pub endpoint_names: Vec<String>,

    /// Port at which each `--endpoint` publishes its KV cache's events over ZeroMQ, as vLLM and SGLang do: usually
    /// 5557. Without it, what it holds is estimated from what is sent to it
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub kv_events_port: Option<u16>,

    /// Port at which events that were missed can be asked for, vLLM's `replay_endpoint`. Without it, an endpoint whose
    /// events have a gap is estimated for a second
    #[arg(long, value_name = "PORT", requires = "kv_events_port", value_parser = clap::value_parser!(u16).range(1..))]
    pub kv_events_replay_port: Option<u16>,

    /// What the topics of these events begin with; empty: all are read
    #[arg(
        long,
        value_name = "TEXT",
        requires = "kv_events_port",
        default_value = ""
    )]
    pub kv_events_topic: String,

    /// Authorities of the workers and Triton servers that speak TLS, as a PEM file [default: those that this
    /// machine trusts]
    #[arg(long, value_name = "FILE")]
    pub upstream_ca: Option<PathBuf>,

    /// Certificate to show to such servers, as a PEM file
    #[arg(long, value_name = "FILE", requires = "upstream_key")]
    pub upstream_certificate: Option<PathBuf>,

    /// That certificate's private key, as a PEM file without a passphrase
    #[arg(long, value_name = "FILE", requires = "upstream_certificate")]
    pub upstream_key: Option<PathBuf>,

    /// Name in such servers' certificates, where it is not the host of their address
    #[arg(long, value_name = "NAME")]
    pub upstream_server_name: Option<String>,

    /// Directory of the Hugging Face tokenizer of one model of a Triton server or `--endpoint`, or of all without their
    /// own. Inflight workers provide theirs
    #[arg(long = "tokenizer", value_name = "[MODEL=]DIRECTORY")]
    pub tokenizers: Vec<ForModel<PathBuf>>,

    /// Longest sequence of a Triton model in tokens, prompt included; Triton does not report it [default:
    /// `max_position_embeddings` from the tokenizer's directory]
    #[arg(long = "max-seq-len", value_name = "[MODEL=]TOKENS")]
    pub max_seq_lens: Vec<ForModel<u32>>,

    /// How models write tool calls, such as `hermes`, `none`, or `auto`: chosen from the chat template [default: auto]
    #[arg(long = "tool-parser", value_name = "[MODEL=]NAME")]
    pub tool_parsers: Vec<ForModel<FormatChoice<ToolFormat>>>,

    /// How models write reasoning, such as `think`, `auto`: chosen from the chat template, or `none`: then it is
    /// part of the answer [default: auto]
    #[arg(long = "reasoning-parser", value_name = "[MODEL=]NAME")]
    pub reasoning_parsers: Vec<ForModel<FormatChoice<ReasoningFormat>>>,

    /// Field of chat answers with the model's reasoning; vLLM's is `reasoning`, and `both` sends it twice
    #[arg(long, default_value_t, value_parser = PossibleValuesParser::new(ReasoningField::NAMES).try_map(|name| name.parse::<ReasoningField>()))]
    pub reasoning_field: ReasoningField,

    /// Chat template of one model, or of all without their own: a file of Jinja or with `chat_template` as in
    /// `tokenizer_config.json`, or plain, chatml, llama-2, llama-3, gemma, phi-3, vicuna or baichuan2 [default: the
    /// model's own, else the built-in that matches its special tokens, else plain]
    #[arg(long = "chat-template", value_name = "[MODEL=]FILE|NAME")]
    pub chat_templates: Vec<ForModel<ChatTemplateOption>>,

    /// Liquid template of prompts over `items` with `identity`, `name` and `content`, as in openai_trtllm; for
    /// every model without its own `--chat-template`
    #[arg(long, value_name = "TEXT", value_parser = history_template)]
    pub history_template: Option<HistoryTemplate>,

    /// File with a history template
    #[arg(long, value_name = "FILE", value_parser = history_template_file)]
    #[arg(conflicts_with = "history_template")]
    pub history_template_file: Option<HistoryTemplate>,

    /// Key that clients must send as `Authorization: Bearer KEY` or `x-api-key: KEY`. Everyone on the machine can
    /// read it here: prefer the environment, or a file [default: none is required]
    #[arg(long, value_name = "KEY", env = "INFLIGHT_API_KEY", hide_env_values = true, value_parser = api_key)]
    pub api_key: Option<ApiKey>,

    /// File of keys that are accepted, one on each line, `#` starts a comment; read again when it changes. A key's
    /// own limits follow it: `KEY requests=60 tokens=40000 concurrent=8`
    #[arg(long, value_name = "FILE", value_parser = KeyFile::read)]
    pub api_key_file: Option<KeyFile>,

    /// What each key without its own limits may use, such as `requests=60,tokens=40000,concurrent=8`: requests and
    /// tokens a minute, and open requests [default: no limits]
    #[arg(long, value_name = "LIMITS", requires = "keys")]
    pub key_limits: Option<Limits>,

    /// Whether prompts of different keys share the KV cache. Off by default: cache hits and response times
    /// would reveal the prompts of other keys
    #[arg(long, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    #[arg(default_value_t = false)]
    pub share_prompt_cache: bool,

    /// Origin whose web pages may use the API, such as `https://chat.example.com`, or `*`; repeat for several
    /// [default: none]
    #[arg(long = "allowed-origin", value_name = "ORIGIN", value_parser = origin)]
    pub allowed_origins: Vec<HeaderValue>,

    /// Name that requests may have in `Host`, or `*`; repeat for several [default: on a loopback address, this
    /// machine's names, addresses and names without a dot; elsewhere, all]
    #[arg(long = "allowed-host", value_name = "NAME")]
    pub allowed_hosts: Vec<String>,

    /// Largest HTTP request body; 32 MiB is enough for the longest contexts
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub max_body_bytes: usize,

    /// Largest gRPC message, sent or received; 64 MiB is enough for the largest body once tokenized
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub grpc_max_message_bytes: usize,

    /// Host that images may be fetched from: `cdn.example.com`, `*.example.com` or `*`, on the ports 80 and 443 or on
    /// the port given; repeat for several. By default, none, so that clients cannot make the gateway contact
    /// arbitrary hosts: images come in requests, as `data:` URLs
    #[arg(long = "image-host", value_name = "HOST[:PORT]")]
    pub image_hosts: Vec<HostRule>,

    /// Addresses that such hosts may have besides those of the public internet, such as `10.20.0.0/16`; repeat for
    /// several. By default, none: private, local and special addresses are refused
    #[arg(
        long = "image-network",
        value_name = "ADDRESS/BITS",
        requires = "image_hosts"
    )]
    pub image_networks: Vec<Network>,

    /// Largest image file; OpenAI's limit. All images of a request together may have
    /// three quarters of `--grpc-max-message-bytes`
    #[arg(long, value_name = "BYTES", default_value_t = 20 << 20)]
    pub image_max_bytes: usize,

    /// Images of one request; each costs a model hundreds of tokens
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub images_per_request: usize,

    /// Seconds to fetch an image, redirects included; a slow host delays its request
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub image_timeout_s: u64,

    /// Whether clients may load and unload LoRA adapters with `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, or
    /// name one's files in a KServe request (`lora_path`); the workers need an `--adapter-dir`. Off by default: it
    /// changes what every client gets
    #[arg(long, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    #[arg(default_value_t = false)]
    pub allow_lora_loading: bool,

    /// Open sequences, waiting ones included: a request's prompts times its `n`. More are refused with 429. The
    /// default is a few times an engine's batch
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_concurrent_requests: usize,

    /// Responses of `/v1/responses` that clients can refer to later, in this gateway's memory; the oldest are
    /// removed first. 0 keeps none
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub max_stored_responses: usize,

    /// Memory for those responses and their conversations; 256 MiB hold 10000 of about 25 kB
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    pub stored_responses_bytes: usize,

    /// Seconds after which such a response is forgotten; a day is longer than an agent's task
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    pub stored_responses_s: u64,

    /// Directory for the files and batches of `/v1/files`, `/v1/batches` and `/v1/messages/batches`; several
    /// gateways of one machine may share it [default: none]
    #[arg(long, value_name = "DIRECTORY", group = "data")]
    pub data_dir: Option<PathBuf>,

    /// PostgreSQL for these files and batches instead of a directory, such as `postgresql://USER@HOST/DATABASE`;
    /// gateways of several machines may share it. Its password may come as `PGPASSWORD`, or with the whole URL as
    /// `INFLIGHT_DATA_URL`: everyone on the machine can read it here
    #[arg(long, value_name = "URL", value_parser = data_url, conflicts_with = "data_dir", group = "data")]
    pub data_url: Option<DataUrl>,

    /// Bucket of an S3 server for the contents of these files and for results, such as `s3://BUCKET/PREFIX`; by default
    /// the database has them. The server, the region and the key come from AWS's usual variables:
    /// `AWS_ENDPOINT_URL_S3`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`
    #[arg(long, value_name = "URL", value_parser = data_objects, requires = "data")]
    pub data_objects: Option<ObjectsUrl>,

    /// Largest file of `/v1/files`; OpenAI's limit for a batch
    #[arg(long, value_name = "BYTES", default_value_t = 200 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub max_file_bytes: u64,

    /// Room for all files and results in `--data-dir` or `--data-url`; a key may have half of it
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 30, value_parser = clap::value_parser!(u64).range(1..=1 << 50))]
    pub stored_files_bytes: u64,

    /// Seconds after which a file or an ended batch is removed; OpenAI keeps files of batches for 30 days
    #[arg(long, value_name = "SECONDS", default_value_t = 2_592_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub stored_files_s: u64,

    /// Lines of batches that a worker runs at once while no client waits; an eighth of them otherwise. More fill a GPU
    /// better and delay the next client longer
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub batch_lines: usize,

    /// Open connections; for one more, the longest idle one is closed. If all have requests, a new one gets health
    /// checks only
    #[arg(long, value_name = "N", default_value_t = 16384)]
    pub max_connections: usize,

    /// Seconds a request may take in all. No limit by default: `max_tokens` bounds each answer
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub request_timeout_s: Option<u64>,

    /// Seconds to finish open requests after SIGTERM or Ctrl-C; below Kubernetes' 30
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    pub shutdown_grace_s: u64,

    /// Seconds a connection may be idle before and between requests; above common proxies' 60
    #[arg(long, value_name = "SECONDS", default_value_t = 75)]
    pub idle_timeout_s: u64,

    /// Seconds a client may stop reading before its request is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub slow_client_s: u64,

    /// Seconds a worker may be silent before it counts as not ready and its requests move to other workers; after
    /// six times as long, its connection is closed
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5, value_parser = worker_silence)]
    pub worker_silence_s: f64,

    /// How often an answer that has begun may continue at another worker after it has lost one; 0: never. A request
    /// that brings no new token at three workers in a row ends in any case
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub max_resumes: u32,

    /// Seconds that such an answer waits for a worker. By default, as long as a worker takes to start again
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub resume_wait_s: u64,

    /// Tokens of prompt and answer that may be computed again to continue elsewhere. No limit by default: the
    /// client has waited for them once
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_resumed_tokens: Option<u64>,

    /// Requests whose prompt a worker for contexts computes and whose answer another one generates, where there are
    /// such workers; `auto`: those that are expected to cost less that way
    #[arg(long, default_value_t, value_parser = PossibleValuesParser::new(Disaggregate::NAMES).try_map(|name| name.parse::<Disaggregate>()))]
    pub disaggregate: Disaggregate,

    /// Seconds to a request's first token, after which it gets 504 and its work is cancelled. No limit by
    /// default: prompts and queues differ too much
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub first_token_timeout_s: Option<u64>,

    /// Threads that serve requests; 0 uses one per CPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,

    /// What to log, as a filter of Rust's `tracing`: a level, or `MODULE=LEVEL` pairs
    #[arg(
        long,
        value_name = "FILTER",
        env = "INFLIGHT_LOG",
        default_value = "info"
    )]
    pub log: String,

    /// OTLP collector to which traces of requests are exported over gRPC, such as `http://localhost:4317` [default:
    /// none]
    #[arg(
        long,
        short_alias = 'o',
        value_name = "URL",
        env = "OTEL_EXPORTER_OTLP_ENDPOINT"
    )]
    #[arg(value_parser = otlp_endpoint)]
    pub otlp_endpoint: Option<String>,

    /// Share of the requests without a `traceparent` that are traced; with one, its sender decides. Lower it on a
    /// busy gateway
    #[arg(
        long,
        value_name = "RATIO",
        env = "OTEL_TRACES_SAMPLER_ARG",
        default_value_t = DEFAULT_RATIO
    )]
    #[arg(value_parser = inflight_traces::ratio)]
    pub trace_sampling_ratio: f64,

    /// How to write log lines: text for people, or one JSON object a line
    #[arg(long, env = "INFLIGHT_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// The command, whose help names the values of an option that has few, as the other commands' help does.
pub(crate) fn command() -> Command {
    GatewayOptions::command().mut_args(|argument| {
        let values = argument.get_possible_values();
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        match argument.get_action() {
            ArgAction::Set | ArgAction::Append if !names.is_empty() => argument
                .value_name(names.join("|"))
                .hide_possible_values(true),
            _ => argument,
        }
    })
}

/// Empty, as a variable may be set: none.
fn otlp_endpoint(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    inflight_traces::endpoint(text).map_err(|error| error.to_string())
}

fn worker_silence(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    // Below, a busy machine looks like a stopped worker.
    let seconds = seconds.filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "must be from 0.1 to 3600".to_owned())
}

fn origin(text: &str) -> Result<HeaderValue, String> {
    let text = text.trim_end_matches('/');
    let is_origin = |uri: &Uri| {
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        uri.scheme().is_some() && uri.authority().is_some() && is_bare
    };
    let is_known = matches!(text, "*" | "null") || text.parse().as_ref().is_ok_and(is_origin);
    let value = HeaderValue::from_str(text).ok().filter(|_| is_known);
    value.ok_or_else(|| "must be SCHEME://HOST[:PORT], e.g. https://app.example, or `*`".to_owned())
}

/// Its text is read when it is used, so that no error repeats a password.
fn data_url(text: &str) -> Result<DataUrl, std::convert::Infallible> {
    Ok(DataUrl::new(text))
}

/// It is read when it is used, too: somebody may put a key into it.
fn data_objects(text: &str) -> Result<ObjectsUrl, std::convert::Infallible> {
    Ok(ObjectsUrl::new(text))
}

fn api_key(text: &str) -> Result<ApiKey, String> {
    match text {
        // An empty environment variable would lock every client out, or let every client in.
        "" => Err("the key must not be empty; omit the option to serve without a key".to_owned()),
        key => Ok(ApiKey::new(key.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_send_them() {
        for good in [
            "*",
            "null",
            "https://app.example",
            "http://localhost:3000",
            "chrome-extension://abc",
        ] {
            assert_eq!(origin(good).unwrap(), good);
        }
        assert_eq!(
            origin("https://app.example/").unwrap(),
            "https://app.example"
        );
        for bad in [
            "",
            "app.example",
            "https://",
            "https://a/b",
            "https://a?b",
            "a b",
        ] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }

    /// A unit, a kind, an address of them, or the values: docs/STYLE.md.
    #[test]
    fn every_value_has_a_name_in_the_style_of_all_help() {
        for argument in command().get_arguments() {
            if !argument.get_action().takes_values() {
                continue;
            }
            let flag = argument.get_long().unwrap();
            let name = argument.get_value_names().unwrap()[0].as_str();
            let is_choice = !argument.get_possible_values().is_empty();
            let is_word = |c: char| c.is_ascii_uppercase() || "[]:=/,|".contains(c);
            let in_capitals = name.trim_start_matches("http").chars().all(is_word);
            assert_eq!(in_capitals, !is_choice, "--{flag} <{name}>");
            let unit = flag.rsplit_once('-').map_or("", |(_, last)| last);
            let expected = [
                ("s", "SECONDS"),
                ("bytes", "BYTES"),
                ("tokens", "TOKENS"),
                ("port", "PORT"),
            ];
            if let Some((_, expected)) = expected.iter().find(|(suffix, _)| *suffix == unit) {
                assert_eq!(name, *expected, "--{flag}");
            }
        }
    }

    #[test]
    fn defaults_are_as_documented() {
        let options = GatewayOptions::try_parse_from(["gateway", "--worker", "a:1"]).unwrap();
        assert_eq!((options.host.as_str(), options.port), ("127.0.0.1", 8000));
        assert_eq!(options.max_body_bytes, 33_554_432);
        assert_eq!(options.grpc_max_message_bytes, 67_108_864);
        // A stopped worker must be noticed within 2 s.
        assert!(options.worker_silence_s < 2.0 && options.first_token_timeout_s.is_none());
        for bad in ["0", "-1", "inf", "nan", "x"] {
            assert!(worker_silence(bad).is_err(), "{bad}");
        }
        assert!(
            GatewayOptions::try_parse_from(["gateway"]).is_err(),
            "a worker is required"
        );
    }
}
