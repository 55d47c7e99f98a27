//! Reads `matrix.md`.

use std::collections::BTreeMap;

use super::kinds::{Every, Fault, Kind, Transport};

const TEXT: &str = include_str!("matrix.md");

/// One cell's place.
pub type Place = (Kind, Fault, Transport);

/// What a cell expects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// `200`, `200~`, `grpc 0`.
    pub status: String,
    pub executions: usize,
    pub attempts: u32,
}

/// The cells of the section with this heading; `None`: the cell cannot exist, and a note says why.
pub fn section(heading: &str) -> BTreeMap<Place, Option<Seen>> {
    let start = format!("## {heading}\n");
    let (_, section) = TEXT.split_once(&start).unwrap_or_else(|| panic!("matrix.md has no section {heading:?}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).map(cells);
    let mut rows = rows.filter(|cells| !cells.first().is_some_and(|cell| cell.starts_with("---")));
    let head = rows.next().expect("a table");
    let transports: Vec<Transport> = head.iter().skip(2).map(|name| by_name(name, Transport::name)).collect();
    let mut all = BTreeMap::new();
    for row in rows {
        let [kinds, fault, expected @ ..] = row.as_slice() else {
            panic!("a row needs a request and a fault: {row:?}")
        };
        assert_eq!(expected.len(), transports.len(), "one cell for each transport: {row:?}");
        let fault = by_name(fault, Fault::name);
        for kind in kinds.split(", ").map(|name| by_name(name, Kind::name)) {
            for (transport, cell) in transports.iter().zip(expected) {
                let old = all.insert((kind, fault, *transport), parse(cell));
                assert!(old.is_none(), "{kind:?}, {fault:?} is there twice");
            }
        }
    }
    all
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

fn by_name<T: Every>(name: &str, of: impl Fn(T) -> &'static str) -> T {
    let found = T::EVERY.iter().copied().find(|one| of(*one) == name);
    found.unwrap_or_else(|| panic!("matrix.md: {name:?} is not known"))
}

fn parse(cell: &str) -> Option<Seen> {
    let (value, note) = match cell.split_once(" [") {
        Some((value, note)) => (value, Some(note.trim_end_matches(']'))),
        None => (cell, None),
    };
    if let Some(note) = note {
        assert!(TEXT.contains(&format!("\n[{note}] ")), "matrix.md has no note [{note}]");
    }
    if value == "-" {
        assert!(note.is_some(), "a cell that cannot exist needs a note");
        return None;
    }
    let mut words: Vec<&str> = value.split(' ').collect();
    let number = |word: Option<&str>| word.and_then(|word| word.parse().ok());
    let (attempts, executions) = (number(words.pop()), number(words.pop()));
    match (executions, attempts, words.as_slice()) {
        (Some(executions), Some(attempts), [_, ..]) => {
            Some(Seen { status: words.join(" "), executions: executions as usize, attempts })
        }
        _ => panic!("matrix.md: {cell:?} is no \"status executions attempts\""),
    }
}
