//! The arrows between the crate's modules. A module may use those listed next to it and no others, and
//! each comes after all that it uses, so that no circle can form. A new arrow is added here first.

use std::path::Path;

use inflight_testkit::layers::{Arrows, check, no_circles};

#[rustfmt::skip]
const CRATE: Arrows = &[
    ("for_model", &[]),
    ("dialect", &[]),
    ("served", &["dialect"]),
    ("capability", &["dialect", "served"]),
    ("adapter", &["capability", "served"]),
    ("format_options", &["for_model"]),
];

#[test]
fn modules_use_only_what_comes_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    check(&root, &[("", CRATE)]);
    no_circles(&root);
}
