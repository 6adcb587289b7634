//! System shared memory: tensors in POSIX shared memory instead of the message, as Triton's clients on the
//! same machine send and take them.
//!
//! Regions are read and written as files and never mapped: a client that shortens one cannot crash the worker. Knows
//! nothing of models.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use bytes::Bytes;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::system_shared_memory_status_response::RegionStatus;
use inflight_kserve::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use inflight_kserve::names::SHARED_MEMORY_REGION as REGION;
use inflight_kserve::tensor::DataType;
use parking_lot::Mutex;
use tonic::{Code, Status};

/// Where Linux keeps POSIX shared memory.
const DIRECTORY: &str = "/dev/shm";
/// Regions at once; each holds a file open.
const MAX_REGIONS: usize = 1024;
/// Bytes of strings in one input: those of the longest prompts, many times over.
const MAX_TEXT_BYTES: u64 = 32 << 20;
/// Of the name of a region and of its key.
const MAX_NAME_BYTES: usize = 255;

const BYTE_SIZE: &str = "shared_memory_byte_size";
const OFFSET: &str = "shared_memory_offset";

/// A registered part of a shared memory object.
#[derive(Debug)]
struct Region {
    key: String,
    offset: u64,
    byte_size: u64,
    file: File,
}

/// The regions that clients have registered.
#[derive(Debug, Default)]
pub(crate) struct Regions(Mutex<BTreeMap<String, Arc<Region>>>);

/// Where the outputs of a request go.
#[derive(Debug, Default)]
pub(crate) struct Placements(Vec<Placement>);

#[derive(Debug)]
struct Placement {
    output: String,
    name: String,
    region: Arc<Region>,
    offset: u64,
    byte_size: u64,
}

impl Regions {
    pub(crate) fn register(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), Status> {
        let file_name = key.strip_prefix('/').unwrap_or(key);
        let is_name = |name: &str| !name.is_empty() && name.len() <= MAX_NAME_BYTES;
        if !is_name(name) {
            return Err(Status::invalid_argument(format!(
                "a shared memory region needs a name of at most {MAX_NAME_BYTES} bytes"
            )));
        }
        let unable = |reason: &str| {
            Status::invalid_argument(format!(
                "Unable to open shared memory region: '{key}': {reason}"
            ))
        };
        if !is_name(file_name) || file_name.contains(['/', '\0']) || file_name.starts_with('.') {
            return Err(unable("not the name of a shared memory object"));
        }
        let mut regions = self.0.lock();
        if regions.contains_key(name) {
            return Err(Status::already_exists(format!(
                "shared memory region '{name}' already in manager"
            )));
        }
        if regions.len() >= MAX_REGIONS {
            return Err(Status::resource_exhausted(format!(
                "there are `{MAX_REGIONS}` shared memory regions already; unregister one"
            )));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(format!("{DIRECTORY}/{file_name}"))
            .map_err(|error| unable(&error.to_string()))?;
        let length = file
            .metadata()
            .ok()
            .filter(std::fs::Metadata::is_file)
            .map(|metadata| metadata.len())
            .ok_or_else(|| unable("not a shared memory object"))?;
        if offset.checked_add(byte_size).is_none_or(|end| end > length) {
            return Err(Status::invalid_argument(format!(
                "failed to register shared memory region '{name}': invalid args: it ends at \
                 `{offset}` + `{byte_size}` bytes, and the object has `{length}`"
            )));
        }
        let region = Region {
            key: key.to_owned(),
            offset,
            byte_size,
            file,
        };
        regions.insert(name.to_owned(), Arc::new(region));
        Ok(())
    }

    /// One region, or all where the name is empty.
    pub(crate) fn status(&self, name: &str) -> Result<Vec<RegionStatus>, Status> {
        let regions = self.0.lock();
        if !name.is_empty() && !regions.contains_key(name) {
            return Err(unknown(name));
        }
        Ok(regions
            .iter()
            .filter(|(one, _)| name.is_empty() || *one == name)
            .map(|(name, region)| RegionStatus {
                name: name.clone(),
                key: region.key.clone(),
                offset: region.offset,
                byte_size: region.byte_size,
            })
            .collect())
    }

    /// One region, or all where the name is empty. An unknown one is unregistered already, as in Triton.
    pub(crate) fn unregister(&self, name: &str) {
        let mut regions = self.0.lock();
        if name.is_empty() {
            regions.clear();
        } else {
            regions.remove(name);
        }
    }

    /// The request with its inputs read from their regions, and where its outputs go.
    pub(crate) fn resolve(
        &self,
        message: &ModelInferRequest,
    ) -> Result<(ModelInferRequest, Placements), Status> {
        let mut message = message.clone();
        let mut sent = std::mem::take(&mut message.raw_input_contents).into_iter();
        for input in &mut message.inputs {
            let raw = match self.place(&input.name, &input.parameters)? {
                Some(place) => {
                    place.check_size(&input.datatype, &input.shape)?;
                    for name in [REGION, BYTE_SIZE, OFFSET] {
                        input.parameters.remove(name);
                    }
                    place.read()?
                }
                None => sent.next().unwrap_or_default(),
            };
            message.raw_input_contents.push(raw);
        }
        // More contents than tensors are for the reader to refuse.
        message.raw_input_contents.extend(sent);
        let mut placements = Placements::default();
        for output in &mut message.outputs {
            if let Some(place) = self.place(&output.name, &output.parameters)? {
                for name in [REGION, BYTE_SIZE, OFFSET] {
                    output.parameters.remove(name);
                }
                placements.0.push(place);
            }
        }
        Ok((message, placements))
    }

    fn place(
        &self,
        tensor: &str,
        parameters: &std::collections::HashMap<String, InferParameter>,
    ) -> Result<Option<Placement>, Status> {
        let Some(name) = parameters.get(REGION) else {
            return Ok(None);
        };
        let wrong = |name: &str, expected: &str| {
            Status::invalid_argument(format!(
                "tensor `{tensor}` has a parameter `{name}` that is not a {expected}"
            ))
        };
        let Some(ParameterChoice::StringParam(name)) = &name.parameter_choice else {
            return Err(wrong(REGION, "string"));
        };
        let number = |key: &str| match parameters.get(key).map(|one| &one.parameter_choice) {
            None | Some(None) => Ok(0),
            Some(Some(ParameterChoice::Int64Param(value))) => {
                u64::try_from(*value).map_err(|_| wrong(key, "size"))
            }
            Some(Some(ParameterChoice::Uint64Param(value))) => Ok(*value),
            Some(Some(_)) => Err(wrong(key, "size")),
        };
        let (offset, byte_size) = (number(OFFSET)?, number(BYTE_SIZE)?);
        let region = self.0.lock().get(name).cloned();
        let region = region.ok_or_else(|| {
            Status::invalid_argument(format!("tensor `{tensor}`: {}", unknown(name).message()))
        })?;
        if offset
            .checked_add(byte_size)
            .is_none_or(|end| end > region.byte_size)
        {
            return Err(Status::invalid_argument(format!(
                "Invalid offset + byte size for shared memory region: '{name}'"
            )));
        }
        Ok(Some(Placement {
            output: tensor.to_owned(),
            name: name.clone(),
            offset,
            byte_size,
            region,
        }))
    }
}

impl Placement {
    /// Refuses more bytes than an input of this type and shape has, before there is memory for them.
    fn check_size(&self, datatype: &str, shape: &[i64]) -> Result<(), Status> {
        let most = match DataType::from_name(datatype).and_then(DataType::size) {
            Some(size) => shape.iter().try_fold(size as u64, |bytes, length| {
                bytes.checked_mul(u64::try_from(*length).ok()?)
            }),
            None => Some(MAX_TEXT_BYTES),
        };
        match most {
            Some(most) if self.byte_size <= most => Ok(()),
            most => Err(Status::invalid_argument(format!(
                "input `{}` has `{}` bytes in shared memory; its type and shape allow `{}`",
                self.output,
                self.byte_size,
                most.unwrap_or(0)
            ))),
        }
    }

