//! Shared memory over HTTP: Triton's calls as gRPC has them, and the tensors of an answer that are there. Pure but
//! for the calls themselves; whose memory it is, and whether there is any, is the service's.

use inflight_kserve::inference as wire;
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use inflight_kserve::inference::model_infer_response::InferOutputTensor;
use serde::Deserialize;
use serde_json::{Value, json};
use tonic::Request;

use crate::error::RestError;
use crate::json::{json as write_json, not_json, separated, write_parameter};
use crate::route::{MemoryCall, MemoryKind, MemoryRoute};

/// The parameter of a tensor in shared memory.
pub(crate) const REGION: &str = "shared_memory_region";
/// Where it is.
const PREFIX: &str = "shared_memory_";

/// Answers a call. `None`: there is nothing to say.
///
/// # Errors
/// The body of a registration is malformed, or the service refuses.
pub(crate) async fn call<S: GrpcInferenceService>(
    service: &S,
    MemoryRoute { kind, call, region }: &MemoryRoute,
    body: &[u8],
    request: Request<()>,
) -> Result<Option<Value>, RestError> {
    let name = region.clone();
    let (metadata, extensions, ()) = request.into_parts();
    macro_rules! ask {
        ($method:ident, $message:expr) => {
            service
                .$method(Request::from_parts(metadata, extensions, $message))
                .await?
                .into_inner()
        };
    }
    match (kind, call) {
        (MemoryKind::System, MemoryCall::Status) => {
            let message = wire::SystemSharedMemoryStatusRequest { name };
            let answer = ask!(system_shared_memory_status, message);
            Ok(Some(status(answer)))
        }
        (MemoryKind::System, MemoryCall::Register) => {
            let message = registration(name, body)?;
            ask!(system_shared_memory_register, message);
            Ok(None)
        }
        (MemoryKind::System, MemoryCall::Unregister) => {
            let message = wire::SystemSharedMemoryUnregisterRequest { name };
            ask!(system_shared_memory_unregister, message);
            Ok(None)
        }
        // None of our services has CUDA shared memory: each says so, whatever is asked.
        (MemoryKind::Cuda, MemoryCall::Status) => {
            let message = wire::CudaSharedMemoryStatusRequest { name };
            ask!(cuda_shared_memory_status, message);
            Ok(None)
        }
        (MemoryKind::Cuda, MemoryCall::Register) => {
            let message = wire::CudaSharedMemoryRegisterRequest {
                name,
                ..Default::default()
            };
            ask!(cuda_shared_memory_register, message);
            Ok(None)
        }
        (MemoryKind::Cuda, MemoryCall::Unregister) => {
            let message = wire::CudaSharedMemoryUnregisterRequest { name };
            ask!(cuda_shared_memory_unregister, message);
            Ok(None)
        }
    }
}

fn registration(
    name: String,
    body: &[u8],
) -> Result<wire::SystemSharedMemoryRegisterRequest, RestError> {
    #[derive(Deserialize)]
    struct Asked {
        key: String,
        #[serde(default)]
        offset: u64,
        byte_size: u64,
    }
    let Asked {
        key,
        offset,
        byte_size,
    } = serde_json::from_slice(body).map_err(not_json)?;
    Ok(wire::SystemSharedMemoryRegisterRequest {
        name,
        key,
        offset,
        byte_size,
    })
}

/// A list, by name.
fn status(answer: wire::SystemSharedMemoryStatusResponse) -> Value {
    let mut regions: Vec<_> = answer.regions.into_values().collect();
    regions.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let regions = regions.into_iter().map(|region| {
        json!({
            "name": region.name,
            "key": region.key,
            "offset": region.offset,
            "byte_size": region.byte_size,
        })
    });
    regions.collect()
}

/// Whether the elements of an output are in shared memory, not in the message.
pub(crate) fn is_there(output: &InferOutputTensor) -> bool {
    output.parameters.contains_key(REGION)
}

/// Appends where an output is, as the end of its JSON object.
pub(crate) fn write_place(output: &InferOutputTensor, out: &mut Vec<u8>) {
    let parameters = output.parameters.iter();
    let mut place: Vec<_> = parameters
        .filter(|(name, _)| name.starts_with(PREFIX))
        .collect();
    place.sort_unstable_by_key(|(name, _)| *name);
    out.extend_from_slice(b",\"parameters\":");
    separated(place, *b"{}", out, |(name, value), out| {
        write_json(name, out);
        out.push(b':');
        write_parameter(value.into(), out);
    });
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_a_key_and_a_part_of_it() {
        let read = |body: &str| registration("r".to_owned(), body.as_bytes());
        let message = read(r#"{"key": "/k", "byte_size": 8}"#).unwrap();
        assert_eq!((message.name.as_str(), message.key.as_str()), ("r", "/k"));
        assert_eq!((message.offset, message.byte_size), (0, 8));
        let message = read(r#"{"key": "/k", "offset": 4, "byte_size": 8}"#).unwrap();
        assert_eq!(message.offset, 4);
        for (body, words) in [
            ("", "cannot be read"),
            (r#"{"byte_size": 8}"#, "missing field `key`"),
            (r#"{"key": "/k"}"#, "missing field `byte_size`"),
            (r#"{"key": "/k", "byte_size": -1}"#, "invalid value"),
        ] {
            let error = read(body).unwrap_err();
            assert!(
                error.status == 400 && error.message.contains(words),
                "{error}"
            );
        }
    }
}
