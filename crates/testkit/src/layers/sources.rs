//! The source files of a crate and the paths that each writes: `use` lists and qualified paths, from the crate's
//! root. Comments and unit tests are left out, and names of other crates. Knows nothing of circles.

use std::collections::BTreeMap;
use std::path::Path;

/// A path of a module or of something in it, from the crate's root, which is empty.
pub(super) type Segments = Vec<String>;

/// What a file writes.
#[derive(Default)]
pub(super) struct Source {
    /// Names that it imports, and what they are.
    pub(super) imports: BTreeMap<String, Segments>,
    /// All paths that it writes.
    pub(super) paths: Vec<Segments>,
}

/// Adds the code of each file below `directory` by its module. The root is one; files of tests are not.
pub(super) fn read(
    directory: &Path,
    module: &mut Segments,
    sources: &mut BTreeMap<Segments, String>,
) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if ["main", "bin", "tests"].contains(&name.as_str()) {
            continue;
        }
        let is_root = name == "lib" && module.is_empty();
        module.extend((!is_root).then_some(name));
        if path.is_dir() {
            read(&path, module, sources);
        } else {
            sources.insert(module.clone(), std::fs::read_to_string(&path).unwrap());
        }
        module.truncate(module.len() - usize::from(!is_root));
    }
}

/// Reads the code of `module`; `is_module` says which paths are files of the crate.
pub(super) fn parse(
    code: &str,
    module: &[String],
    is_module: &dyn Fn(&[String]) -> bool,
) -> Source {
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = code.lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
    let tokens: Vec<String> = lines.flat_map(tokens).collect();
    let mut source = Source::default();
    let mut qualified = Vec::new();
    let mut rest = tokens.as_slice();
    while let Some((token, after)) = rest.split_first() {
        if token == "use" {
            let mut tree = Tree {
                tokens: after,
                found: Vec::new(),
            };
            tree.read(&[]);
            rest = tree.tokens;
            for (path, name) in tree.found {
                if let Some(path) = from_root(&path, module, &source.imports, is_module) {
                    source.paths.push(path.clone());
                    source.imports.insert(name, path);
                }
            }
        } else {
            let mut path = Vec::new();
            rest = read_path(rest, &mut path);
            qualified.extend((path.len() > 1).then_some(path));
        }
    }
    let qualified = qualified.iter();
    let qualified =
        qualified.filter_map(|path| from_root(path, module, &source.imports, is_module));
    source.paths.extend(qualified.collect::<Vec<_>>());
    source
}

/// `path` as `module` writes it, from the crate's root. None when it is of another crate.
fn from_root(
    path: &[String],
    module: &[String],
    imports: &BTreeMap<String, Segments>,
    is_module: &dyn Fn(&[String]) -> bool,
) -> Option<Segments> {
    let (first, mut rest) = path.split_first()?;
    let mut whole = match first.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module[..module.len().checked_sub(1)?].to_vec(),
        name => {
            let child = [module, std::slice::from_ref(first)].concat();
            let child = Some(child).filter(|child| is_module(child));
            child.or_else(|| imports.get(name).cloned())?
        }
    };
    while let Some((_, after)) = rest.split_first().filter(|(word, _)| *word == "super") {
        whole.pop();
        rest = after;
    }
    whole.extend_from_slice(rest);
    Some(whole)
}

/// The words of a line, `::`, and each other character.
fn tokens(line: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        let length = match word.unwrap_or(rest.len()) {
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            length => length,
        };
        let (token, after) = rest.split_at(length);
        tokens.extend((!first.is_whitespace()).then(|| token.to_owned()));
        rest = after;
    }
    tokens
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Takes one path, or one token that starts none.
fn read_path<'a>(mut tokens: &'a [String], path: &mut Segments) -> &'a [String] {
    while let Some((token, after)) = tokens.split_first() {
        tokens = after;
        if !is_word(token) {
            break;
        }
        path.push(token.clone());
        match tokens {
            [colons, word, ..] if colons == "::" && is_word(word) => tokens = &tokens[1..],
            _ => break,
        }
    }
    tokens
}

/// The tree of a `use`: each path in it and the name that the file has for it.
struct Tree<'a> {
    tokens: &'a [String],
    found: Vec<(Segments, String)>,
}

impl Tree<'_> {
    fn read(&mut self, prefix: &[String]) {
        let mut path = prefix.to_vec();
        let mut name = None;
        while let Some((token, after)) = self.tokens.split_first() {
            match token.as_str() {
                "::" => {}
                "as" => name = after.first().cloned(),
                "{" => {
                    self.tokens = after;
                    return self.read_list(&path);
                }
                "self" if !path.is_empty() => {}
                word if is_word(word) && name.is_none() => path.push(word.to_owned()),
                word if is_word(word) || word == "*" => {}
                _ => break,
            }
            self.tokens = after;
        }
        if let Some(last) = path.last().cloned() {
            self.found.push((path, name.unwrap_or(last)));
        }
    }

    fn read_list(&mut self, prefix: &[String]) {
        loop {
            self.read(prefix);
            let end = self.tokens.split_first();
            self.tokens = end.map_or(&[], |(_, after)| after);
            if end.is_none_or(|(token, _)| token != ",") {
                return;
            }
            if self.tokens.first().is_some_and(|token| token == "}") {
                self.tokens = &self.tokens[1..];
                return;
            }
        }
    }
}
