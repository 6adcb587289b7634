//! A file, as clients see it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::id::FileId;

/// What a file is for, in OpenAI's words. Only those for batches are read by anybody but their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Batch,
    BatchOutput,
    Assistants,
    FineTune,
    Vision,
    UserData,
    Evals,
    /// The requests of a batch that came without a file; in no list.
    Requests,
}

impl Purpose {
    /// All that clients may give a file.
    pub const GIVEN: [Self; 6] = [
        Self::Batch,
        Self::Assistants,
        Self::FineTune,
        Self::Vision,
        Self::UserData,
        Self::Evals,
    ];

    /// OpenAI's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::BatchOutput => "batch_output",
            Self::Assistants => "assistants",
            Self::FineTune => "fine-tune",
            Self::Vision => "vision",
            Self::UserData => "user_data",
            Self::Evals => "evals",
            Self::Requests => "requests",
        }
    }

    /// Reads OpenAI's word; `None`: no file that is listed has it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut listed = Self::GIVEN.into_iter().chain([Self::BatchOutput]);
        listed.find(|purpose| purpose.as_str() == text)
    }
}

/// A file that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub id: FileId,
    pub name: String,
    pub purpose: Purpose,
    pub bytes: i64,
    /// Seconds since the epoch, as all times.
    pub created: i64,
    pub expires: i64,
}

/// A file as OpenAI's API writes it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FileObject {
    id: String,
    /// Always `file`.
    object: &'static str,
    bytes: i64,
    created_at: i64,
    expires_at: i64,
    filename: String,
    purpose: &'static str,
    /// Always `processed`: a file is there once it is whole.
    status: &'static str,
}

impl From<&File> for FileObject {
    fn from(file: &File) -> Self {
        Self {
            id: file.id.to_string(),
            object: "file",
            bytes: file.bytes,
            created_at: file.created,
            expires_at: file.expires,
            filename: file.name.clone(),
            purpose: file.purpose.as_str(),
            status: "processed",
        }
    }
}

/// A part of a list of files.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FileList {
    /// Always `list`.
    object: &'static str,
    data: Vec<FileObject>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl FileList {
    /// The part that these files are.
    pub fn new(files: &[File], has_more: bool) -> Self {
        let id = |file: Option<&File>| file.map(|file| file.id.to_string());
        Self {
            object: "list",
            data: files.iter().map(FileObject::from).collect(),
            first_id: id(files.first()),
            last_id: id(files.last()),
            has_more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_are_read_as_they_are_written() {
        for purpose in Purpose::GIVEN {
            assert_eq!(Purpose::parse(purpose.as_str()), Some(purpose));
        }
        assert_eq!(Purpose::parse("batch_output"), Some(Purpose::BatchOutput));
        for none in ["requests", "Batch", ""] {
            assert_eq!(Purpose::parse(none), None, "{none}");
        }
    }
}
