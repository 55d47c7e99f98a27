//! Matchers in the form that a request is compared with.

use memchr::memmem;
use regex::bytes::{Regex, RegexBuilder};

use super::{
    config::{Glob, GrpcMatch, HeaderMatch, Match, Methods, PathMatch, Refused},
    request::Evidence,
};

/// Memory that one compiled regular expression may take, in bytes.
pub const REGEX_SIZE_LIMIT: usize = 256 * 1024;
/// Memory that one regular expression's lazily built automaton may take per thread, in bytes.
pub const REGEX_DFA_LIMIT: usize = 256 * 1024;
/// Length of a regular expression's text, in bytes.
pub const REGEX_LENGTH_LIMIT: usize = 4_096;

/// Whether a request is one that a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matched {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// What would decide it could not be read.
    Unknown,
}

/// A rule's `match`, compiled.
#[derive(Debug, Clone)]
pub struct Matcher {
    methods: Option<Methods>,
    authority: Option<Authority>,
    path: Option<Text>,
    headers: Vec<(String, Presence)>,
    grpc: Option<(Pattern, Pattern)>,
}

#[derive(Debug, Clone)]
struct Authority {
    pattern: Pattern,
    with_port: bool,
}

#[derive(Debug, Clone)]
enum Presence {
    Is(bool),
    Reads(Text),
}

/// Compares bytes with text.
#[derive(Debug, Clone)]
enum Text {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    Regex(Regex),
}

/// A glob, split.
#[derive(Debug, Clone)]
struct Pattern {
    inner: Vec<u8>,
    open_start: bool,
    open_end: bool,
}

// === impl Matched ===

impl Matched {
    const fn of(matches: bool) -> Self {
        if matches { Self::Yes } else { Self::No }
    }

    const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Yes, Self::Yes) => Self::Yes,
        }
    }
}

// === impl Matcher ===

impl Matcher {
    /// Compiles `source`.
    ///
    /// # Errors
    /// Empty lists, none or several ways to match one thing, a regular expression that is invalid or
    /// too large.
    pub fn compile(source: &Match) -> Result<Self, Refused> {
        if let Some(Methods::List(list)) = &source.methods {
            not_empty("methods", list)?;
        }
        if let Some(list) = &source.headers {
            not_empty("headers", list)?;
        }
        let headers = source.headers.iter().flatten().enumerate().map(|(index, header)| compile_header(index, header));
        Ok(Self {
            methods: source.methods.clone(),
            authority: source.authority.as_ref().map(Authority::new),
            path: source.path.as_ref().map(|path| compile_path(path)).transpose()?,
            headers: headers.collect::<Result<_, _>>()?,
            grpc: source.grpc.as_ref().map(|grpc| compile_grpc(grpc)).transpose()?,
        })
    }

    /// Compares a request with every part that is given.
    #[must_use]
    pub fn matches(&self, request: &Evidence<'_>) -> Matched {
        let mut result = Matched::Yes;
        if let Some(methods) = &self.methods {
            result = result.and(known(request.method, |method| methods.contains(method)));
        }
        if let Some(authority) = &self.authority {
            result = result.and(known(request.authority, |value| authority.matches(value)));
        }
        if let Some(path) = &self.path {
            result = result.and(known(request.bare_path(), |value| path.matches(value)));
        }
        if let Some((service, method)) = &self.grpc {
            let call = request.call();
            result = result.and(Matched::of(
                call.is_some_and(|call| service.matches(call.service) && method.matches(call.method)),
            ));
        }
        for (name, presence) in &self.headers {
            if result == Matched::No {
                break;
            }
            result = result.and(Matched::of(match presence {
                Presence::Is(wanted) => request.headers.contains(name) == *wanted,
                Presence::Reads(text) => request.headers.joined(name).is_some_and(|value| text.matches(&value)),
            }));
        }
        result
    }
}

// === impl Methods ===

impl Methods {
    /// Whether the set holds `method`, compared with case (RFC 9110 section 9.1).
    #[must_use]
    pub fn contains(&self, method: &[u8]) -> bool {
        match self {
            Self::Idempotent => matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE"),
            Self::Safe => matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE"),
            Self::List(list) => list.iter().any(|listed| listed.0.as_bytes() == method),
        }
    }
}

// === impl Authority ===

impl Authority {
    /// A pattern that ends in a port is compared with the whole authority, any other one with its host.
    fn new(glob: &Glob) -> Self {
        let pattern = Pattern::new(&glob.0.to_ascii_lowercase());
        let with_port = !pattern.open_end && host_of(&pattern.inner).len() < pattern.inner.len();
        Self { pattern, with_port }
    }

    fn matches(&self, authority: &[u8]) -> bool {
        let authority = authority.to_ascii_lowercase();
        self.pattern.matches(if self.with_port { &authority } else { host_of(&authority) })
    }
}

/// The authority without its port. Colons inside an IPv6 address's brackets belong to the host.
fn host_of(authority: &[u8]) -> &[u8] {
    let Some(colon) = authority.iter().rposition(|byte| *byte == b':') else { return authority };
    let Some((host, port)) = authority.split_at_checked(colon) else { return authority };
    let is_port = port.len() > 1 && port.iter().skip(1).all(u8::is_ascii_digit);
    let is_host = !host.contains(&b':') || host.ends_with(b"]");
    if is_port && is_host { host } else { authority }
}

// === impl Pattern ===

