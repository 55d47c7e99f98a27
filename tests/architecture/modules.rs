//! The files of a crate, as modules, without comments, literals and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module's path from the crate's root; empty for the root.
pub(crate) type Name = Vec<String>;

/// One module that has a file of its own.
pub(crate) struct Module {
    /// Its file, from the repository's root.
    pub(crate) file: PathBuf,
    /// Its text without comments, literals and test modules.
    pub(crate) text: String,
}

/// One crate.
pub(crate) struct Crate {
    /// Its modules by name.
    pub(crate) modules: BTreeMap<Name, Module>,
}

// === impl Crate ===

impl Crate {
    /// Reads the crate whose root file is `folder/root`, both from `repository`.
    pub(crate) fn read(repository: &Path, folder: &Path, root: &str) -> Self {
        let mut modules = BTreeMap::new();
        read(repository, &folder.join(root), folder, Vec::new(), &mut modules);
        assert!(modules.len() > 1 || root == "main.rs", "{} has no modules", folder.display());
        Self { modules }
    }

    /// The longest beginning of `path` that is a module, and the rest.
    pub(crate) fn split<'a>(&self, path: &'a [String]) -> (Name, &'a [String]) {
        let mut length = path.len();
        loop {
            let (head, rest) = path.split_at(length);
            if length == 0 || self.modules.contains_key(head) {
                return (head.to_vec(), rest);
            }
            length -= 1;
        }
    }
}

/// Reads a module and those that it declares; `folder` is where its children are.
fn read(repository: &Path, file: &Path, folder: &Path, name: Name, modules: &mut BTreeMap<Name, Module>) {
    let text =
        std::fs::read_to_string(repository.join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let text = without_tests(&without_comments_and_literals(&text));
    for child in children(&text) {
        let mut below = name.clone();
        below.push(child.clone());
        let own = folder.join(&child);
        let flat = folder.join(format!("{child}.rs"));
        let file = if repository.join(&flat).is_file() { flat } else { own.join("mod.rs") };
        read(repository, &file, &own, below, modules);
    }
    modules.insert(name, Module { file: file.to_path_buf(), text });
}

/// The names in `mod name;`, without those for tests.
fn children(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut for_tests = false;
    for line in text.lines().map(str::trim) {
        let rest = line.strip_prefix("pub ").or(line.strip_prefix("pub(crate) ")).unwrap_or(line);
        if let Some(name) = rest.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'))
            && !for_tests
        {
            names.insert(name.to_owned());
        }
        for_tests = line.starts_with("#[cfg(") && line.contains("test") || for_tests && line.starts_with("#[");
    }
    names
}

/// Ends the text at `#[cfg(test)]` before an inline module: by convention the last thing of a file.
fn without_tests(text: &str) -> String {
    let mut kept = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let next = lines.get(index + 1).map_or("", |next| next.trim());
        if line.trim() == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{') {
            break;
        }
        kept.push(*line);
    }
    kept.join("\n")
}

fn without_comments_and_literals(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_string(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
        } else if first == '"' {
            end_of_string(rest)
        } else if first == '\'' && is_char(rest) {
            1 + rest[1..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1)
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        rest = &rest[skipped..];
    }
    out
}

/// The number of `#` of a raw string that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Whether a quote begins a character, not a lifetime.
fn is_char(text: &str) -> bool {
    let mut following = text.chars().skip(1);
    matches!((following.next(), following.next()), (Some('\\'), _) | (Some(_), Some('\'')))
}
