//! The module's parts, as far as the checks need their configuration.

use serde_json::Value;

use crate::json::At;

/// Where Envoy loads the module from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    /// The name (`lib<name>.so` on the search path), or the file.
    pub source: String,
    /// Whether Envoy keeps it loaded for the life of the process.
    pub do_not_close: bool,
    /// The prefix of its statistics.
    pub namespace: String,
}

/// A part of the module in the configuration.
#[derive(Debug, Clone)]
pub struct Part<T> {
    /// The name of the filter or extension in Envoy's configuration.
    pub name: String,
    /// The module.
    pub module: Module,
    /// What matters of its configuration.
    pub config: T,
    /// All of it, for comparison.
    pub raw: Value,
}

/// The field `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Acts.
    Enforce,
    /// Looks, and changes nothing.
    Observe,
    /// Does nothing.
    Off,
}

/// The network filter `fence`.
#[derive(Debug, Clone)]
pub struct Fence {
    /// Whether it acts.
    pub mode: Mode,
    /// Whether outer connections get `TCP_USER_TIMEOUT`.
    pub user_timeout: bool,
    /// Whether they get TCP keepalive.
    pub keepalive: bool,
}

/// The HTTP filter `retry`, or its configuration for a route.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Whether it acts.
    pub mode: Mode,
    /// Whether requests that are not eligible may be sent again where no upstream acted on them.
    pub unprocessed: bool,
    /// Whether it sets a per-try timeout, by itself or by a rule.
    pub per_try_timeout: bool,
}

/// The bootstrap extension `status`.
#[derive(Debug, Clone)]
pub struct Status {
    /// Whether it polls.
    pub polls: bool,
    /// The cluster that reaches the admin endpoint.
    pub cluster: String,
    /// Whether it fences everything after the control plane was away.
    pub suspects: bool,
}

const NAMESPACE: &str = "dynamicmodulescustom";

// === impl Module ===

impl Module {
    /// Reads `dynamic_module_config`; `None` if it is another module. `name` is the filter's or extension's own.
    pub(crate) fn read(message: &At<'_>, name: &str) -> Option<Self> {
        let config = message.get("dynamic_module_config")?;
        let file = config.path(&["module", "local"]).map(|local| local.string("filename"));
        let source = file.filter(|file| !file.is_empty()).unwrap_or_else(|| config.string("name"));
        let ours = |text: &str| text.contains("stale_guard") || text.contains("stale-guard");
        let namespace = config.string("metrics_namespace");
        (ours(&source) || ours(name)).then(|| Self {
            source,
            do_not_close: config.flag("do_not_close"),
            namespace: if namespace.is_empty() { NAMESPACE.to_owned() } else { namespace },
        })
    }
}

// === impl Part ===

impl<T> Part<T> {
    /// Reads a filter's or extension's message, if it is the module's part `extension`.
    pub(crate) fn read(
        name: &str,
        message: &At<'_>,
        extension: &str,
        config: impl FnOnce(&Value) -> T,
    ) -> Option<Self> {
        // The field is `filter_name` for filters, `extension_name` for the others.
        let field = if message.get("filter_name").is_some() { "filter" } else { "extension" };
        if message.text(&format!("{field}_name"))? != extension {
            return None;
        }
        let module = Module::read(message, name)?;
        let raw = document(message, &format!("{field}_config"));
        Some(Self { name: name.to_owned(), module, config: config(&raw), raw })
    }
}

/// The module's own configuration: a `Struct`, or JSON in a `StringValue`. Empty if absent.
pub(crate) fn document(message: &At<'_>, field: &str) -> Value {
    let empty = || Value::Object(serde_json::Map::new());
    let Some(any) = message.get(field) else { return empty() };
    let Some(value) = any.get("value") else { return empty() };
    match value.value() {
        Value::Object(_) => value.value().clone(),
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| {
            value.note("expected the module's configuration as JSON");
            empty()
        }),
        _ => {
            value.note("expected the module's configuration");
            empty()
        }
    }
}

// === impl Fence ===

impl Fence {
    pub(crate) fn of(config: &Value) -> Self {
        Self {
            mode: Mode::of(config),
            user_timeout: !is_null(config, "/tcp/user_timeout"),
            keepalive: !is_null(config, "/tcp/keepalive"),
        }
    }
}

// === impl Retry ===

impl Retry {
    pub(crate) fn of(config: &Value) -> Self {
        let sets = |value: &Value| value.get("per_try_timeout").is_some_and(|timeout| !timeout.is_null());
        let rules = config.get("rules").and_then(Value::as_array);
        Self {
            mode: Mode::of(config),
            unprocessed: config.get("unprocessed").and_then(Value::as_bool).unwrap_or(true),
            per_try_timeout: sets(config) || rules.is_some_and(|rules| rules.iter().any(sets)),
        }
    }
}

// === impl Status ===

impl Status {
    pub(crate) fn of(config: &Value) -> Self {
        let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str);
        Self {
            polls: text("/watch/source") != Some("none"),
            cluster: text("/watch/cluster").unwrap_or("prometheus_stats").to_owned(),
            suspects: !is_null(config, "/suspect_after"),
        }
    }
}

// === impl Mode ===

impl Mode {
    fn of(config: &Value) -> Self {
        match config.get("mode").and_then(Value::as_str) {
            Some("observe") => Self::Observe,
            Some("off") => Self::Off,
            Some(_) | None => Self::Enforce,
        }
    }

    /// As the configuration has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }
}

/// Null switches a thing off; absent is the default, which is on.
fn is_null(config: &Value, pointer: &str) -> bool {
    config.pointer(pointer).is_some_and(Value::is_null)
}
