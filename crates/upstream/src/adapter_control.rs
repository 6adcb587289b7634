//! LoRA adapters that are loaded and unloaded at every worker of a model. Owns who is asked, and that an answer comes
//! only once requests are routed by it; knows nothing of what clients send.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use inflight_kserve::inference::model_repository_parameter::ParameterChoice;
use inflight_kserve::inference::{
    ModelRepositoryParameter, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
};
use tonic::Status;

use super::rpc;
use super::slot::WorkerSlot;
use super::table::Table;

/// An adapter of gigabytes is read from a slow disk in less.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a worker may take to report a change to the gateway after making it.
const ROUTES_TIMEOUT: Duration = Duration::from_secs(5);
/// The parameter of a load.
const PATH: &str = "lora_path";

/// What is done to an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// From this path; a worker that has the name already is asked again only where `in_place`.
    Load {
        path: &'a str,
        in_place: bool,
    },
    Unload,
}

/// What one worker made of it.
#[derive(Debug)]
pub struct Outcome {
    pub address: Arc<str>,
    pub done: Result<(), Status>,
}

/// Asks every worker of the model `base`, those that are not ready included: these fail. None is asked that has
/// nothing to do.
pub async fn change(table: &Table, base: &str, name: &str, change: Change<'_>) -> Vec<Outcome> {
    let workers = table.workers();
    let of_base = workers.iter().filter(|slot| slot.serves(base));
    let asked = of_base.filter(|slot| match change {
        Change::Load { in_place, .. } => in_place || !has(slot, base, name),
        // One that is not ready has lost what was loaded, or says so.
        Change::Unload => slot.connection(base).is_none() || has(slot, base, name),
    });
    let calls = asked.map(|slot| async {
        let done = match ask(slot, name, change).await {
            Ok(()) => {
                wait_for_routes(table, slot, base, name, change).await;
                Ok(())
            }
            Err(status) => Err(status),
        };
        Outcome {
            address: Arc::clone(&slot.address),
            done,
        }
    });
    join_all(calls).await
}

async fn ask(slot: &WorkerSlot, name: &str, change: Change<'_>) -> Result<(), Status> {
    let served = slot.peer.served().filter(|_| slot.takes_calls());
    let Some(served) = served else {
        return Err(Status::unavailable("the worker is not ready"));
    };
    let mut client = served.pool.client();
    let model_name = name.to_owned();
    let asked = async {
        match change {
            Change::Load { path, .. } => {
                let parameter_choice = Some(ParameterChoice::StringParam(path.to_owned()));
                let parameter = ModelRepositoryParameter { parameter_choice };
                let message = RepositoryModelLoadRequest {
                    repository_name: String::new(),
                    model_name,
                    parameters: HashMap::from([(PATH.to_owned(), parameter)]),
                };
                client.repository_model_load(message).await.map(drop)
            }
            Change::Unload => {
                let message = RepositoryModelUnloadRequest {
                    model_name,
                    ..RepositoryModelUnloadRequest::default()
                };
                client.repository_model_unload(message).await.map(drop)
            }
        }
    };
    match tokio::time::timeout(CHANGE_TIMEOUT, asked).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(status)) => Err(Status::new(
            status.code(),
            rpc::abbreviated(status.message()),
        )),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "no answer within {CHANGE_TIMEOUT:?}"
        ))),
    }
}

/// Waits until requests are routed by the change.
async fn wait_for_routes(
    table: &Table,
    slot: &WorkerSlot,
    base: &str,
    name: &str,
    change: Change<'_>,
) {
    let wanted = change != Change::Unload;
    let mut changes = table.adapter_changes();
    let until = async {
        while slot.connection(base).is_some() && has(slot, base, name) != wanted {
            // The sender lives as long as the table.
            let _ = changes.changed().await;
        }
    };
    let _ = tokio::time::timeout(ROUTES_TIMEOUT, until).await;
}

/// Whether the worker announces the adapter.
fn has(slot: &WorkerSlot, base: &str, name: &str) -> bool {
    slot.connection(base).is_some_and(|connection| {
        let adapters = connection.adapters();
        adapters.iter().any(|adapter| adapter.name == name)
    })
}
