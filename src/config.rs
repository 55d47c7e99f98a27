//! Strict configuration, shared by every extension point.
//!
//! Envoy hands each part a `google.protobuf.Struct` as JSON. [`parse`] turns it into the part's own
//! type or into a [`ConfigError`] that names the field, the value it holds and what is allowed. An
//! absent configuration is `{}`, and `{}` is valid everywhere.

use std::{fmt, marker::PhantomData, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

/// A configuration that was refused, in the operator's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part} configuration refused: field \"{field}\", value {value}: {allowed}")]
pub struct ConfigError {
    /// The extension point, by the name that Envoy's configuration selects it with.
    pub part: &'static str,
    /// Path of the field, for example `rules[2].match.path.regex`; `.` is the whole document.
    pub field: String,
    /// The value found there, as JSON, shortened to [`VALUE_SHOWN`] characters.
    pub value: String,
    /// What is wrong and what would be right.
    pub allowed: String,
}

/// How many characters of a refused value an error repeats.
pub const VALUE_SHOWN: usize = 120;

/// Parses `json` strictly into `T`.
///
/// # Errors
/// Text that is no JSON, an unknown field, a wrong type, or a value that `T` refuses.
pub fn parse<T: DeserializeOwned>(part: &'static str, json: &[u8]) -> Result<T, ConfigError> {
    let json = if json.trim_ascii().is_empty() { b"{}" } else { json };
    let document: Value = serde_json::from_slice(json).map_err(|error| {
        ConfigError::new(part, ".", &Value::from(String::from_utf8_lossy(json)), format!("not valid JSON ({error})"))
    })?;
    if !document.is_object() {
        return Err(ConfigError::new(part, ".", &document, "must be a JSON object, such as {}"));
    }
    serde_path_to_error::deserialize(&document).map_err(|error| {
        let field = error.path().to_string();
        let value = value_at(&document, error.path());
        ConfigError::new(part, &field, value, error.inner().to_string())
    })
}

fn value_at<'a>(document: &'a Value, path: &serde_path_to_error::Path) -> &'a Value {
    use serde_path_to_error::Segment;
    path.iter()
        .try_fold(document, |value, segment| match segment {
            Segment::Seq { index } => value.get(index),
            Segment::Map { key } => value.get(key),
            // An enum's variant is no level of its own in JSON.
            Segment::Enum { variant } => Some(value.get(variant).unwrap_or(value)),
            Segment::Unknown => Some(value),
        })
        .unwrap_or(&Value::Null)
}

// === impl ConfigError ===

impl ConfigError {
    /// An error about `field` of `part`, which holds `value`.
    #[must_use]
    pub fn new(part: &'static str, field: &str, value: &Value, allowed: impl Into<String>) -> Self {
        let mut shown = value.to_string();
        if let Some((cut, _)) = shown.char_indices().nth(VALUE_SHOWN) {
            shown.truncate(cut);
            shown.push('…');
        }
        Self { part, field: field.to_owned(), value: shown, allowed: allowed.into() }
    }
}

/// A `T` that is written as a JSON object.
///
/// `serde` also fills a struct from an array, by position; a configuration must not be read so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Object<T>(pub T);

/// A whole number from `MIN` to `MAX`.
///
/// A `Struct` knows only doubles, so `2.0` is read as 2; and so is the string `"2.0"`, see [`Ratio`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whole<const MIN: u32, const MAX: u32>(u32);

/// A duration from `MIN` to `MAX` milliseconds, written as `"250ms"`, `"1.5s"`, `"10m"` or `"1h"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span<const MIN: u64, const MAX: u64>(Duration);

/// A number from 0 to 1.
///
/// Where Envoy reads YAML, it hands a fraction inside a `Struct` over as a string: `ratio: 0.2` arrives as
/// `"0.2"`. So a string that is a number counts as that number.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

// === impl Object ===

impl<T> std::ops::Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = T;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData)).map(Self)
    }
}

// === impl Whole ===

