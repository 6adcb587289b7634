//! A file as it comes: a form with the content and what it is for. Owns the form's fields and its pace. The content goes
//! to the store in pieces, and is never in memory as a whole.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, Version, header};
use inflight_base::wall_clock::unix_seconds;
use inflight_batches::{File, NewFile, Owner, Purpose, Receiving, Store};
use inflight_clients::admission::{Admission, BodyMemory};
use inflight_clients::client::Client;
use inflight_openai::ApiError;
use inflight_openai::batches::AGES;
use inflight_openai::reader::shortened;
use multer::{Constraints, Field, Multipart, SizeLimit};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::batches::Batches;
use crate::request_body;
use crate::state::AppState;

/// The next part of a body must come within this.
const PART_TIMEOUT: Duration = Duration::from_secs(60);
/// And all of it within this.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);
/// Of fields that are not the file.
const MAX_TEXT: u64 = 256;
/// What a form has besides its file.
const FORM_BYTES: u64 = 64 * 1024;
/// Of a file's name.
const MAX_NAME: usize = 255;

/// Receives a file and keeps it.
///
/// # Errors
/// 400 for what is not such a form, 413 for too large a file, 429 where the client has too much open; what the store
/// cannot take.
pub(super) async fn receive(
    state: &AppState,
    batches: &Arc<Batches>,
    request: Request,
) -> Result<File, ApiError> {
    let (parts, body) = request.into_parts();
    let client = Client::of(&parts.extensions);
    let owner = client.map(|client| client.owner()).unwrap_or_default();
    let limit = u64::try_from(batches.bounds().file_bytes).unwrap_or_default();
    let _admitted = state.admission.admit(client)?;
    let declared = parts.headers.get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let mut body = body.into_data_stream();
    let read = match declared.is_some_and(|length| length > limit.saturating_add(FORM_BYTES)) {
        true => Err(ApiError::payload_too_large(limit)),
        false => {
            let memory = (&state.admission, BodyMemory::of(client));
            form(
                batches,
                owner.files(),
                memory,
                &parts.headers,
                &mut body,
                limit,
            )
            .await
        }
    };
    if read.is_err() && parts.version < Version::HTTP_2 {
        // The client may be sending it still, and would find a reset in place of the answer.
        let rest = Body::from_stream(body);
        request_body::discard_rest(&parts.headers, rest, state.max_body_bytes).await;
    }
    read
}

/// What the form says besides the content.
#[derive(Debug, Default)]
struct Said {
    purpose: Option<Purpose>,
    anchor: Option<String>,
    age: Option<i64>,
}

async fn form(
    batches: &Arc<Batches>,
    owner: Owner,
    (admission, mut memory): (&Admission, BodyMemory),
    headers: &HeaderMap,
    body: &mut (impl Stream<Item = Result<bytes::Bytes, axum::Error>> + Send + Unpin),
    limit: u64,
) -> Result<File, ApiError> {
    let media_type = headers.get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok());
    let boundary = multer::parse_boundary(media_type.unwrap_or_default()).map_err(|_| {
        ApiError::unsupported_media_type(
            "A file is uploaded as a form. Send it with the header `Content-Type: multipart/form-data`.",
        )
    })?;
    let sizes = SizeLimit::new()
        .per_field(MAX_TEXT)
        .for_field("file", limit)
        .whole_stream(limit.saturating_add(FORM_BYTES));
    let constraints = Constraints::new().size_limit(sizes);
    let body = body.map(|part| part.map_err(std::io::Error::other));
    let mut form = Multipart::with_constraints(body, boundary, constraints);
    let end = Instant::now() + UPLOAD_TIMEOUT;
    let mut said = Said::default();
    let mut upload: Option<Upload> = None;
    let in_time = |end: Instant| end.min(Instant::now() + PART_TIMEOUT);
    loop {
        let field = timeout_at(in_time(end), form.next_field()).await;
        let Some(mut field) = field
            .map_err(|_| late())?
            .map_err(|error| unreadable(&error, limit))?
        else {
            break;
        };
        let name = field.name().unwrap_or_default().to_owned();
        match name.as_str() {
            "file" if upload.is_some() => {
                let message = "The form has several files. Send one.";
                return Err(ApiError::invalid_request("file", message));
            }
            "file" => {
                let mut begun = Upload::begin(batches, owner, file_name(&field)?).await?;
                while let Some(part) = timeout_at(in_time(end), field.chunk())
                    .await
                    .map_err(|_| late())?
                    .map_err(|error| unreadable(&error, limit))?
                {
                    begun.push(&part, admission, &mut memory).await?;
                }
                upload = Some(begun);
            }
            _ => {
                let text = timeout_at(in_time(end), field.text()).await;
                let text = text
                    .map_err(|_| late())?
                    .map_err(|error| unreadable(&error, limit))?;
                said.take(&name, text)?;
            }
        }
    }
    let missing = |name: &str| {
        ApiError::invalid_request(name, format!("Missing required parameter: `{name}`."))
    };
    let upload = upload.ok_or_else(|| missing("file"))?;
    let purpose = said.purpose.ok_or_else(|| missing("purpose"))?;
    if said.age.is_some() != said.anchor.is_some() {
        return Err(missing(match said.age {
            Some(_) => "expires_after[anchor]",
            None => "expires_after[seconds]",
        }));
    }
    upload.finish(purpose, said.age).await
}

