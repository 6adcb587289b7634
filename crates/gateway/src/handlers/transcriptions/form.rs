//! The form of a transcription: its fields, and the file. Owns the bounds of each; the body is whole.

use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http::{HeaderMap, header};
use inflight_openai::ApiError;
use inflight_openai::reader::shortened;
use inflight_openai::transcription::{Task, TranscriptionRequest};
use multer::{Constraints, Multipart, SizeLimit};

/// Of a field that is not the file: a prompt may be as long as what came before.
const MAX_TEXT: u64 = 16 * 1024;
/// Fields of one form; each of OpenAI's comes once, or a few times.
const MAX_FIELDS: usize = 32;

/// The boundary between the fields.
///
/// # Errors
/// 415 for a body that is not a form.
pub(super) fn boundary(headers: &HeaderMap) -> Result<String, ApiError> {
    let media_type = headers.get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok());
    multer::parse_boundary(media_type.unwrap_or_default()).map_err(|_| {
        ApiError::unsupported_media_type(
            "A clip is sent as a form. Send it with the header `Content-Type: multipart/form-data`.",
        )
    })
}

/// What the form says, and its file.
///
/// # Errors
/// 400 for what is not such a form.
pub(super) fn read(
    body: &[u8],
    boundary: String,
    task: Task,
) -> Result<(TranscriptionRequest, Bytes), ApiError> {
    // Nothing waits: the body is whole.
    let read = fields(Bytes::copy_from_slice(body), boundary, task).now_or_never();
    read.ok_or_else(ApiError::internal)?
}

/// Reads a form with the boundary `b`, for fuzzing.
///
/// # Panics
/// Where what is wrong with it is not the client's fault, or its file is not a part of it.
pub fn check_form(body: &[u8]) {
    for task in [Task::Transcribe, Task::Translate] {
        match read(body, "b".to_owned(), task) {
            Ok((_, file)) => {
                let mut parts = body.windows(file.len().max(1));
                assert!(file.is_empty() || parts.any(|part| part == file));
            }
            Err(error) => assert!((400..500).contains(&error.status()), "{error:?}"),
        }
    }
}

async fn fields(
    body: Bytes,
    boundary: String,
    task: Task,
) -> Result<(TranscriptionRequest, Bytes), ApiError> {
    let sizes = SizeLimit::new()
        .per_field(MAX_TEXT)
        .for_field("file", body.len() as u64);
    let constraints = Constraints::new().size_limit(sizes);
    let body = stream::iter([Ok::<_, std::io::Error>(body)]);
    let mut form = Multipart::with_constraints(body, boundary, constraints);
    let mut request = TranscriptionRequest::default();
    let mut file = None;
    let mut count = 0;
    while let Some(field) = form
        .next_field()
        .await
        .map_err(|error| unreadable(&error))?
    {
        count += 1;
        if count > MAX_FIELDS {
            let message = format!("The form has more than {MAX_FIELDS} fields. Send fewer.");
            return Err(ApiError::invalid_body(message));
        }
        let name = field.name().unwrap_or_default().to_owned();
        match name.as_str() {
            "file" if file.is_some() => {
                let message = "The form has several files. Send one.";
                return Err(ApiError::invalid_request("file", message));
            }
            "file" => file = Some(field.bytes().await.map_err(|error| unreadable(&error))?),
            name => {
                let text = field.text().await.map_err(|error| unreadable(&error))?;
                request.take(task, name, &text)?;
            }
        }
    }
    request.check()?;
    let file = file
        .ok_or_else(|| ApiError::invalid_request("file", "Missing required parameter: `file`."))?;
    Ok((request, file))
}

fn unreadable(error: &multer::Error) -> ApiError {
    match error {
        multer::Error::FieldSizeExceeded { field_name, .. } => {
            let name = shortened(field_name.as_deref().unwrap_or("form"));
            let message =
                format!("`{name}` has more than {MAX_TEXT} bytes. Only `file` may be longer.");
            ApiError::invalid_request(name, message)
        }
        error => ApiError::invalid_body(format!(
            "The form cannot be read: {error}. Send `multipart/form-data` with `model` and `file`."
        )),
    }
}
