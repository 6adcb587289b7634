//! LoRA adapters that clients load and unload while the worker runs, through Triton's model control and by requests
//! that name an adapter's files. Owns which adapters there are now, who is notified, and one change at a time; which
//! files may be read is [`directory`]'s, and what an adapter is the executor's.

mod control;
mod directory;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inflight_kserve::assets;
use inflight_kserve::inference::ModelRepositoryParameter;
use tokio::sync::{Mutex, watch};
use tonic::Status;

use crate::executor::{self, Adapter, AdapterError, Executor, ModelInfo, capability};
use crate::options::WorkerError;

use control::{Control, Refusal};
use directory::Directory;

/// The adapters of one executor. In a process of several models it is the first one's: a call names an adapter and no
/// model.
pub(crate) struct Adapters {
    executor: Arc<dyn Executor>,
    /// Its name, where it cannot load any.
    unable: Option<String>,
    /// `None`: clients may load none.
    directory: Option<Directory>,
    current: watch::Sender<Current>,
    /// Held during a change.
    changing: Mutex<()>,
}

/// One adapter.
#[derive(Clone, Debug)]
struct Loaded {
    adapter: Adapter,
    /// `None`: the executor had it at its start.
    files: Option<Files>,
}

/// Where a client had an adapter's files read.
#[derive(Clone, Debug)]
struct Files {
    /// As the client wrote it.
    asked: String,
    path: PathBuf,
}

/// What there is now.
#[derive(Clone, Debug, Default)]
struct Current {
    /// In order of name.
    adapters: Arc<[Loaded]>,
    /// Listeners are released.
    closed: bool,
}

impl Adapters {
    /// Those that the executor started with, and what may be loaded from `directory`.
    ///
    /// # Errors
    /// There is no such directory.
    pub(crate) fn new(
        executor: Arc<dyn Executor>,
        info: &ModelInfo,
        directory: Option<&Path>,
    ) -> Result<Self, WorkerError> {
        let opened = directory.map(Directory::open).transpose();
        let directory = opened.map_err(|source: io::Error| WorkerError::AdapterDir {
            path: directory
                .map(|path| path.display().to_string())
                .unwrap_or_default(),
            source,
        })?;
        let can_load = info
            .capabilities
            .iter()
            .any(|one| one == capability::ADAPTER_LOADING);
        let at_start = info.adapters.iter().map(|adapter| Loaded {
            adapter: adapter.clone(),
            files: None,
        });
        Ok(Self {
            executor,
            unable: (!can_load).then(|| info.executor.clone()),
            directory,
            current: watch::Sender::new(Current {
                adapters: at_start.collect(),
                closed: false,
            }),
            changing: Mutex::new(()),
        })
    }

    /// The name of the adapter with this task id. `None`: it has none any more.
    pub(crate) fn name_of(&self, lora_task_id: u64) -> Option<String> {
        let current = self.current.borrow();
        let mut adapters = current.adapters.iter().map(|one| &one.adapter);
        let found = adapters.find(|one| one.lora_task_id == lora_task_id);
        found.map(|one| one.name.clone())
    }

    /// As a description has them.
    pub(crate) fn announced(&self) -> Vec<assets::Adapter> {
        self.current.borrow().announced()
    }

    /// What there is now, and then each change.
    pub(crate) fn updates(&self) -> AdapterUpdates {
        let mut updates = self.current.subscribe();
        updates.mark_changed();
        AdapterUpdates(updates)
    }

    /// Ends all [`updates`](Self::updates).
    pub(crate) fn close(&self) {
        self.current.send_modify(|current| current.closed = true);
    }

    /// Reads a call of Triton's model control; `is_model`: its name is a model's.
    ///
    /// # Errors
    /// It names a model, this worker loads nothing, or it is not a call for an adapter.
    pub(crate) fn read(
        &self,
        name: String,
        parameters: HashMap<String, ModelRepositoryParameter>,
        is_model: bool,
    ) -> Result<Control, Status> {
        if name.is_empty() || is_model {
            return Err(Status::from(Refusal::Fixed));
        }
        self.directory()?;
        Control::parse(name, parameters).map_err(Status::from)
    }

    /// Loads an adapter; one of that name is replaced.
    ///
    /// # Errors
    /// The client's error: nothing has changed then.
    pub(crate) async fn load(self: &Arc<Self>, control: Control) -> Result<(), Status> {
        self.change(control, |adapters, control| {
            let path = adapters.directory()?.resolve(control.path())?;
            adapters.read_in(&control, path).map(drop)
        })
        .await
    }

