//! `docs/doctor.md` says what the code says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use stale_guard_doctor::{Code, Severity};

const PAGE: &str = include_str!("../../docs/doctor.md");

fn row(code: Code) -> String {
    let severity = code.severity().title().to_lowercase();
    format!("| {} `{}` | {severity} | {} | {} |", code.id(), code.name(), code.meaning(), code.cure())
}

#[test]
fn the_table_of_codes_is_the_code_s() {
    let missing: Vec<String> =
        Code::ALL.iter().map(|code| row(*code)).filter(|row| !PAGE.lines().any(|line| line == row)).collect();
    assert!(missing.is_empty(), "rows that docs/doctor.md lacks:\n{}", missing.join("\n"));
    let rows = PAGE.lines().filter(|line| line.starts_with("| SG")).count();
    assert_eq!(rows, Code::ALL.len(), "docs/doctor.md has a code that is none");
}

#[test]
fn texts_for_tables_and_people_are_plain() {
    for code in Code::ALL {
        for text in [code.meaning(), code.cure()] {
            assert!(text.ends_with('.') && !text.contains(['|', '\n']), "{code}: {text}");
            assert_eq!(text.matches('`').count() % 2, 0, "{code}: {text}");
        }
    }
}

#[test]
fn options_exit_statuses_and_severities_are_documented() {
    for option in
        ["--clusters", "--stats", "--output json", "--failure-threshold", "--suppress", "--timeout", "--limit"]
    {
        assert!(PAGE.contains(option), "{option}");
    }
    for severity in [Severity::Error, Severity::Warning, Severity::Info] {
        assert!(PAGE.contains(&severity.title().to_lowercase()), "{severity:?}");
    }
    for (status, words) in
        [("0", "nothing at or above"), ("1", "something"), ("2", "command line"), ("3", "could not be had")]
    {
        assert!(
            PAGE.lines().any(|line| line.starts_with(&format!("| {status} |")) && line.contains(words)),
            "{status}"
        );
    }
}

#[test]
fn the_example_is_what_the_doctor_says() {
    let report = support::Dump::istiod().examine().to_string();
    let mut pasted = false;
    let without_paste = report.lines().filter(|line| {
        pasted = line.starts_with("  Paste:") || (pasted && line.starts_with("    "));
        !pasted
    });
    let expected: Vec<&str> = without_paste.collect();
    let example = PAGE.split("```text\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("an example");
    assert_eq!(example.lines().collect::<Vec<_>>(), expected);
}
