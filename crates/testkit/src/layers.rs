//! Which modules of a crate use which: arrows that a test lists, and no others. Reads the sources: `crate::…` and
//! `super::…` outside comments and unit tests.

#![allow(clippy::unwrap_used)]

mod circles;
mod sources;

pub use circles::no_circles;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Modules, each with those that it uses. Each comes after all that it uses, so that no circle can form.
pub type Arrows = &'static [(&'static str, &'static [&'static str])];

/// Checks the sources below `root`. Each scope is a module's path with `::` at its end, or empty for the crate, and
/// what the modules in it use of each other.
///
/// # Panics
/// A module uses what is not listed, or not what is, or is not listed.
pub fn check(root: &Path, scopes: &[(&str, Arrows)]) {
    let mut uses = Vec::new();
    read_uses(root, &mut Vec::new(), &mut uses);
    for (scope, arrows) in scopes {
        let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, to) in &uses {
            let names = from.strip_prefix(scope).zip(to.strip_prefix(scope));
            let names = names.map(|(from, to)| (first_part(from), first_part(to)));
            if let Some((from, to)) = names.filter(|(from, to)| from != to) {
                found.entry(from).or_default().insert(to);
            }
        }
        let mut before = BTreeSet::new();
        for (module, listed) in *arrows {
            let listed: BTreeSet<&str> = listed.iter().copied().collect();
            assert!(before.is_superset(&listed), "`{module}` comes too early");
            before.insert(*module);
            let used = found.remove(module).unwrap_or_default();
            assert_eq!(used, listed, "what `{module}` uses and what is listed");
        }
        assert!(found.is_empty(), "modules that are not listed: {found:?}");
    }
}

fn first_part(path: &str) -> &str {
    path.split("::").next().unwrap()
}

/// Adds each use in the sources below `directory`: the module that uses, and the path that it uses.
fn read_uses(directory: &Path, module: &mut Vec<String>, uses: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if ["lib", "main", "tests"].contains(&name.as_str()) {
            continue;
        }
        module.push(name);
        if path.is_dir() {
            read_uses(&path, module, uses);
        } else {
            let source = std::fs::read_to_string(&path).unwrap();
            let code = source.split("#[cfg(test)]\nmod tests").next().unwrap();
            let code = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let used = code.flat_map(|line| paths_in(line, module));
            uses.extend(used.map(|path| (module.join("::"), path)));
        }
        module.pop();
    }
}

/// The crate's own paths in a line of `module`, from the crate's root.
fn paths_in(line: &str, module: &[String]) -> Vec<String> {
    assert!(
        !line.contains("crate::{"),
        "one `use` for each module: {line}"
    );
    let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let paths = words.filter_map(|word| {
        let mut parts = word.split("::").filter(|part| !part.is_empty()).peekable();
        let mut path = match parts.next()? {
            "crate" => Vec::new(),
            "super" => module[..module.len() - 1].to_vec(),
            _ => return None,
        };
        while parts.next_if_eq(&"super").is_some() {
            path.pop();
        }
        path.extend(parts.map(str::to_owned));
        Some(path.join("::")).filter(|path| !path.is_empty())
    });
    paths.collect()
}
