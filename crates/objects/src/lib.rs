//! Objects of a bucket, by S3's API: written, read in ranges, listed and deleted. Owns how they are asked for, how long
//! that may take, and what a refusal means. Knows nothing of what is in them. Every call blocks, and none may be made
//! where tasks run.

mod answer;
mod connections;
mod error;
mod objects;
mod requests;
mod upload;
mod url;
mod xml;

pub use answer::check_answer;
pub use error::ObjectError;
pub use objects::{Listed, Objects, Page, Unfinished};
pub use upload::Upload;
pub use url::{ObjectsUrl, UrlError};
