//! No two files of the crate use each other.

use std::path::Path;

use inflight_testkit::layers::no_circles;

#[test]
fn files_form_no_circles() {
    no_circles(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}