impl Said {
    fn take(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "purpose" => {
                let purpose = super::purpose(&text)?;
                if purpose == Purpose::BatchOutput {
                    let message = "`batch_output` is for results. Send `batch`.";
                    return Err(ApiError::invalid_request("purpose", message));
                }
                self.purpose = Some(purpose);
            }
            "expires_after[anchor]" if text == "created_at" => self.anchor = Some(text),
            "expires_after[anchor]" => {
                let text = shortened(&text);
                let message = format!("Invalid value for `{name}`: `{text}`. Send `created_at`.");
                return Err(ApiError::invalid_request(name, message));
            }
            "expires_after[seconds]" => {
                let seconds = text.parse().ok().filter(|seconds| AGES.contains(seconds));
                self.age = Some(seconds.ok_or_else(|| {
                    let text = shortened(&text);
                    let (least, most) = (AGES.start(), AGES.end());
                    let message =
                        format!("Invalid value for `{name}`: `{text}`. Send {least} to {most}.");
                    ApiError::invalid_request(name, message)
                })?);
            }
            other => {
                let other = shortened(other);
                let message = format!("Unknown parameter: `{other}`.");
                return Err(ApiError::unsupported(other, message));
            }
        }
        Ok(())
    }
}

fn file_name(field: &Field<'_>) -> Result<String, ApiError> {
    let name = field.file_name().unwrap_or("upload").to_owned();
    if name.len() > MAX_NAME {
        let message = format!(
            "The file's name has `{}` bytes. Send at most {MAX_NAME}.",
            name.len()
        );
        return Err(ApiError::invalid_request("file", message));
    }
    Ok(name)
}

fn late() -> ApiError {
    ApiError::invalid_body("The file was not received in time. Send it again.")
}

fn unreadable(error: &multer::Error, limit: u64) -> ApiError {
    match error {
        multer::Error::StreamSizeExceeded { .. } => ApiError::payload_too_large(limit),
        multer::Error::FieldSizeExceeded { field_name, .. } => match field_name.as_deref() {
            Some("file") => ApiError::payload_too_large(limit),
            name => ApiError::invalid_request(
                shortened(name.unwrap_or("form")),
                format!(
                    "A field of the form has more than {MAX_TEXT} bytes. Only `file` may be long."
                ),
            ),
        },
        error => ApiError::invalid_body(format!(
            "The form cannot be read: {error}. Send `multipart/form-data` with `purpose` and `file`."
        )),
    }
}

/// A file that is not yet whole; it goes when this is dropped before its end.
struct Upload {
    batches: Arc<Batches>,
    /// Until it is whole. The store may still be busy with it when this is dropped.
    file: Option<Arc<Mutex<Receiving>>>,
    name: String,
    /// At most a piece.
    rest: Vec<u8>,
}

impl Upload {
    async fn begin(batches: &Arc<Batches>, owner: Owner, name: String) -> Result<Self, ApiError> {
        let new = NewFile {
            owner,
            name: name.clone(),
            // Its own comes with the form, perhaps after the content.
            purpose: Purpose::Batch,
            created: unix_seconds(),
            age: None,
        };
        let file = batches.ask("", move |store| store.begin_file(&new)).await?;
        Ok(Self {
            batches: Arc::clone(batches),
            file: Some(Arc::new(Mutex::new(file))),
            name,
            rest: Vec::new(),
        })
    }

    async fn push(
        &mut self,
        mut part: &[u8],
        admission: &Admission,
        memory: &mut BodyMemory,
    ) -> Result<(), ApiError> {
        let piece = self.batches.piece_bytes();
        while !part.is_empty() {
            // The last one is written with the end.
            if self.rest.len() == piece {
                self.write().await?;
            }
            let (now, later) = part.split_at(part.len().min(piece - self.rest.len()));
            admission.hold(memory, self.rest.len() + now.len())?;
            self.rest.extend_from_slice(now);
            part = later;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), ApiError> {
        let (piece, file) = (std::mem::take(&mut self.rest), self.file()?);
        let append = move |store: &Store| store.append(&mut file.lock(), piece);
        self.batches.ask("", append).await
    }

    async fn finish(mut self, purpose: Purpose, age: Option<i64>) -> Result<File, ApiError> {
        let (name, last) = (
            std::mem::take(&mut self.name),
            std::mem::take(&mut self.rest),
        );
        let file = self.file()?;
        let finish =
            move |store: &Store| store.finish_file(&mut file.lock(), last, &name, purpose, age);
        let done = self.batches.ask("", finish).await?;
        self.file = None;
        Ok(done)
    }

    fn file(&self) -> Result<Arc<Mutex<Receiving>>, ApiError> {
        self.file.clone().ok_or_else(ApiError::internal)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.batches.later(move |store| {
                let abandoned = store.abandon_file(&file.lock());
                abandoned.and_then(|()| store.purge().map(drop))
            });
        }
    }
}
