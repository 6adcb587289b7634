//! Images of requests: from what clients name to the files that workers get. Owns the limits on their number, size,
//! place and time. Knows a file's kind by its first bytes, and decodes none: that is the worker's work, next to the
//! model.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod data_url;
mod fetch;
mod network;
mod rules;

use std::sync::Arc;

use bytes::Bytes;
use fetch::Fetcher;
use futures_util::future::try_join_all;
use inflight_openai::ApiError;
use inflight_openai::chat::Image;
pub use network::Network;
use parking_lot::Mutex;
pub use rules::{HostRule, Rules};
use rules::{Refusal, Target, check_kind};

use inflight_clients::admission::{Admission, BodyMemory};
use inflight_clients::client::Client;

/// How images are read, shared by all requests.
#[derive(Debug)]
pub struct Images {
    rules: Rules,
    fetcher: Fetcher,
}

/// An accepted image of a request.
#[derive(Debug)]
pub struct Wanted {
    /// Where the request has it.
    path: String,
    source: Source,
}

#[derive(Debug)]
enum Source {
    File(Bytes),
    Remote(Target),
}

/// The files of a request's images, in their order, and the memory that they hold.
#[derive(Debug, Default)]
pub struct Files {
    pub files: Vec<Bytes>,
    pub held: BodyMemory,
}

impl Images {
    /// Images under these rules.
    pub fn new(rules: Rules) -> Self {
        let fetcher = Fetcher::new(rules.timeout);
        Self { rules, fetcher }
    }

    /// Checks what can be checked without asking anybody, and takes files out of `data:` URLs.
    ///
    /// # Errors
    /// 400 with the path of the image that is refused.
    pub fn read<'a>(
        &self,
        images: impl Iterator<Item = &'a Image>,
    ) -> Result<Vec<Wanted>, ApiError> {
        let mut wanted = Vec::new();
        let mut bytes = 0;
        for image in images {
            let refused = |refusal: Refusal| refusal.at(&image.path);
            if wanted.len() == self.rules.max_images {
                return Err(refused(Refusal::TooMany {
                    limit: self.rules.max_images,
                }));
            }
            let source = if data_url::is_data(&image.url) {
                let file = data_url::file(&image.url, self.rules.max_bytes).map_err(refused)?;
                check_kind(&file).map_err(refused)?;
                bytes += file.len();
                self.check_total(bytes).map_err(refused)?;
                Source::File(file)
            } else {
                Source::Remote(Target::parse(&image.url, &self.rules).map_err(refused)?)
            };
            wanted.push(Wanted {
                path: image.path.clone(),
                source,
            });
        }
        Ok(wanted)
    }

    /// Fetches what is elsewhere, all at once.
    ///
    /// # Errors
    /// 400 with the path of the image that is refused; 503 where requests hold too much memory already.
    pub async fn collect(
        &self,
        admission: &Admission,
        client: Option<&Arc<Client>>,
        wanted: Vec<Wanted>,
    ) -> Result<Files, ApiError> {
        let held = Mutex::new((BodyMemory::of(client), 0));
        // Counts what comes as it comes, for all images of the request together.
        let hold = |more: usize| -> Result<(), Stop> {
            let (memory, total) = &mut *held.lock();
            *total += more;
            self.check_total(*total).map_err(Stop::Refused)?;
            admission.hold(memory, *total).map_err(Stop::Busy)
        };
        let files = wanted.into_iter().map(|Wanted { path, source }| {
            let hold = &hold;
            async move {
                let file = match source {
                    Source::File(file) => hold(file.len()).map(|()| file),
                    Source::Remote(target) => {
                        let client = client.map(|client| &**client);
                        self.fetcher.fetch(&self.rules, client, target, hold).await
                    }
                };
                file.map_err(|stop| match stop {
                    Stop::Refused(refusal) => refusal.at(&path),
                    Stop::Busy(error) => error,
                })
            }
        });
        let files = try_join_all(files).await?;
        let (held, _) = held.into_inner();
        Ok(Files { files, held })
    }

    fn check_total(&self, bytes: usize) -> Result<(), Refusal> {
        let limit = self.rules.max_total_bytes;
        match bytes > limit {
            true => Err(Refusal::TooLargeTogether { limit }),
            false => Ok(()),
        }
    }
}

/// Why the reading of an image ended.
#[derive(Debug)]
enum Stop {
    /// The image is refused or missing.
    Refused(Refusal),
    /// No image can be fetched now.
    Busy(ApiError),
}
