//! No file of a crate may use another that uses it in turn, over however many files, unless one is the module that
//! the other is in: Rust's children see their parents, and parents their children.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use super::sources::{self, Segments, Source};

/// Files that each file uses, and by which paths.
type Graph = BTreeMap<Segments, BTreeMap<Segments, BTreeSet<Segments>>>;

/// Checks the sources below `root`, a crate's `src`.
///
/// # Panics
/// Files use each other in a circle. The message lists each circle's arrows.
pub fn no_circles(root: &Path) {
    let mut sources = BTreeMap::new();
    sources::read(root, &mut Vec::new(), &mut sources);
    let circles = circles(&graph(&sources));
    assert!(circles.is_empty(), "files use each other:\n{circles}");
}

fn graph(sources: &BTreeMap<Segments, String>) -> Graph {
    let is_module = |path: &[String]| sources.contains_key(path);
    let parsed = sources.iter().map(|(module, code)| {
        let source = sources::parse(code, module, &is_module);
        (module.clone(), source)
    });
    let parsed: BTreeMap<Segments, Source> = parsed.collect();
    let mut graph = Graph::new();
    for (module, source) in &parsed {
        let uses = graph.entry(module.clone()).or_default();
        for path in &source.paths {
            let used = file_of(path, &parsed);
            if !used.starts_with(module) && !module.starts_with(&used) {
                uses.entry(used).or_default().insert(path.clone());
            }
        }
    }
    graph
}

/// The file that has what `path` names: not one that only imports it.
fn file_of(path: &[String], parsed: &BTreeMap<Segments, Source>) -> Segments {
    let mut path = path.to_vec();
    // Imports lead to imports; more in a row would be a circle of them.
    for _ in 0..16 {
        let lengths = (0..=path.len()).rev();
        let modules = lengths.filter_map(|length| parsed.get_key_value(&path[..length]));
        let Some((module, source)) = modules.into_iter().next() else {
            break;
        };
        let rest = &path[module.len()..];
        let import = rest.first().and_then(|name| source.imports.get(name));
        match import {
            Some(import) if *import != path => path = [import, &rest[1..]].concat(),
            _ => return module.clone(),
        }
    }
    Segments::new()
}

/// Each group of files that use each other, with the arrows between them; empty when there is none.
fn circles(graph: &Graph) -> String {
    let reached: BTreeMap<&Segments, BTreeSet<&Segments>> = graph
        .keys()
        .map(|file| (file, reach(graph, file)))
        .collect();
    let mut listed = BTreeSet::new();
    let mut text = String::new();
    for (file, beyond) in &reached {
        if !beyond.contains(file) || listed.contains(file) {
            continue;
        }
        let members = beyond
            .iter()
            .filter(|other| reached[**other].contains(file));
        let members: BTreeSet<&Segments> = members.copied().collect();
        let names: Vec<String> = members.iter().map(|file| file.join("::")).collect();
        let _ = writeln!(text, "- {}", names.join(", "));
        for from in &members {
            let arrows = graph[*from].iter().filter(|(to, _)| members.contains(to));
            for (to, paths) in arrows {
                let mut paths: Vec<String> = paths.iter().map(|path| path.join("::")).collect();
                // Sorted, so that a path is followed by what is in it.
                paths.dedup_by(|inner, outer| inner.starts_with(&format!("{outer}::")));
                let (from, to) = (from.join("::"), to.join("::"));
                let _ = writeln!(text, "    {from} uses {to}: {}", paths.join(", "));
            }
        }
        listed.extend(members);
    }
    text
}

/// All files that `file` uses, directly or through others. It is one of them when it is in a circle.
fn reach<'a>(graph: &'a Graph, file: &Segments) -> BTreeSet<&'a Segments> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&Segments> = graph[file].keys().collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(graph[next].keys());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(files: &[(&str, &str)]) -> String {
        let root = [(Segments::new(), String::new())];
        let files = files.iter().map(|(module, code)| {
            let module = module.split("::").map(str::to_owned).collect();
            (module, (*code).to_owned())
        });
        circles(&graph(&root.into_iter().chain(files).collect()))
    }

    #[test]
    fn a_circle_is_found_with_its_arrows() {
        let found = circles_of(&[
            ("a", "use crate::b::{self, B};\n"),
            ("b", "use std::fmt;\nuse super::{\n    c::C,\n    d,\n};\n"),
            ("c", "fn f() { crate::a::g(); }\n"),
            ("d", "use crate::c::C;"),
        ]);
        let arrows = [
            "- a, b, c, d",
            "    a uses b: b",
            "    b uses c: c::C",
            "    b uses d: d",
            "    c uses a: a::g",
            "    d uses c: c::C",
        ];
        assert_eq!(found.trim_end().lines().collect::<Vec<_>>(), arrows);
    }

    #[test]
    fn parents_and_children_may_use_each_other() {
        let found = circles_of(&[
            ("a", "use b::B;\nuse crate::a::c::C;"),
            ("a::b", "use super::{A, c::C};"),
            ("a::c", "use crate::a::A;"),
        ]);
        assert_eq!(found, "");
    }

    #[test]
    fn what_a_parent_imports_from_a_child_is_the_childs() {
        let found = circles_of(&[
            ("a", "mod b;\npub(crate) use b::B as Renamed;"),
            ("a::b", "use crate::c;\nfn f() { c::g() }"),
            ("c", "use crate::a::Renamed;"),
        ]);
        assert!(found.starts_with("- a::b, c\n"), "{found}");
    }

    #[test]
    fn comments_tests_and_other_crates_do_not_count() {
        let found = circles_of(&[
            ("a", "use crate::b::B;"),
            (
                "b",
                "//! See crate::a.\nuse a::C;\n#[cfg(test)]\nmod tests { use crate::a::A; }",
            ),
        ]);
        assert_eq!(found, "");
    }
}