    /// The task id of the adapter that a request asks for by name and directory; a name that is new is loaded.
    ///
    /// # Errors
    /// As [`load`](Self::load); and another adapter has the name.
    pub(crate) async fn require(
        self: &Arc<Self>,
        name: String,
        path: String,
    ) -> Result<u64, Status> {
        let control = Control::of(name, path)?;
        // Most requests name what is loaded: they read no directory, and wait for no change.
        let as_asked = |files: &Files| files.asked == control.path();
        if let Some((lora_task_id, true)) = self.find(&control.name, as_asked) {
            return Ok(lora_task_id);
        }
        self.change(control, |adapters, control| {
            let path = adapters.directory()?.resolve(control.path())?;
            match adapters.find(&control.name, |files| files.path == path) {
                None => adapters.read_in(&control, path),
                Some((lora_task_id, true)) => Ok(lora_task_id),
                Some((lora_task_id, false)) => Err(Refusal::OtherFiles {
                    name: control.name,
                    lora_task_id,
                }),
            }
        })
        .await
    }

    /// Unloads an adapter; requests that run keep it.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) async fn unload(self: &Arc<Self>, control: Control) -> Result<(), Status> {
        self.change(control, |adapters, control| {
            adapters.executor.unload_adapter(&control.name)?;
            tracing::info!(adapter = %control.name, "adapter unloaded");
            adapters.replace(control.name, None);
            Ok(())
        })
        .await
    }

    /// Makes one change after another, to its end even where the client has left: what the executor has and what is
    /// announced must not part.
    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        control: Control,
        make: impl FnOnce(&Self, Control) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        let adapters = Arc::clone(self);
        let changed = tokio::spawn(async move {
            let _one = adapters.changing.lock().await;
            let shared = Arc::clone(&adapters);
            // It reads files, and waits for an iteration to end.
            inflight_base::blocking::run(move || make(&shared, control)).await
        });
        match changed.await {
            Ok(Ok(changed)) => changed.map_err(Status::from),
            Ok(Err(_)) | Err(_) => Err(Status::internal("changing the adapters failed")),
        }
    }

    /// Has the executor load an adapter from the files at `path`, and returns its task id.
    fn read_in(&self, control: &Control, path: PathBuf) -> Result<u64, Refusal> {
        let name = &control.name;
        let lora_task_id = self.executor.load_adapter(name, &path)?;
        tracing::info!(adapter = %name, path = %path.display(), lora_task_id, "adapter loaded");
        let adapter = Adapter {
            name: name.clone(),
            lora_task_id,
        };
        let asked = control.path().to_owned();
        let files = Some(Files { asked, path });
        self.replace(name.clone(), Some(Loaded { adapter, files }));
        Ok(lora_task_id)
    }

    /// The task id of the adapter with a name, and whether a client had it read from files that `are` those.
    fn find(&self, name: &str, are: impl FnOnce(&Files) -> bool) -> Option<(u64, bool)> {
        let current = self.current.borrow();
        let mut adapters = current.adapters.iter();
        let found = adapters.find(|one| one.adapter.name == name)?;
        Some((
            found.adapter.lora_task_id,
            found.files.as_ref().is_some_and(are),
        ))
    }

    /// Where adapters may be loaded from.
    fn directory(&self) -> Result<&Directory, Refusal> {
        if let Some(executor) = &self.unable {
            return Err(Refusal::Unable(executor.clone()));
        }
        self.directory.as_ref().ok_or(Refusal::NoDirectory)
    }

    fn replace(&self, name: String, loaded: Option<Loaded>) {
        self.current.send_modify(|current| {
            let others = current
                .adapters
                .iter()
                .filter(|one| one.adapter.name != name);
            let mut adapters: Vec<Loaded> = others.cloned().chain(loaded).collect();
            adapters.sort_by(|one, other| one.adapter.name.cmp(&other.adapter.name));
            current.adapters = adapters.into();
        });
    }
}

impl Current {
    fn announced(&self) -> Vec<assets::Adapter> {
        announced(self.adapters.iter().map(|one| &one.adapter))
    }
}

/// The adapters at each time that they change.
pub(crate) struct AdapterUpdates(watch::Receiver<Current>);

impl AdapterUpdates {
    /// The first time at once. `None`: there will be no more.
    pub(crate) async fn next(&mut self) -> Option<Vec<assets::Adapter>> {
        self.0.changed().await.ok()?;
        let current = self.0.borrow_and_update();
        (!current.closed).then(|| current.announced())
    }
}

/// As a description has them.
pub(crate) fn announced<'a>(
    adapters: impl IntoIterator<Item = &'a executor::Adapter>,
) -> Vec<assets::Adapter> {
    adapters
        .into_iter()
        .map(|adapter| assets::Adapter {
            name: adapter.name.clone(),
            lora_task_id: adapter.lora_task_id,
        })
        .collect()
}

impl From<AdapterError> for Refusal {
    fn from(error: AdapterError) -> Self {
        Self::Executor(error)
    }
}
