//! What the doctor says: findings, and the report in both forms.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::{
    Code, Severity, Unread,
    model::{Mode, Proxy},
};

/// One thing that is wrong, or worth to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub code: Code,
    /// Where; findings that differ in nothing else are one.
    pub places: Vec<String>,
    /// What is wrong there.
    pub message: String,
    /// Lines to paste.
    pub paste: Option<String>,
}

/// Whether new tunnels can use connections to pods that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exposure {
    /// They can.
    Exposed,
    /// Every tunnel passes a fence that works.
    Fenced,
    /// The proxy opens no tunnels.
    NoTunnels,
    /// The dump does not say.
    Unknown,
}

/// The result of an examination.
#[derive(Debug, Clone)]
pub struct Report {
    /// One line about the proxy.
    pub proxy: Identity,
    /// Whether it can suffer from stale connections.
    pub exposure: Exposure,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

/// Which proxy it is.
#[derive(Debug, Clone, Serialize)]
pub struct Identity {
    /// Its node id.
    pub node: String,
    /// `waypoint`, `gateway`, `sidecar` or `proxy`.
    pub kind: &'static str,
    /// Envoy's version.
    pub envoy: Option<String>,
    /// Istio's version.
    pub istio: Option<String>,
    /// Whether any part of the module is configured.
    pub module: bool,
    /// The modes of the fences, if there are any.
    pub fence_modes: Vec<&'static str>,
}

/// The JSON form; `schema/report.json` describes it.
#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    proxy: &'a Identity,
    exposure: Exposure,
    findings: Vec<JsonFinding<'a>>,
    unread: &'a [Unread],
    summary: Summary,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    code: &'static str,
    name: &'static str,
    severity: Severity,
    places: &'a [String],
    message: &'a str,
    cure: &'static str,
    paste: Option<&'a str>,
}

#[derive(Serialize)]
struct Summary {
    errors: usize,
    warnings: usize,
    infos: usize,
}

/// How many places a line of text names.
const PLACES: usize = 3;

// === impl Finding ===

impl Finding {
    pub(crate) fn new(code: Code, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code, places: vec![place.into()], message: message.into(), paste: None }
    }

    pub(crate) fn paste(mut self, lines: impl Into<String>) -> Self {
        self.paste = Some(lines.into());
        self
    }

    /// Its severity.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }
}

/// Joins findings that differ in their places only, and puts the worst first.
pub(crate) fn ordered(findings: Vec<Finding>) -> Vec<Finding> {
    let mut joined: Vec<Finding> = Vec::new();
    let mut known: std::collections::HashMap<(Code, String), usize> = std::collections::HashMap::new();
    for mut finding in findings {
        let key = (finding.code, finding.message.clone());
        match known.get(&key).and_then(|index| joined.get_mut(*index)) {
            Some(same) => same.places.append(&mut finding.places),
            None => {
                known.insert(key, joined.len());
                joined.push(finding);
            }
        }
    }
    joined.sort_by_key(|finding| (finding.severity(), finding.code));
    joined
}

// === impl Identity ===

impl Identity {
    pub(crate) fn of(proxy: &Proxy) -> Self {
        let node = &proxy.bootstrap.node;
        let mut fence_modes: Vec<&'static str> =
            proxy.fences().map(|(_, _, fence)| Mode::name(fence.config.mode)).collect();
        fence_modes.sort_unstable();
        fence_modes.dedup();
        Self {
            node: node.id.clone(),
            kind: node.kind.name(),
            envoy: node.envoy.map(|(major, minor, patch)| format!("{major}.{minor}.{patch}")),
            istio: node.istio.clone(),
            module: proxy.is_installed(),
            fence_modes,
        }
    }
}

// === impl Report ===

impl Report {
    /// How many findings there are of a severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity() == severity).count()
    }

    /// Whether there is a finding at least as severe.
    #[must_use]
    pub fn reaches(&self, threshold: Severity) -> bool {
        self.findings.iter().any(|finding| finding.severity() <= threshold)
    }

    /// The same without findings of some codes.
    #[must_use]
    pub fn without(mut self, codes: &[Code]) -> Self {
        self.findings.retain(|finding| !codes.contains(&finding.code));
        self
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> String {
        let findings = self.findings.iter().map(|finding| JsonFinding {
            code: finding.code.id(),
            name: finding.code.name(),
            severity: finding.severity(),
            places: &finding.places,
            message: &finding.message,
            cure: finding.code.cure(),
            paste: finding.paste.as_deref(),
        });
        let json = Json {
            version: 1,
            proxy: &self.proxy,
            exposure: self.exposure,
            findings: findings.collect(),
            unread: &self.unread,
            summary: Summary {
                errors: self.count(Severity::Error),
                warnings: self.count(Severity::Warning),
                infos: self.count(Severity::Info),
            },
        };
        // Strings and numbers: nothing that could fail.
        serde_json::to_string_pretty(&json).unwrap_or_default()
    }

    fn verdict(&self) -> &'static str {
        match self.exposure {
            Exposure::Exposed => {
                "This proxy can suffer from stale connections: new tunnels may use a connection whose pod is gone."
            }
            Exposure::Fenced => "New tunnels of this proxy do not use connections of endpoints that were removed.",
            Exposure::NoTunnels => {
                "This proxy opens no HBONE tunnels: Envoy itself closes its connections to removed endpoints."
            }
            Exposure::Unknown => "Whether this proxy can suffer from stale connections cannot be told from this dump.",
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text)?;
        // Names come from the proxy's configuration: they must not steer a terminal.
        text.chars().try_for_each(|letter| match letter.is_control() && letter != '\n' {
            true => write!(f, "{}", letter.escape_default()),
            false => f.write_char(letter),
        })
    }
}

impl Report {
    fn write(&self, text: &mut String) -> fmt::Result {
        let proxy = &self.proxy;
        write!(text, "{} {}", proxy.kind, one_line(&proxy.node))?;
        for (what, version) in [("Envoy", &proxy.envoy), ("Istio", &proxy.istio)] {
            if let Some(version) = version {
                write!(text, ", {what} {}", one_line(version))?;
            }
        }
        writeln!(text, "\n{}\n", self.verdict())?;
        for finding in &self.findings {
            let (severity, code) = (finding.severity().title(), finding.code.id());
            writeln!(text, "{severity} [{code}] ({}) {}", places(&finding.places), one_line(&finding.message))?;
            writeln!(text, "  Cure: {}", finding.code.cure())?;
            if let Some(paste) = &finding.paste {
                writeln!(text, "  Paste:")?;
                paste.lines().try_for_each(|line| writeln!(text, "    {line}"))?;
            }
            writeln!(text)?;
        }
        for unread in &self.unread {
            writeln!(text, "Not read: {}: {}", one_line(&unread.place), one_line(&unread.problem))?;
        }
        match self.findings.is_empty() {
            true => writeln!(text, "No issues found."),
            false => writeln!(
                text,
                "{}, {}, {}.",
                counted(self.count(Severity::Error), "error"),
                counted(self.count(Severity::Warning), "warning"),
                counted(self.count(Severity::Info), "note"),
            ),
        }
    }
}

fn places(places: &[String]) -> String {
    let named: Vec<String> = places.iter().take(PLACES).map(|place| one_line(place)).collect();
    match places.len().checked_sub(PLACES).filter(|more| *more > 0) {
        Some(more) => format!("{}; and {more} more", named.join("; ")),
        None => named.join("; "),
    }
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A finding is one line, whatever is in a name.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
