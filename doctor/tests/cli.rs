//! The command line, as a process: inputs, outputs, exit statuses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use stale_guard_doctor::Severity;
use support::Dump;

const SCHEMA: &str = include_str!("../schema/report.json");
const CLUSTERS: &str = "connect_originate::added_via_api::false\n";
const STATS: &str = "dynamicmodulescustom.fence_tunnels: 0\ncontrol_plane.connected_state: 1\n";

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stale-guard-doctor"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    told(&doctor(arguments).output().unwrap())
}

fn with_stdin(arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut child =
        doctor(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    told(&child.wait_with_output().unwrap())
}

fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().expect("it ends by itself"), text(&output.stdout), text(&output.stderr))
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Answers one request after the other, as an admin endpoint does, until `count` are answered.
fn admin<S: Read + Write>(
    count: usize,
    accept: impl Fn() -> S + Send + 'static,
    status: &'static str,
) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut asked = Vec::new();
        for _ in 0..count {
            let mut stream = accept();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                head.push(byte[0]);
            }
            let path = String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned();
            let body = match path.split('?').next().unwrap() {
                "/config_dump" => Dump::shipped().text(),
                "/clusters" => CLUSTERS.to_owned(),
                "/stats" => STATS.to_owned(),
                other => panic!("asked for {other}"),
            };
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
                .unwrap();
            asked.push(path);
        }
        asked
    })
}

#[test]
fn the_exit_status_follows_the_worst_finding_and_the_threshold() {
    let folder = Folder::new();
    let shipped = folder.file("shipped.json", &Dump::shipped().text());
    let stock = folder.file("stock.json", &Dump::istiod().text());
    let mut warned = Dump::shipped();
    warned.generation().as_object_mut().unwrap().remove("skip_if_empty");
    let warned = folder.file("warned.json", &warned.text());
    let info = folder.file("info.json", r#"{"configs":[]}"#);
    for (file, threshold, status) in [
        (&shipped, "info", 0),
        (&stock, "error", 1),
        (&stock, "info", 1),
        (&warned, "error", 0),
        (&warned, "warning", 1),
        (&info, "warning", 0),
        (&info, "info", 1),
    ] {
        let (told, output, _) = run(&[file, "--failure-threshold", threshold]);
        assert_eq!(told, status, "{file} {threshold}:\n{output}");
    }
    let (status, output, _) = run(&[&shipped]);
    assert!(status == 0 && output.contains("No issues found."), "{output}");
    let (status, output, _) = run(&[&stock]);
    assert!(status == 1 && output.contains("Error [SG0101] (listener connect_originate)"), "{output}");
}

#[test]
fn codes_can_be_suppressed() {
    let folder = Folder::new();
    let stock = folder.file("stock.json", &Dump::istiod().text());
    let (status, output, _) = run(&[&stock, "--suppress", "SG0101", "--suppress", "idle-timeout-long"]);
    assert_eq!(status, 0, "no other error is left:\n{output}");
    assert!(!output.contains("SG0101") && !output.contains("SG0102") && output.contains("SG0103"), "{output}");
    let (status, _, error) = run(&[&stock, "--suppress", "SG9999"]);
    assert!(status == 2 && error.contains("SG0402"), "{error}");
}

#[test]
fn a_dump_comes_from_a_file_or_standard_input() {
    let folder = Folder::new();
    let text = Dump::shipped().text();
    let dump = folder.file("dump.json", &text);
    let clusters = folder.file("clusters", CLUSTERS);
    let stats = folder.file("stats", STATS);
    let all = ["--failure-threshold", "info", "--clusters", &clusters, "--stats", &stats];
    assert_eq!(run(&[&[dump.as_str()], all.as_slice()].concat()).0, 0);
    assert_eq!(with_stdin(&[&["-"], all.as_slice()].concat(), &text).0, 0);
    let (status, output, _) = with_stdin(&["-"], &text[..text.len() / 2]);
    assert!(status == 0 && output.contains("SG0001"), "{output}");
}

#[test]
fn an_admin_endpoint_is_asked_for_everything() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let served = admin(3, move || listener.accept().unwrap().0, "200 OK");
    // A proxy that the environment names must not be used.
    let output =
        doctor(&[&url, "--failure-threshold", "info"]).env("http_proxy", "http://192.0.2.1:1").output().unwrap();
    let (status, text, error) = told(&output);
    assert_eq!(status, 0, "{text}{error}");
    let asked = served.join().unwrap();
    assert_eq!(asked[..2], ["/config_dump", "/clusters"], "without endpoints, which are costly");
    assert!(asked[2].starts_with("/stats?filter="), "{asked:?}");
}

