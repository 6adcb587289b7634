//! LoRA adapters that are loaded and unloaded through Triton's model control, and who hears of it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use inflight_kserve::assets::{AdapterList, DescribeRequest, WatchAdaptersRequest};
use inflight_kserve::client::{TransportOptions, assets_client, connect};
use inflight_kserve::inference::model_repository_parameter::ParameterChoice;
use inflight_kserve::inference::{
    ModelRepositoryParameter, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
};
use inflight_worker::{SimulatedExecutor, WorkerError, WorkerOptions};
use tonic::{Code, Status, Streaming};

use crate::harness::{PATIENCE, Scripted, Worker, instant, options};

/// A directory with the adapters `support` and `sales`, and `empty`, which is none.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("inflight-{name}-{}", std::process::id()));
        for adapter in ["support", "sales"] {
            std::fs::create_dir_all(root.join(adapter)).unwrap();
            std::fs::write(root.join(adapter).join("adapter_config.json"), "{}").unwrap();
        }
        std::fs::create_dir_all(root.join("empty")).unwrap();
        Self(root)
    }

    async fn worker(&self, capabilities: &[&str]) -> Worker {
        let (executor, _script) = Scripted::new(capabilities);
        Worker::start(executor, self.options()).await
    }

    fn options(&self) -> WorkerOptions {
        WorkerOptions {
            adapter_dir: Some(self.0.clone()),
            ..options()
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const CAN: &[&str] = &["lora", "adapter_loading"];

async fn load(worker: &mut Worker, name: &str, path: Option<&str>) -> Result<(), Status> {
    let parameters = path.map(|path| {
        let parameter_choice = Some(ParameterChoice::StringParam(path.to_owned()));
        (
            "lora_path".to_owned(),
            ModelRepositoryParameter { parameter_choice },
        )
    });
    let asked = RepositoryModelLoadRequest {
        repository_name: String::new(),
        model_name: name.to_owned(),
        parameters: parameters.into_iter().collect::<HashMap<_, _>>(),
    };
    worker.client.repository_model_load(asked).await.map(drop)
}

async fn unload(worker: &mut Worker, name: &str) -> Result<(), Status> {
    let asked = RepositoryModelUnloadRequest {
        model_name: name.to_owned(),
        ..RepositoryModelUnloadRequest::default()
    };
    worker.client.repository_model_unload(asked).await.map(drop)
}

type Told = Vec<(String, u64)>;

fn told(list: AdapterList) -> Told {
    let adapters = list.adapters.into_iter();
    adapters
        .map(|adapter| (adapter.name, adapter.lora_task_id))
        .collect()
}

fn expected(adapters: &[(&str, u64)]) -> Told {
    let adapters = adapters.iter();
    adapters
        .map(|(name, task_id)| ((*name).to_owned(), *task_id))
        .collect()
}

async fn watch(worker: &Worker) -> Streaming<AdapterList> {
    let transport = TransportOptions::default();
    let channel = connect(&worker.grpc.to_string(), &transport).await.unwrap();
    let mut client = assets_client(channel);
    let watched = client.watch_adapters(WatchAdaptersRequest {});
    watched.await.unwrap().into_inner()
}

async fn next(watched: &mut Streaming<AdapterList>) -> Option<Told> {
    let message = tokio::time::timeout(PATIENCE, watched.message());
    message.await.unwrap().unwrap().map(told)
}

#[tokio::test]
async fn adapters_come_and_go_and_who_listens_is_told() {
    let files = Files::new("come-and-go");
    let mut worker = files.worker(CAN).await;
    let mut watched = watch(&worker).await;
    // What the executor started with.
    assert_eq!(next(&mut watched).await, Some(expected(&[("support", 7)])));
    load(&mut worker, "sales", None).await.unwrap();
    let both = expected(&[("sales", 5), ("support", 7)]);
    assert_eq!(next(&mut watched).await, Some(both));
    // Under a name of its own, and in the place of what had the name.
    load(&mut worker, "bot", Some("sales")).await.unwrap();
    let three = expected(&[("bot", 3), ("sales", 5), ("support", 7)]);
    assert_eq!(next(&mut watched).await, Some(three.clone()));
    load(
        &mut worker,
        "bot",
        Some(files.0.join("support").to_str().unwrap()),
    )
    .await
    .unwrap();
    assert_eq!(next(&mut watched).await, Some(three.clone()));
    let transport = TransportOptions::default();
    let channel = connect(&worker.grpc.to_string(), &transport).await.unwrap();
    let described = assets_client(channel).describe(DescribeRequest {}).await;
    let adapters = described.unwrap().into_inner().adapters;
    assert_eq!(told(AdapterList { adapters }), three);
    unload(&mut worker, "support").await.unwrap();
    let left = expected(&[("bot", 3), ("sales", 5)]);
    assert_eq!(next(&mut watched).await, Some(left.clone()));
    // Who comes later hears what there is.
    assert_eq!(next(&mut watch(&worker).await).await, Some(left));
    // Nobody who listens holds the end up.
    worker.stop().await;
    assert_eq!(next(&mut watched).await, None);
}

#[tokio::test]
async fn what_cannot_be_loaded_is_refused_and_changes_nothing() {
    let files = Files::new("refused");
    let mut worker = files.worker(CAN).await;
    for (name, path, code, words) in [
        (
            "empty",
            None,
            Code::InvalidArgument,
            "`empty` has no config",
        ),
        (
            "missing",
            None,
            Code::InvalidArgument,
            "there is no directory `missing`",
        ),
        (
            "sales",
            Some("../sales"),
            Code::InvalidArgument,
            "`../sales` is not in",
        ),
        (
            "sales",
            Some("/etc"),
            Code::InvalidArgument,
            "`/etc` is not in",
        ),
        ("..", None, Code::InvalidArgument, "`..` is not in"),
        (
            "a:b",
            Some("sales"),
            Code::InvalidArgument,
            "`a:b` has a colon",
        ),
        (
            "tensorrt_llm",
            Some("sales"),
            Code::Unimplemented,
            "explicit model load / unload",
        ),
    ] {
        let refused = load(&mut worker, name, path).await.unwrap_err();
        assert_eq!(refused.code(), code, "{name}: {refused}");
        assert!(refused.message().contains(words), "{name}: {refused}");
    }
    let refused = unload(&mut worker, "missing").await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    let refused = unload(&mut worker, "tensorrt_llm").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let told = next(&mut watch(&worker).await).await;
    assert_eq!(told, Some(expected(&[("support", 7)])));
}

#[tokio::test]
async fn a_worker_without_a_directory_or_an_executor_for_it_loads_nothing() {
    let files = Files::new("unable");
    let (executor, _script) = Scripted::new(CAN);
    let no_directory = Worker::start(executor, options()).await;
    let unable = files.worker(&["lora"]).await;
    for (mut worker, hint) in [
        (no_directory, "start it with one"),
        (unable, "the executor `scripted` cannot load"),
    ] {
        for refused in [
            load(&mut worker, "sales", Some("sales")).await.unwrap_err(),
            unload(&mut worker, "support").await.unwrap_err(),
        ] {
            assert_eq!(refused.code(), Code::Unimplemented);
            let text = refused.message();
            assert!(text.starts_with("explicit model load / unload is not allowed"));
            assert!(text.contains(hint), "{text}");
        }
    }
}

#[tokio::test]
async fn a_directory_that_is_not_there_stops_the_start() {
    let options = WorkerOptions {
        adapter_dir: Some("/does/not/exist".into()),
        ..options()
    };
    let executor = Arc::new(SimulatedExecutor::new(instant()));
    let ended = inflight_worker::serve(executor, options, |_| (), std::future::pending()).await;
    let error = ended.unwrap_err();
    assert!(matches!(error, WorkerError::AdapterDir { .. }));
    assert!(error.to_string().contains("`/does/not/exist`"), "{error}");
}
