//! The table of rooms in `ARCHITECTURE.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The crate in `sdk/`, which the table names by its folder.
const SDK: &str = "envoy_proxy_dynamic_modules_rust_sdk";

/// Per room of `src/` what it may use, as the table says.
pub(crate) fn allowed(repository: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(repository.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let mut allowed = BTreeMap::new();
    for row in text.lines().filter(|line| line.starts_with("| `src/")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [names, .., may] = cells.as_slice() else { panic!("a row without cells: {row}") };
        let words = may.split(',').map(|word| match word.trim().trim_matches('`') {
            "sdk" => SDK.to_owned(),
            word => word.replace('-', "_"),
        });
        let may: BTreeSet<String> = words.filter(|word| !word.is_empty()).collect();
        for name in names.split(',').map(|name| name.trim().trim_matches('`')) {
            let room = name.trim_start_matches("src/").trim_end_matches('/').trim_end_matches(".rs");
            allowed.insert(room.to_owned(), may.clone());
        }
    }
    assert!(allowed.len() > 3, "the table of rooms is not where it was");
    allowed
}

/// The crates that the module depends on.
pub(crate) fn dependencies(repository: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository.join("Cargo.toml")).expect("Cargo.toml");
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if let (true, Some((name, _))) = (inside, line.split_once('=')) {
            names.insert(name.trim().replace('-', "_"));
        }
    }
    names
}

/// The room that a file of `src/` is in.
pub(crate) fn of(file: &Path) -> String {
    let first = file.iter().nth(1).and_then(|part| part.to_str()).unwrap_or_default();
    first.trim_end_matches(".rs").to_owned()
}
