//! An object that is written in parts: nobody sees it before the last, and no more than one part is in memory.

use bytes::Bytes;
use rusty_s3::Method;

use crate::error::ObjectError;
use crate::objects::{Objects, Unfinished};
use crate::requests::Ask;
use crate::xml;

type Result<T> = std::result::Result<T, ObjectError>;

/// Parts of one object, as S3 has it.
const MOST_PARTS: u64 = 10_000;
/// Bytes of a part at least, but for the last.
const LEAST_PART: u64 = 8 << 20;

/// See the module.
#[derive(Debug)]
pub struct Upload {
    name: String,
    /// Once there is more than one part.
    id: Option<String>,
    /// Of the parts, in their order.
    tags: Vec<String>,
    bytes: u64,
}

impl Upload {
    /// Begins an object. Asks nobody.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            id: None,
            tags: Vec::new(),
            bytes: 0,
        }
    }

    /// Bytes of each part but the last of an object that may have `most`.
    pub fn part_bytes(most: u64) -> u64 {
        most.div_ceil(MOST_PARTS).max(LEAST_PART)
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Objects {
    /// Adds a part that is not the last: of [`Upload::part_bytes`].
    ///
    /// # Errors
    /// [`ObjectError`]; then the upload is to be abandoned.
    pub fn add(&self, upload: &mut Upload, part: Bytes) -> Result<()> {
        let id = match upload.id.clone() {
            Some(id) => id,
            None => {
                let ask = Ask {
                    object: Some(&upload.name),
                    query: &[("uploads", "")],
                    ..Ask::default()
                };
                let answer = self.send(Method::Post, ask)?;
                let found = xml::text(&answer.body, "UploadId").and_then(|(_, id)| id);
                let id = found
                    .filter(|id| !id.is_empty())
                    .ok_or_else(|| self.form())?;
                upload.id.insert(id).clone()
            }
        };
        let number = (upload.tags.len() + 1).to_string();
        let bytes = part.len() as u64;
        let ask = Ask {
            object: Some(&upload.name),
            query: &[("partNumber", &number), ("uploadId", &id)],
            body: part,
            ..Ask::default()
        };
        let answer = self.send(Method::Put, ask)?;
        let tag = answer.headers.get(http::header::ETAG);
        let tag = tag.and_then(|tag| tag.to_str().ok());
        let is_plain = |tag: &&str| !tag.contains(['<', '&', '>']);
        let tag = tag.filter(is_plain).ok_or_else(|| self.form())?;
        upload.tags.push(tag.to_owned());
        upload.bytes += bytes;
        Ok(())
    }

    /// Adds the last part, after which the object is there.
    ///
    /// # Errors
    /// [`ObjectError`]; then the upload is to be abandoned.
    pub fn finish(&self, upload: &mut Upload, last: Bytes) -> Result<()> {
        if upload.id.is_none() {
            upload.bytes = last.len() as u64;
            return self.put(&upload.name, last);
        }
        if !last.is_empty() {
            self.add(upload, last)?;
        }
        let Some(id) = upload.id.clone() else {
            return Ok(());
        };
        let parts = (1..).zip(&upload.tags).map(|(number, tag)| {
            format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
        });
        let parts: String = parts.collect();
        let namespace = "http://s3.amazonaws.com/doc/2006-03-01/";
        let body = format!(
            "<CompleteMultipartUpload xmlns=\"{namespace}\">{parts}</CompleteMultipartUpload>"
        );
        let ask = Ask {
            object: Some(&upload.name),
            query: &[("uploadId", &id)],
            body: body.into(),
            ..Ask::default()
        };
        match self.send(Method::Post, ask) {
            Ok(_) => {}
            // An attempt before this one had succeeded, and its answer was lost.
            Err(ObjectError::NoUpload(name)) => {
                if self.length(&upload.name)? != upload.bytes {
                    return Err(ObjectError::NoUpload(name));
                }
            }
            Err(error) => return Err(error),
        }
        upload.id = None;
        Ok(())
    }

    /// Gives the parts up that an upload has so far.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn abandon(&self, upload: &Upload) -> Result<()> {
        match &upload.id {
            Some(id) => self.abort(&upload.name, id),
            None => Ok(()),
        }
    }

    /// Gives up what [`unfinished`](Self::unfinished) found.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn give_up(&self, unfinished: &Unfinished) -> Result<()> {
        self.abort(&unfinished.name, &unfinished.upload)
    }

    fn abort(&self, name: &str, id: &str) -> Result<()> {
        let ask = Ask {
            object: Some(name),
            query: &[("uploadId", id)],
            ..Ask::default()
        };
        match self.send(Method::Delete, ask) {
            Ok(_) | Err(ObjectError::NoUpload(_) | ObjectError::Missing(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