#[test]
fn an_admin_endpoint_may_be_a_unix_socket() {
    let folder = Folder::new();
    let path = folder.path("admin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let served = admin(3, move || listener.accept().unwrap().0, "200 OK");
    let (status, text, error) = run(&[&format!("unix:{}", path.display()), "--failure-threshold", "info"]);
    assert_eq!(status, 0, "{text}{error}");
    assert_eq!(served.join().unwrap().len(), 3);
}

#[test]
fn an_input_that_cannot_be_had_has_a_status_of_its_own() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let forbidden = format!("http://{}", listener.local_addr().unwrap());
    let served = admin(1, move || listener.accept().unwrap().0, "403 Forbidden");
    let missing = folder.path("missing.json").to_str().unwrap().to_owned();
    let no_socket = format!("unix:{}", folder.path("none.sock").display());
    let html = folder.file("x.html", "<html>");
    let bootstrap = folder.file("bootstrap.json", &json!({ "static_resources": {} }).to_string());
    for (argument, words) in [
        (missing.as_str(), "missing.json"),
        (&refused, "refused"),
        (&forbidden, "403"),
        (&no_socket, "none.sock"),
        (&html, "no JSON"),
        (&bootstrap, "bootstrap"),
    ] {
        let (status, output, error) = run(&[argument]);
        assert_eq!((status, output.as_str()), (3, ""), "{argument}: {error}");
        assert!(error.starts_with("error: ") && error.contains(words), "{argument}: {error}");
    }
    served.join().unwrap();
    let large = folder.file("large.json", &" ".repeat(1024 * 1024 + 1));
    let (status, _, error) = run(&[&large, "--limit", "1"]);
    assert!(status == 3 && error.contains("--limit"), "{error}");
}

#[test]
fn an_admin_endpoint_that_does_not_answer_is_not_waited_for_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (status, _, error) = run(&[&format!("http://{}", listener.local_addr().unwrap()), "--timeout", "1"]);
    assert!(status == 3 && error.contains("timeout"), "{error}");
    let folder = Folder::new();
    let path = folder.path("admin.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let (status, _, error) = run(&[&format!("unix:{}", path.display()), "--timeout", "1"]);
    assert!(status == 3 && error.contains("timeout"), "{error}");
}

#[test]
fn a_wrong_command_line_is_refused() {
    for arguments in [
        &[][..],
        &["--no-such-option"],
        &["-", "--clusters", "-"],
        &["dump.json", "--clusters", "-", "--stats", "-"],
        &["dump.json", "--clusters", "http://127.0.0.1:15000"],
        &["https://127.0.0.1:15000"],
        &["dump.json", "--output", "yaml"],
        &["dump.json", "--timeout", "0"],
        &["completion", "no-such-shell"],
    ] {
        let (status, output, error) = run(arguments);
        assert_eq!((status, output.as_str()), (2, ""), "{arguments:?}");
        assert!(!error.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_json_form_keeps_its_schema() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let folder = Folder::new();
    let mut other = Dump::istiod();
    other.bootstrap()["admin"] = json!(5);
    let dumps = [Dump::shipped().text(), Dump::istiod().text(), other.text(), r#"{"configs":[]}"#.to_owned()];
    for (index, dump) in dumps.iter().enumerate() {
        let file = folder.file(&format!("{index}.json"), dump);
        let (_, output, _) = run(&[&file, "--output", "json"]);
        let report: Value = serde_json::from_str(&output).unwrap();
        let errors: Vec<String> = validator.iter_errors(&report).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}\n{output}");
        let findings = report["findings"].as_array().unwrap();
        let count = |severity: &str| findings.iter().filter(|finding| finding["severity"] == severity).count();
        let summary = json!({ "errors": count("error"), "warnings": count("warning"), "infos": count("info") });
        assert_eq!(report["summary"], summary);
    }
    let stock = folder.file("stock.json", &dumps[1]);
    let report: Value = serde_json::from_str(&run(&[&stock, "-o", "json"]).1).unwrap();
    assert_eq!(report["exposure"], "exposed");
    assert_eq!(report["proxy"]["istio"], "1.31.0");
    assert_eq!(report["findings"][0]["code"], "SG0101");
    assert!(!validator.is_valid(&json!({ "version": 1 })), "the schema refuses what is no report");
}

#[test]
fn help_version_completions_and_manual_are_there() {
    let (status, help, _) = run(&["--help"]);
    assert!(status == 0 && help.contains("Exit status: 0") && help.contains("--failure-threshold"), "{help}");
    let (status, version, _) = run(&["--version"]);
    assert!(status == 0 && version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (status, script, _) = run(&["completion", shell]);
        assert!(status == 0 && script.contains("failure-threshold"), "{shell}: {script}");
    }
    let folder = Folder::new();
    let script = folder.file("completion.bash", &run(&["completion", "bash"]).1);
    let parsed = Command::new("bash").args(["-n", &script]).status().unwrap();
    assert!(parsed.success(), "bash reads its script");
    let (status, page, _) = run(&["man"]);
    assert!(status == 0 && page.contains(".TH stale-guard-doctor 1") && page.contains("Exit status"), "{page}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = Folder::new();
    let stock = folder.file("stock.json", &Dump::istiod().text());
    let mut child = doctor(&[&stock]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(1), &b""[..]));
}

#[test]
fn severities_are_ordered_as_the_threshold_needs_it() {
    assert!(Severity::Error < Severity::Warning && Severity::Warning < Severity::Info);
    assert!(Path::new(env!("CARGO_BIN_EXE_stale-guard-doctor")).is_file());
}