impl Pattern {
    fn new(glob: &str) -> Self {
        if glob == "*" {
            return Self { inner: Vec::new(), open_start: true, open_end: true };
        }
        let inner = glob.strip_prefix('*').unwrap_or(glob);
        let open_start = inner.len() < glob.len();
        let closed = inner.strip_suffix('*').unwrap_or(inner);
        Self { inner: closed.as_bytes().to_vec(), open_start, open_end: closed.len() < inner.len() }
    }

    fn matches(&self, value: &[u8]) -> bool {
        let inner = self.inner.as_slice();
        match (self.open_start, self.open_end) {
            (false, false) => value == inner,
            (false, true) => value.starts_with(inner),
            (true, false) => value.ends_with(inner),
            (true, true) => memmem::find(value, inner).is_some(),
        }
    }
}

// === impl Text ===

impl Text {
    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => value == text,
            Self::Prefix(text) => value.starts_with(text),
            Self::Suffix(text) => value.ends_with(text),
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

fn known(value: Option<&[u8]>, matches: impl FnOnce(&[u8]) -> bool) -> Matched {
    value.map_or(Matched::Unknown, |value| Matched::of(matches(value)))
}

fn compile_path(path: &PathMatch) -> Result<Text, Refused> {
    let PathMatch { exact, prefix, suffix, regex } = path;
    let only = "must hold exactly one of \"exact\", \"prefix\", \"suffix\" and \"regex\"";
    let given = |text: &str, name: &str| {
        let field = format!("path.{name}");
        if text.contains('?') || text.contains('#') {
            return Refused::because(field, "must not hold a query or fragment: paths are compared without them");
        }
        match name {
            "suffix" if text.is_empty() => Refused::because(field, "must not be empty"),
            "exact" | "prefix" if !(text.starts_with('/') || (name == "exact" && text == "*")) => {
                Refused::because(field, "must begin with \"/\"")
            }
            _ => Ok(text.as_bytes().to_vec()),
        }
    };
    match (exact, prefix, suffix, regex) {
        (Some(text), None, None, None) => given(text, "exact").map(Text::Exact),
        (None, Some(text), None, None) => given(text, "prefix").map(Text::Prefix),
        (None, None, Some(text), None) => given(text, "suffix").map(Text::Suffix),
        (None, None, None, Some(text)) => compile_regex("path.regex".to_owned(), text).map(Text::Regex),
        _ => Refused::because("path", only),
    }
}

fn compile_header(index: usize, header: &HeaderMatch) -> Result<(String, Presence), Refused> {
    let HeaderMatch { name, exact, prefix, regex, present } = header;
    let presence = match (exact, prefix, regex, present) {
        (Some(text), None, None, None) => Presence::Reads(Text::Exact(text.as_bytes().to_vec())),
        (None, Some(text), None, None) if text.is_empty() => {
            return Refused::because(format!("headers[{index}].prefix"), "must not be empty; use \"present\": true");
        }
        (None, Some(text), None, None) => Presence::Reads(Text::Prefix(text.as_bytes().to_vec())),
        (None, None, Some(text), None) => {
            Presence::Reads(Text::Regex(compile_regex(format!("headers[{index}].regex"), text)?))
        }
        (None, None, None, Some(present)) => Presence::Is(*present),
        _ => {
            return Refused::because(
                format!("headers[{index}]"),
                "must hold \"name\" and exactly one of \"exact\", \"prefix\", \"regex\" and \"present\"",
            );
        }
    };
    Ok((name.0.clone(), presence))
}

fn compile_grpc(grpc: &GrpcMatch) -> Result<(Pattern, Pattern), Refused> {
    if grpc.service.is_none() && grpc.method.is_none() {
        return Refused::because("grpc", "must hold \"service\", \"method\" or both");
    }
    let pattern = |glob: &Option<Glob>| Pattern::new(glob.as_ref().map_or("*", |glob| glob.0.as_str()));
    Ok((pattern(&grpc.service), pattern(&grpc.method)))
}

fn compile_regex(field: String, text: &str) -> Result<Regex, Refused> {
    if text.is_empty() {
        return Refused::because(field, "must not be empty");
    }
    if text.len() > REGEX_LENGTH_LIMIT {
        return Refused::because(field, format!("must not be longer than {REGEX_LENGTH_LIMIT} bytes"));
    }
    // Unicode tables are left out: header bytes need not be UTF-8, and `.` is any byte.
    RegexBuilder::new(text).unicode(false).size_limit(REGEX_SIZE_LIMIT).dfa_size_limit(REGEX_DFA_LIMIT).build().map_err(
        |error| Refused {
            field,
            allowed: match error {
                regex::Error::CompiledTooBig(limit) => {
                    format!("must compile to at most {limit} bytes; write a smaller regular expression")
                }
                // The parser's message spans lines and points at the position with a caret.
                other => format!("must be a valid regular expression: {}", one_line(&other.to_string())),
            },
        },
    )
}

/// Turns the regex crate's picture (pattern, caret line, `error:`) into one line with the position.
fn one_line(message: &str) -> String {
    let mut lines = message.lines().rev().filter(|line| !line.trim().is_empty());
    let caret = lines.find(|line| line.trim().bytes().all(|byte| byte == b'^')).and_then(|line| line.find('^'));
    let reason = message.rsplit("error: ").next().unwrap_or(message).trim();
    // Each line of the picture is indented by four characters.
    caret.map_or_else(|| reason.to_owned(), |at| format!("{reason}, at character {}", at.saturating_sub(4)))
}

fn not_empty<T>(field: &str, list: &[T]) -> Result<(), Refused> {
    if list.is_empty() {
        Refused::because(field, "must not be empty; leave it out to match everything")
    } else {
        Ok(())
    }
}
