//! From text to "this file needs that file", and the circles among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::modules::{Crate, Name};

/// One imported path: absolute within the crate, or that of another crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    path: Vec<String>,
    /// The name that it has in the importing file; `*` for a glob.
    alias: String,
    exported: bool,
}

/// What a module's text refers to.
struct References {
    uses: Vec<Use>,
    inline: BTreeSet<Vec<String>>,
}

/// An edge: the file, the file that it needs, and the path that says so.
pub(crate) type Edge = (PathBuf, PathBuf, String);

/// Which file needs which. A mere re-export (`pub use`) needs nothing; who uses it needs its origin.
pub(crate) fn edges(one: &Crate) -> BTreeSet<Edge> {
    let references: BTreeMap<&Name, References> =
        one.modules.iter().map(|(name, module)| (name, references(&module.text))).collect();
    let mut edges = BTreeSet::new();
    for (name, found) in &references {
        let imported = found.uses.iter().filter(|one| !one.exported).map(|one| one.path.clone());
        for path in imported.chain(found.inline.iter().cloned()) {
            let Some(target) = resolve(one, &references, name, &path, 0) else { continue };
            if target != **name {
                let (from, to) = (&one.modules[*name].file, &one.modules[&target].file);
                edges.insert((from.clone(), to.clone(), path.join("::")));
            }
        }
    }
    edges
}

/// Per file, the top-level modules of this crate and the crates of `dependencies` that it uses.
pub(crate) fn rooms_and_crates(one: &Crate, dependencies: &BTreeSet<String>) -> BTreeSet<(PathBuf, String)> {
    let mut found = BTreeSet::new();
    for (name, module) in &one.modules {
        let references = references(&module.text);
        let paths = references.uses.iter().map(|one| one.path.clone()).chain(references.inline);
        for path in paths {
            if let Some(absolute) = absolute(one, name, &path) {
                if let (Some(room), false) = (absolute.first(), name.is_empty()) {
                    let is_room = one.modules.contains_key(std::slice::from_ref(room));
                    found.extend(is_room.then(|| (module.file.clone(), room.clone())));
                }
            } else if let Some(first) = path.first().filter(|first| dependencies.contains(*first)) {
                found.insert((module.file.clone(), first.clone()));
            }
        }
    }
    found
}

/// The path from the crate's root; none for another crate's.
fn absolute(one: &Crate, module: &Name, path: &[String]) -> Option<Vec<String>> {
    let mut base = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|first| first == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        child => {
            base.push(child.to_owned());
            let is_child = one.modules.contains_key(&base);
            base.pop();
            if !is_child {
                return None;
            }
        }
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The module in whose file the thing at `path` is written.
fn resolve(
    one: &Crate,
    references: &BTreeMap<&Name, References>,
    module: &Name,
    path: &[String],
    depth: usize,
) -> Option<Name> {
    let first = path.first()?;
    let Some(absolute) = absolute(one, module, path) else {
        // Perhaps the name of an imported module.
        let import =
            references[module].uses.iter().find(|one| one.alias == *first && one.path.first() != Some(first))?;
        let longer = [import.path.as_slice(), &path[1..]].concat();
        return (path.len() > 1 && depth < 8).then(|| resolve(one, references, module, &longer, depth + 1)).flatten();
    };
    let (found, rest) = one.split(&absolute);
    let Some(item) = rest.first().filter(|_| depth < 8) else { return Some(found) };
    let uses = &references[&found].uses;
    match uses.iter().find(|one| one.alias == *item) {
        Some(origin) => resolve(one, references, &found, &origin.path, depth + 1),
        None => Some(found),
    }
}

/// Sets of files that need each other, directly or by way of others.
pub(crate) fn circles(edges: &BTreeSet<Edge>) -> Vec<BTreeSet<PathBuf>> {
    let mut next: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = BTreeMap::new();
    for (from, to, _) in edges {
        next.entry(from).or_default().insert(to);
    }
    let reachable = |from: &PathBuf| {
        let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
        let mut open: Vec<&PathBuf> = next.get(from).into_iter().flatten().copied().collect();
        while let Some(file) = open.pop() {
            if seen.insert(file.clone()) {
                open.extend(next.get(file).into_iter().flatten());
            }
        }
        seen
    };
    let from: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = next.keys().map(|file| (*file, reachable(file))).collect();
    let together = |file: &PathBuf| -> BTreeSet<PathBuf> {
        let there = from[file].iter();
        there.filter(|other| from.get(other).is_some_and(|back| back.contains(file))).cloned().collect()
    };
    let found: BTreeSet<_> = from.keys().map(|file| together(file)).filter(|circle| !circle.is_empty()).collect();
    found.into_iter().collect()
}

fn references(text: &str) -> References {
    let (mut uses, mut code) = (Vec::new(), String::new());
    let mut rest = text;
    while let Some(at) = find_use(rest) {
        let (before, statement) = rest.split_at(at);
        let end = statement.find(';').unwrap_or(statement.len());
        let line = before.rfind('\n').map_or(0, |newline| newline + 1);
        let exported = before[line..].trim_start().starts_with("pub");
        code.push_str(before);
        let tree: String = statement["use ".len()..end].split_whitespace().collect::<Vec<_>>().join(" ");
        expand(&[], &tree, exported, &mut uses);
        rest = &statement[end..];
    }
    code.push_str(rest);
    References { uses, inline: inline(&code) }
}

/// Where the next `use` statement begins.
fn find_use(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].find("use ").map(|at| from + at) {
        let before = text[..at].rsplit('\n').next().unwrap_or_default().trim();
        if before.is_empty() || before == "pub" || before.starts_with("pub(") && before.ends_with(')') {
            return Some(at);
        }
        from = at + 4;
    }
    None
}

/// `a::{b, c::{d as e}}` as single paths.
fn expand(prefix: &[String], tree: &str, exported: bool, uses: &mut Vec<Use>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let mut path = prefix.to_vec();
        path.extend(segments(&tree[..open]));
        let inner = tree[open + 1..].trim().strip_suffix('}').unwrap_or(&tree[open + 1..]);
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    let part = inner[start..at].trim();
                    if !part.is_empty() {
                        expand(&path, part, exported, uses);
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (tree, alias) = tree.split_once(" as ").map_or((tree, None), |(tree, alias)| (tree, Some(alias.trim())));
    let mut path = prefix.to_vec();
    path.extend(segments(tree).into_iter().filter(|segment| segment != "self" || prefix.is_empty()));
    if path.last().is_some_and(|last| last == "*") {
        path.pop();
        uses.push(Use { path, alias: "*".to_owned(), exported });
        return;
    }
    let Some(alias) = alias.map(str::to_owned).or(path.last().cloned()) else { return };
    uses.push(Use { path, alias, exported });
}

fn segments(text: &str) -> Vec<String> {
    text.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// Every `a::b::c` of the code.
fn inline(code: &str) -> BTreeSet<Vec<String>> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(|c| !is_path(c))
        .filter(|word| word.contains("::") && !word.starts_with(':'))
        .map(segments)
        .filter(|path| path.len() > 1)
        .collect()
}
