//! The arrows between the crate's modules. A module may use those listed next to it and no others, and
//! each comes after all that it uses, so that no circle can form. A new arrow is added here first.

use std::path::Path;

use inflight_testkit::layers::{Arrows, check, no_circles};

#[rustfmt::skip]
const CRATE: Arrows = &[
    ("load", &[]),
    ("turn", &[]),
    ("index", &[]),
    ("expectation", &[]),
    ("estimate", &["index"]),
    ("coming", &["index"]),
    ("choose", &["expectation", "index"]),
    ("split", &["choose", "expectation", "index"]),
];

#[rustfmt::skip]
const INDEX: Arrows = &[
    ("sets", &[]),
    ("holders", &[]),
    ("blocks", &["sets"]),
    ("held", &["sets"]),
];

#[test]
fn modules_use_only_what_comes_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    check(&root, &[("", CRATE), ("index::", INDEX)]);
    no_circles(&root);
}
