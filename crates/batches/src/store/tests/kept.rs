//! Stores of one test each: in a directory, or in a schema of the PostgreSQL at the URL `INFLIGHT_TEST_POSTGRES`; with
//! contents in rows, or in the bucket `INFLIGHT_TEST_S3` (`s3://BUCKET`), which the usual variables say how to ask. What
//! is not set is not tested.

use std::path::PathBuf;

use inflight_objects::{Objects, ObjectsUrl};

use crate::id::Owner;
use crate::store::postgres::{self, Clock};
use crate::store::{Bounds, DataUrl, Result, Store};

pub(super) const ONE: Owner = Owner([1; 16]);
pub(super) const TWO: Owner = Owner([2; 16]);
pub(super) const PATH: &str = "/v1/chat/completions";
pub(super) const HOUR: i64 = 3600;

pub(super) const BOUNDS: Bounds = Bounds {
    bytes: 4 << 20,
    owner_bytes: 3 << 20,
    file_bytes: 2 << 20,
    line_bytes: 300_000,
    age: 30 * 24 * HOUR,
};

/// What goes with its test.
pub(super) struct Kept {
    pub(super) place: Place,
    pub(super) objects: Option<ObjectsUrl>,
}

pub(super) enum Place {
    Directory(PathBuf),
    Schema { url: String, name: String },
}

impl Kept {
    pub(super) fn sqlite(name: &str) -> Self {
        let name = format!("inflight-batches-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        Self {
            place: Place::Directory(directory),
            objects: None,
        }
    }

    /// `None`: there is no server.
    pub(super) fn postgres(name: &str) -> Option<Self> {
        let url = std::env::var("INFLIGHT_TEST_POSTGRES").ok()?;
        let name = format!("t{}_{}", std::process::id(), &name[..name.len().min(40)]);
        let place = Place::Schema { url, name };
        recreate(&place, "");
        Some(Self {
            place,
            objects: None,
        })
    }

    /// Contents in the bucket. `None`: there is no server.
    pub(super) fn with_objects(mut self, name: &str) -> Option<Self> {
        let bucket = std::env::var("INFLIGHT_TEST_S3").ok()?;
        let which = match &self.place {
            Place::Directory(_) => "sqlite",
            Place::Schema { .. } => "postgres",
        };
        let url = format!("{bucket}/batches-{}/{which}-{name}", std::process::id());
        self.objects = Some(ObjectsUrl::new(url));
        Some(self)
    }

    pub(super) fn url(&self) -> DataUrl {
        let Place::Schema { url, name } = &self.place else {
            unreachable!("only a server has a URL")
        };
        DataUrl::new(format!("{url}?options=-c%20search_path%3D{name}"))
    }

    pub(super) fn open(&self) -> Store {
        self.open_with(self.objects.as_ref(), BOUNDS).unwrap()
    }

    pub(super) fn open_with(&self, objects: Option<&ObjectsUrl>, bounds: Bounds) -> Result<Store> {
        match &self.place {
            Place::Directory(directory) => Store::open(directory, objects, bounds),
            Place::Schema { .. } => Store::connect_by(&self.url(), objects, bounds, Clock::Caller),
        }
    }

    /// All objects that there are.
    pub(super) fn names(&self) -> Vec<String> {
        let objects = Objects::new(self.objects.as_ref().unwrap()).unwrap();
        let page = objects.list("", None).unwrap();
        page.items.into_iter().map(|one| one.name).collect()
    }
}

fn recreate(place: &Place, then: &str) {
    if let Place::Schema { url, name } = place {
        let sql = format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}; {then}");
        postgres::run_once(&DataUrl::new(url).read().unwrap().0, &sql);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        match &self.place {
            Place::Directory(directory) => drop(std::fs::remove_dir_all(directory)),
            Place::Schema { name, .. } => recreate(&self.place, &format!("DROP SCHEMA {name}")),
        }
        if let Some(url) = &self.objects {
            let objects = Objects::new(url).unwrap();
            for one in objects.list("", None).unwrap().items {
                objects.delete(&one.name).unwrap();
            }
        }
    }
}

/// Each of these is true of both engines, wherever contents are.
macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[test] fn $name() { super::$name(&super::Kept::sqlite(stringify!($name))); })*
        }
        mod on_postgres {
            $(#[test] fn $name() {
                if let Some(kept) = super::Kept::postgres(stringify!($name)) {
                    super::$name(&kept);
                }
            })*
        }
        mod on_sqlite_and_s3 {
            $(#[test] fn $name() {
                let name = concat!("objects-", stringify!($name));
                if let Some(kept) = super::Kept::sqlite(name).with_objects(name) {
                    super::$name(&kept);
                }
            })*
        }
        mod on_postgres_and_s3 {
            $(#[test] fn $name() {
                let name = concat!("objects_", stringify!($name));
                if let Some(kept) = super::Kept::postgres(name).and_then(|kept| kept.with_objects(name)) {
                    super::$name(&kept);
                }
            })*
        }
    };
}

pub(super) use on_each;
