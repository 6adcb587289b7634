//! No two files of the crate use each other, nor any of the extension module, which has no tests in Rust.

use std::path::Path;

use inflight_testkit::layers::no_circles;

#[test]
fn files_form_no_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    no_circles(&root.join("src"));
    no_circles(&root.join("../python/src"));
}