    fn read(&self) -> Result<Bytes, Status> {
        let length = usize::try_from(self.byte_size).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        self.region
            .file
            .read_exact_at(&mut bytes, self.region.offset + self.offset)
            .map_err(|error| {
                Status::invalid_argument(format!(
                    "shared memory region '{}' cannot be read: {error}",
                    self.name
                ))
            })?;
        Ok(bytes.into())
    }
}

impl Placements {
    /// Moves outputs to their regions; what stays in the message says where they are.
    pub(crate) fn place(&self, response: &mut ModelInferResponse) -> Result<(), Status> {
        for place in &self.0 {
            let found = response
                .outputs
                .iter()
                .position(|output| output.name == place.output);
            let Some(index) = found else {
                continue;
            };
            let (Some(output), Some(raw)) = (
                response.outputs.get_mut(index),
                response.raw_output_contents.get_mut(index),
            ) else {
                continue;
            };
            if raw.len() as u64 > place.byte_size {
                return Err(Status::invalid_argument(format!(
                    "shared memory size specified with the request for output '{}' ({} bytes) should be at least \
                     {} bytes to hold the results",
                    place.output,
                    place.byte_size,
                    raw.len()
                )));
            }
            place
                .region
                .file
                .write_all_at(raw, place.region.offset + place.offset)
                .map_err(|error| {
                    Status::internal(format!(
                        "shared memory region '{}' cannot be written: {error}",
                        place.name
                    ))
                })?;
            let int = |value: u64| ParameterChoice::Int64Param(i64::try_from(value).unwrap_or(0));
            for (name, value) in [
                (REGION, ParameterChoice::StringParam(place.name.clone())),
                (BYTE_SIZE, int(raw.len() as u64)),
                (OFFSET, int(place.offset)),
            ] {
                let value = InferParameter {
                    parameter_choice: Some(value),
                };
                output.parameters.insert(name.to_owned(), value);
            }
            // Empty and not absent: clients count them.
            *raw = Bytes::new();
        }
        Ok(())
    }
}

/// Whether any tensor of a request is in shared memory.
pub(crate) fn is_used(message: &ModelInferRequest) -> bool {
    message
        .inputs
        .iter()
        .any(|input| input.parameters.contains_key(REGION))
        || message
            .outputs
            .iter()
            .any(|output| output.parameters.contains_key(REGION))
}

fn unknown(name: &str) -> Status {
    Status::new(
        Code::NotFound,
        format!("Unable to find shared memory region: '{name}'"),
    )
}
