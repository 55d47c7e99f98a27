//! The configuration document of `retry`, as JSON spells it.
//!
//! Each type refuses what it can judge by itself; what needs a look at two fields is refused by
//! [`Policy::parse`](super::policy::Policy::parse).

use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor, value::SeqAccessDeserializer},
};

use super::words::Condition;
use crate::config::{Mode, Object, Ratio, Span, Whole};

/// How many times Envoy may retry one request.
pub type MaxRetries = Whole<1, 10>;
/// How long one attempt may take before Envoy gives it up.
pub type PerTryTimeout = Span<10, 3_600_000>;

/// The whole document.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Document {
    /// Act, only watch, or neither.
    pub mode: Mode,
    /// Methods that are eligible without a rule.
    pub methods: Methods,
    /// Request headers whose presence makes a request eligible whatever its method.
    pub idempotency_key_headers: Vec<HeaderName>,
    /// First match wins, before `methods`.
    pub rules: Vec<Object<Rule>>,
    /// When Envoy retries.
    pub on: Vec<Condition>,
    /// Whether requests that are not eligible may be sent again where no upstream acted on them.
    pub unprocessed: bool,
    /// How often Envoy retries.
    pub max_retries: MaxRetries,
    /// How long one attempt may take; `null`: as the route says.
    pub per_try_timeout: Option<PerTryTimeout>,
    /// What retries may cost.
    pub budget: Object<BudgetSettings>,
}

/// One entry of the allowlist and denylist.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Names the rule in logs, metadata and the admin page.
    pub name: RuleName,
    /// Which requests the rule is about.
    #[serde(rename = "match")]
    pub matches: Object<Match>,
    /// Whether they may be retried.
    pub retry: bool,
    /// Instead of the document's number.
    #[serde(default, deserialize_with = "not_null")]
    pub max_retries: Option<MaxRetries>,
    /// Instead of the document's duration.
    #[serde(default, deserialize_with = "not_null")]
    pub per_try_timeout: Option<PerTryTimeout>,
    /// Instead of the document's conditions.
    #[serde(default, deserialize_with = "not_null")]
    pub on: Option<Vec<Condition>>,
}

/// Every part that is given must match; `{}` matches every request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// The request's method is one of these.
    #[serde(deserialize_with = "not_null")]
    pub methods: Option<Methods>,
    /// The request's `:authority` or `Host`.
    #[serde(deserialize_with = "not_null")]
    pub authority: Option<Glob>,
    /// The request's path without its query.
    #[serde(deserialize_with = "not_null")]
    pub path: Option<Object<PathMatch>>,
    /// All of these hold for the request's headers.
    #[serde(deserialize_with = "not_null")]
    pub headers: Option<Vec<Object<HeaderMatch>>>,
    /// The request is a gRPC call of this service and method.
    #[serde(deserialize_with = "not_null")]
    pub grpc: Option<Object<GrpcMatch>>,
}

/// Exactly one of the fields is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PathMatch {
    /// The whole path.
    #[serde(deserialize_with = "not_null")]
    pub exact: Option<String>,
    /// Its beginning, by characters (`/search` also matches `/searches`).
    #[serde(deserialize_with = "not_null")]
    pub prefix: Option<String>,
    /// Its end.
    #[serde(deserialize_with = "not_null")]
    pub suffix: Option<String>,
    /// A regular expression that is searched for in it; anchor it with `^` and `$`.
    #[serde(deserialize_with = "not_null")]
    pub regex: Option<String>,
}

/// `name` and exactly one of the other fields.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderMatch {
    /// The header's name.
    pub name: HeaderName,
    /// Its whole value.
    #[serde(default, deserialize_with = "not_null")]
    pub exact: Option<String>,
    /// The beginning of its value.
    #[serde(default, deserialize_with = "not_null")]
    pub prefix: Option<String>,
    /// A regular expression that is searched for in its value.
    #[serde(default, deserialize_with = "not_null")]
    pub regex: Option<String>,
    /// Whether it is there at all.
    #[serde(default, deserialize_with = "not_null")]
    pub present: Option<bool>,
}

/// At least one of the fields is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcMatch {
    /// Full service name, for example `shop.Catalog` or `shop.*`.
    #[serde(deserialize_with = "not_null")]
    pub service: Option<Glob>,
    /// Method name, for example `Get*`.
    #[serde(deserialize_with = "not_null")]
    pub method: Option<Glob>,
}

