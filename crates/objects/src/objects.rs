//! The objects below one prefix of a bucket. A name is one below that prefix.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use rusty_s3::Method;
use tokio::runtime::{Builder, Runtime};

use crate::answer::Answer;
use crate::error::ObjectError;
use crate::requests::{Ask, Requests};
use crate::url::{ObjectsUrl, UrlError};
use crate::xml::{self, Found};

type Result<T> = std::result::Result<T, ObjectError>;

/// See the module.
#[derive(Debug)]
pub struct Objects {
    requests: Arc<Requests>,
    /// Drives the connections of all callers; it is there until this is dropped.
    runtime: Option<Runtime>,
    spelled: String,
}

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    /// Seconds since it was written, by the server's clock.
    pub age: i64,
}

/// An upload in parts that has not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    pub name: String,
    pub(crate) upload: String,
    /// Seconds since it began, by the server's clock.
    pub age: i64,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where the next part begins; `None`: there is none.
    pub next: Option<String>,
}

impl Objects {
    /// Objects at `url`, asked for as the environment says. Asks nobody.
    ///
    /// # Errors
    /// The place, the credentials or the endpoint cannot be used.
    pub fn new(url: &ObjectsUrl) -> std::result::Result<Self, UrlError> {
        Self::of(url, |name| std::env::var(name).ok())
    }

    /// The same, as `variable` says.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(
        url: &ObjectsUrl,
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> std::result::Result<Self, UrlError> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("objects");
        let runtime = builder.enable_all().build();
        Ok(Self {
            requests: Arc::new(Requests::new(url.read(variable)?)),
            runtime: Some(runtime.map_err(UrlError::Runtime)?),
            spelled: url.spelled()?,
        })
    }

    /// Where they are: the bucket and the prefix.
    pub fn place(&self) -> &str {
        &self.spelled
    }

    /// Lists, writes and deletes once, so that what is not allowed is known before anything depends on it.
    ///
    /// # Errors
    /// The bucket cannot be used.
    pub fn check(&self, name: &str) -> Result<()> {
        self.list("", None)?;
        self.put(name, Bytes::from_static(b"inflight\n"))?;
        self.delete(name)
    }

    /// Writes an object as a whole.
    ///
    /// # Errors
    /// [`ObjectError`]; then it may be there or not.
    pub fn put(&self, name: &str, content: Bytes) -> Result<()> {
        let ask = Ask {
            object: Some(name),
            body: content,
            ..Ask::default()
        };
        self.send(Method::Put, ask).map(drop)
    }

    /// The bytes of an object from `from` up to `until`, which it has.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn read(&self, name: &str, from: u64, until: u64) -> Result<Bytes> {
        if until <= from {
            return Ok(Bytes::new());
        }
        let ask = Ask {
            object: Some(name),
            range: Some((from, until)),
            ..Ask::default()
        };
        let answer = self.send(Method::Get, ask)?;
        // A server that ignores the range would send all of it.
        let is_whole = answer.body.len() as u64 == until - from;
        match is_whole && (answer.status.as_u16() == 206 || from == 0) {
            true => Ok(answer.body),
            false => Err(self.form()),
        }
    }

    /// How long an object is.
    ///
    /// # Errors
    /// [`ObjectError::Missing`], and others.
    pub(crate) fn length(&self, name: &str) -> Result<u64> {
        let ask = Ask {
            object: Some(name),
            ..Ask::default()
        };
        let answer = self.send(Method::Head, ask)?;
        let length = answer.headers.get(http::header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        length.ok_or_else(|| self.form())
    }

    /// Deletes an object; one that is not there is no error.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn delete(&self, name: &str) -> Result<()> {
        let ask = Ask {
            object: Some(name),
            ..Ask::default()
        };
        match self.send(Method::Delete, ask) {
            Ok(_) | Err(ObjectError::Missing(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Objects whose names begin with `prefix`, in their order, from `from` on, which a page before returned.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn list(&self, prefix: &str, from: Option<&str>) -> Result<Page<Listed>> {
        let prefix = format!("{}{prefix}", self.requests.place.prefix);
        let mut query = vec![("list-type", "2"), ("prefix", &prefix)];
        if let Some(from) = from {
            query.insert(0, ("continuation-token", from));
        }
        let answer = self.ask(&query)?;
        let mut page = Page {
            items: Vec::new(),
            next: None,
        };
        let (mut name, mut written) = (String::new(), String::new());
        self.parse(&answer, "ListBucketResult", |found| match found {
            Found::Text("Contents/Key", text) => text.clone_into(&mut name),
            Found::Text("Contents/LastModified", text) => text.clone_into(&mut written),
            Found::Text("NextContinuationToken", text) => page.next = Some(text.to_owned()),
            Found::End("Contents") => {
                let age = age(&answer, &written);
                let below = name.strip_prefix(&self.requests.place.prefix);
                if let Some((name, age)) = below.map(str::to_owned).zip(age) {
                    page.items.push(Listed { name, age });
                }
            }
            _ => {}
        })?;
        Ok(page)
    }

    /// Uploads of objects whose names begin with `prefix` that have not come to their end: some of them.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn unfinished(&self, prefix: &str) -> Result<Vec<Unfinished>> {
        let prefix = format!("{}{prefix}", self.requests.place.prefix);
        let query = [("prefix", prefix.as_str()), ("uploads", "")];
        let answer = self.ask(&query)?;
        let mut all = Vec::new();
        let (mut name, mut upload, mut begun) = (String::new(), String::new(), String::new());
        self.parse(&answer, "ListMultipartUploadsResult", |found| match found {
            Found::Text("Upload/Key", text) => text.clone_into(&mut name),
            Found::Text("Upload/UploadId", text) => text.clone_into(&mut upload),
            Found::Text("Upload/Initiated", text) => text.clone_into(&mut begun),
            Found::End("Upload") => {
                let below = name.strip_prefix(&self.requests.place.prefix);
                let known = below.map(str::to_owned).zip(age(&answer, &begun));
                if let Some((name, age)) = known {
                    let upload = upload.clone();
                    all.push(Unfinished { name, upload, age });
                }
            }
            _ => {}
        })?;
        Ok(all)
    }

    pub(crate) fn send(&self, method: Method, ask: Ask<'_>) -> Result<Answer> {
        let runtime = self.runtime.as_ref().ok_or_else(|| self.form())?;
        runtime.block_on(self.requests.send(method, ask))
    }

    /// Asks the bucket.
    fn ask(&self, query: &[(&str, &str)]) -> Result<Answer> {
        let ask = Ask {
            query,
            ..Ask::default()
        };
        self.send(Method::Get, ask)
    }

    fn parse(&self, answer: &Answer, root: &str, take: impl FnMut(Found<'_>)) -> Result<()> {
        let text = std::str::from_utf8(&answer.body).ok();
        let found = text.and_then(|text| xml::read(text, take));
        match found.as_deref() == Some(root) {
            true => Ok(()),
            false => Err(self.form()),
        }
    }

    pub(crate) fn form(&self) -> ObjectError {
        ObjectError::Form(self.requests.place.endpoint.authority.clone())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // Waiting for its threads is not allowed where tasks run.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Seconds from `then` to the answer; `None`: it is not a time.
fn age(answer: &Answer, then: &str) -> Option<i64> {
    let then: Timestamp = then.parse().ok()?;
    Some(answer.now().as_second().saturating_sub(then.as_second()))
}