impl<const MIN: u32, const MAX: u32> Whole<MIN, MAX> {
    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// A default, moved into the range where it lies outside.
    #[must_use]
    pub const fn clamped(value: u32) -> Self {
        Self(if value < MIN {
            MIN
        } else if value > MAX {
            MAX
        } else {
            value
        })
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowed = || format!("must be a whole number from {MIN} to {MAX}");
        let number = number(&Value::deserialize(deserializer)?).ok_or_else(|| D::Error::custom(allowed()))?;
        if number.fract() != 0.0 || number < f64::from(MIN) || number > f64::from(MAX) {
            return Err(D::Error::custom(allowed()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to lie within u32's range"
        )]
        Ok(Self(number as u32))
    }
}

// === impl Span ===

impl<const MIN: u64, const MAX: u64> Span<MIN, MAX> {
    /// The duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// A default in milliseconds, moved into the range where it lies outside.
    #[must_use]
    pub const fn clamped_ms(millis: u64) -> Self {
        Self(Duration::from_millis(if millis < MIN {
            MIN
        } else if millis > MAX {
            MAX
        } else {
            millis
        }))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Span<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer)?
            .as_str()
            .and_then(parse_duration)
            .filter(|duration| (MIN..=MAX).contains(&u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
            .map(Self)
            .ok_or_else(|| {
                D::Error::custom(format!(
                    "must be a duration from \"{}\" to \"{}\", a number with a unit of ms, s, m or h",
                    Shown(MIN),
                    Shown(MAX)
                ))
            })
    }
}

/// Milliseconds in the largest unit that shows them whole.
struct Shown(u64);

impl fmt::Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, unit) =
            UNITS.iter().rev().find(|(size, _)| self.0 != 0 && self.0.is_multiple_of(*size)).unwrap_or(&(1, "ms"));
        write!(out, "{}{unit}", self.0 / size)
    }
}

const UNITS: [(u64, &str); 4] = [(1, "ms"), (1_000, "s"), (60_000, "m"), (3_600_000, "h")];

fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let (size, _) = UNITS.iter().find(|(_, name)| *name == unit)?;
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "the units are small")]
    let seconds = number.parse::<f64>().ok()? * *size as f64 / 1_000.0;
    Duration::try_from_secs_f64(seconds).ok()
}

// === impl Ratio ===

impl Ratio {
    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// A default, moved into the range where it lies outside.
    #[must_use]
    pub const fn clamped(value: f64) -> Self {
        Self(value.clamp(0.0, 1.0))
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        number(&Value::deserialize(deserializer)?)
            .filter(|number| (0.0..=1.0).contains(number))
            .map(Self)
            .ok_or_else(|| D::Error::custom("must be a number from 0 to 1"))
    }
}

/// The number, or the one that the string spells in decimal, with or without an exponent.
fn number(value: &Value) -> Option<f64> {
    let Value::String(text) = value else { return value.as_f64() };
    // Neither "inf" nor "nan", which `parse` knows too.
    let plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'+' | b'-' | b'e' | b'E'));
    if plain { text.parse().ok() } else { None }
}

/// Whether a part acts, only watches, or does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Decide and act.
    #[default]
    Enforce,
    /// Decide, count and annotate exactly as `enforce` would, and change nothing.
    Observe,
    /// Do nothing.
    Off,
}

impl<'de> Deserialize<'de> for Mode {
    /// Envoy's YAML reader takes `off` for `false`, as YAML 1.1 does.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const WORDS: &[&str] = &["enforce", "observe", "off"];
        match Value::deserialize(deserializer)? {
            Value::Bool(false) => Ok(Self::Off),
            Value::String(word) => match word.as_str() {
                "enforce" => Ok(Self::Enforce),
                "observe" => Ok(Self::Observe),
                "off" => Ok(Self::Off),
                other => Err(D::Error::unknown_variant(other, WORDS)),
            },
            _ => Err(D::Error::custom("must be one of \"enforce\", \"observe\" and \"off\"")),
        }
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
