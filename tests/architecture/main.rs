//! What `ARCHITECTURE.md` says about who uses whom is true, and no two files need each other.
//!
//! A scan of the text, not of the syntax tree: paths that begin with `crate`, `super`, `self`, a child
//! module or an imported module count; what a macro would expand to does not. Test modules are left out.

#![expect(clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test ends by panicking")]

mod imports;
mod modules;
mod rooms;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use modules::Crate;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every crate of the repository whose files a reader may want to read one by one.
fn crates() -> Vec<Crate> {
    let root = repository();
    let mut crates: Vec<Crate> = ["src", "sdk/src", "integration/src"]
        .iter()
        .map(|folder| Crate::read(&root, Path::new(folder), "lib.rs"))
        .collect();
    let programs = std::fs::read_dir(root.join("integration/src/bin")).expect("the lab has programs");
    for program in programs {
        let folder = program.expect("a folder's entry").path();
        let folder = folder.strip_prefix(&root).expect("below the repository").to_path_buf();
        crates.push(Crate::read(&root, &folder, "main.rs"));
    }
    crates
}

/// Circles that stay, by a file of each; one that is gone must leave this list. The registry makes tunnels, whose
/// guards lead back to it, and its parts share its number types.
const STILL_THERE: [&str; 1] = ["src/endpoints/mod.rs"];

#[test]
fn no_files_import_each_other_in_a_circle() {
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for one in crates() {
        let edges = imports::edges(&one);
        for circle in imports::circles(&edges) {
            let inside = |file: &PathBuf| circle.contains(file);
            if let Some(file) = STILL_THERE.iter().find(|file| inside(&PathBuf::from(file))) {
                known.insert(*file);
                continue;
            }
            let lines = edges.iter().filter(|(from, to, _)| inside(from) && inside(to));
            let lines = lines.map(|(from, to, path)| format!("    {} -> {} by {path}", from.display(), to.display()));
            found.push(format!("a circle of {} files:\n{}", circle.len(), lines.collect::<Vec<_>>().join("\n")));
        }
    }
    assert!(found.is_empty(), "move what both need into a file of its own.\n{}", found.join("\n"));
    let gone: Vec<_> = STILL_THERE.iter().filter(|file| !known.contains(*file)).collect();
    assert!(gone.is_empty(), "these circles are gone: take them off the list STILL_THERE: {gone:?}");
}

#[test]
fn no_rooms_of_the_lab_use_each_other_in_a_circle() {
    let root = repository();
    let lab = Crate::read(&root, Path::new("integration/src"), "lib.rs");
    let room = |file: &PathBuf| PathBuf::from(file.iter().nth(2).unwrap_or_default()).with_extension("");
    let rooms: BTreeSet<imports::Edge> = imports::edges(&lab)
        .into_iter()
        .map(|(from, to, path)| (room(&from), room(&to), path))
        .filter(|(from, to, _)| from != to)
        .collect();
    let circles = imports::circles(&rooms);
    assert!(circles.is_empty(), "rooms of the lab in circles: {circles:?}, by {rooms:#?}");
}

#[test]
fn rooms_use_what_the_architecture_says_and_nothing_else() {
    let root = repository();
    let allowed = rooms::allowed(&root);
    let one = Crate::read(&root, Path::new("src"), "lib.rs");
    let dependencies = rooms::dependencies(&root);
    let mut found = Vec::new();
    for (file, used) in imports::rooms_and_crates(&one, &dependencies) {
        let room = rooms::of(&file);
        let Some(may) = allowed.get(&room) else {
            found.push(format!("{} belongs to room {room}, which the table does not name", file.display()));
            continue;
        };
        if used != room && !may.contains("all") && !may.contains(used.as_str()) {
            found.push(format!("{} uses {used}; {room} may use {may:?}", file.display()));
        }
    }
    found.sort();
    found.dedup();
    assert!(found.is_empty(), "ARCHITECTURE.md's column \"may use\" is not what the code does:\n{}", found.join("\n"));
}

#[test]
fn the_table_names_no_room_that_is_not_there() {
    let root = repository();
    for room in rooms::allowed(&root).keys() {
        let places = [root.join("src").join(room), root.join("src").join(format!("{room}.rs"))];
        assert!(places.iter().any(|place| place.exists()), "ARCHITECTURE.md names src/{room}, which is gone");
    }
}