/// A bound on the load that retries add, per worker.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSettings {
    /// Retries that each request pays for.
    pub ratio: Ratio,
    /// Retries per second that are allowed whatever the load.
    pub min_per_second: Whole<0, 100_000>,
    /// For how long what requests have paid stays usable.
    pub window: Span<1_000, 300_000>,
}

/// A set of methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Methods {
    /// `"idempotent"`: RFC 9110 section 9.2.2.
    Idempotent,
    /// `"safe"`: RFC 9110 section 9.2.1.
    Safe,
    /// These, compared with case (RFC 9110 section 9.1).
    List(Vec<Method>),
}

/// A method's name: an HTTP token without lower-case letters, and not CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method(pub String);

/// A header's name in lower case: an HTTP token (RFC 9110 section 5.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderName(pub String);

/// A rule's name: 1 to 64 letters, digits, `.`, `_` or `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleName(pub String);

/// Text with at most one `*` at its beginning and one at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(pub String);

/// A document that was refused for more than one field's own sake.
#[derive(Debug)]
pub struct Refused {
    /// Path of the field; in a matcher, below `match`.
    pub field: String,
    /// What is wrong and what would be right.
    pub allowed: String,
}

// === impl Refused ===

impl Refused {
    /// Refuses `field`.
    ///
    /// # Errors
    /// Always.
    pub fn because<T>(field: impl Into<String>, allowed: impl Into<String>) -> Result<T, Self> {
        Err(Self { field: field.into(), allowed: allowed.into() })
    }
}

// === impl Document ===

impl Default for Document {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            methods: Methods::Idempotent,
            idempotency_key_headers: Vec::new(),
            rules: Vec::new(),
            on: vec![
                Condition::Reset,
                Condition::ResetBeforeRequest,
                Condition::ConnectFailure,
                Condition::RefusedStream,
            ],
            unprocessed: true,
            max_retries: MaxRetries::clamped(1),
            per_try_timeout: None,
            budget: Object::default(),
        }
    }
}

// === impl BudgetSettings ===

impl Default for BudgetSettings {
    fn default() -> Self {
        Self { ratio: Ratio::clamped(0.2), min_per_second: Whole::clamped(10), window: Span::clamped_ms(10_000) }
    }
}

impl BudgetSettings {
    /// For how long a deposit stays usable.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.window.get()
    }
}

// === impl Methods ===

impl<'de> Deserialize<'de> for Methods {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Methods;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("\"idempotent\", \"safe\" or a list of methods such as [\"GET\", \"HEAD\"]")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Methods, E> {
                match word {
                    "idempotent" => Ok(Methods::Idempotent),
                    "safe" => Ok(Methods::Safe),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Methods, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Methods::List)
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// Refuses `null` where a field may be left out but not be emptied.
fn not_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Implements `Deserialize` for a newtype over text by a rule and the message that explains it.
macro_rules! text {
    ($type:ident, $convert:expr, $allowed:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let convert: fn(String) -> Option<String> = $convert;
                convert(String::deserialize(deserializer)?).map(Self).ok_or_else(|| D::Error::custom($allowed))
            }
        }
    };
}

text!(
    Method,
    |name| (is_token(&name) && !name.bytes().any(|byte| byte.is_ascii_lowercase()) && name != "CONNECT")
        .then_some(name),
    "must be an HTTP method in upper case, such as \"GET\" (methods are compared with case); CONNECT is never retried"
);
text!(
    HeaderName,
    |name| is_token(&name).then(|| name.to_ascii_lowercase()),
    "must be a header name: letters, digits and !#$%&'*+-.^_`|~ (RFC 9110 section 5.6.2), no pseudo-header"
);
text!(
    RuleName,
    |name| ((1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)))
    .then_some(name),
    "must be a name of 1 to 64 letters, digits, \".\", \"_\" or \"-\""
);
text!(
    Glob,
    |text| {
        let inner = text.strip_prefix('*').unwrap_or(&text);
        let inner = inner.strip_suffix('*').unwrap_or(inner);
        let plain = !inner.bytes().any(|byte| byte == b'*' || byte.is_ascii_whitespace());
        (plain && (text == "*" || !inner.is_empty())).then_some(text)
    },
    "must be text with at most one \"*\" at its beginning and one at its end, such as \"orders.*\", and no space"
);

/// RFC 9110 section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
