//! One value of a dump, with the place where it stands.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::duration;

/// More are counted, and not kept.
const KEPT: usize = 50;

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// Which input, and where in it.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
}

/// What could not be read so far.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    kept: RefCell<Vec<Unread>>,
    count: Cell<usize>,
}

/// A value and its place. Fields are named as in Envoy's protos (`idle_timeout`); the JSON name (`idleTimeout`),
/// which `istioctl` writes, is accepted too.
#[derive(Debug, Clone)]
pub(crate) struct At<'a> {
    value: &'a Value,
    path: String,
    notes: &'a Notes,
}

// === impl Notes ===

impl Notes {
    pub(crate) fn add(&self, place: &str, problem: impl Into<String>) {
        self.count.set(self.count.get() + 1);
        let mut kept = self.kept.borrow_mut();
        if kept.len() < KEPT {
            kept.push(Unread { place: place.to_owned(), problem: problem.into() });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// What was kept, and a last entry that counts the rest.
    pub(crate) fn into_unread(self) -> Vec<Unread> {
        let (mut unread, count) = (self.kept.into_inner(), self.count.get());
        if let Some(more) = count.checked_sub(unread.len()).filter(|more| *more > 0) {
            unread.push(Unread { place: "…".to_owned(), problem: format!("and {more} more") });
        }
        unread
    }
}

// === impl At ===

impl<'a> At<'a> {
    pub(crate) fn new(value: &'a Value, path: &str, notes: &'a Notes) -> Self {
        Self { value, path: path.to_owned(), notes }
    }

    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    /// Notes that this value cannot be read.
    pub(crate) fn note(&self, problem: impl Into<String>) {
        self.notes.add(&self.path, problem);
    }

    /// A field; `None` if it is absent or null. What is no object has no field, which is noted.
    pub(crate) fn get(&self, name: &str) -> Option<At<'a>> {
        let Value::Object(map) = self.value else {
            self.note(format!("expected an object with \"{name}\", found {}", kind(self.value)));
            return None;
        };
        let value = lookup(map, name)?;
        (!value.is_null()).then(|| At { value, path: format!("{}.{name}", self.path), notes: self.notes })
    }

    /// A field of a field.
    pub(crate) fn path(&self, names: &[&str]) -> Option<At<'a>> {
        names.iter().try_fold(self.clone(), |at, name| at.get(name))
    }

    pub(crate) fn as_text(&self) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.note(format!("expected a string, found {}", kind(self.value)));
        }
        text
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_text()
    }

    /// A string, empty if it is absent or unreadable, as in protobuf.
    pub(crate) fn string(&self, name: &str) -> String {
        self.text(name).unwrap_or_default().to_owned()
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        let Some(at) = self.get(name) else { return false };
        let flag = at.value.as_bool();
        if flag.is_none() {
            at.note(format!("expected true or false, found {}", kind(at.value)));
        }
        flag.unwrap_or(false)
    }

    /// A whole number; 64 bit numbers are strings in protobuf's JSON.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let at = self.get(name)?;
        let number = match at.value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        if number.is_none() {
            at.note(format!("expected a whole number, found {}", kind(at.value)));
        }
        number
    }

    pub(crate) fn duration(&self, name: &str) -> Option<Duration> {
        let at = self.get(name)?;
        let duration = duration::parse(at.value);
        if duration.is_none() {
            at.note("expected a duration such as \"5s\"");
        }
        duration
    }

    /// The elements of a list; none if it is absent. An element that is null is noted and left out.
    pub(crate) fn list(&self, name: &str) -> Vec<At<'a>> {
        let Some(at) = self.get(name) else { return Vec::new() };
        let Value::Array(elements) = at.value else {
            at.note(format!("expected a list, found {}", kind(at.value)));
            return Vec::new();
        };
        let element = |(index, value)| At { value, path: format!("{}[{index}]", at.path), notes: at.notes };
        let elements = elements.iter().enumerate().map(element);
        elements
            .filter(|element| {
                let readable = !element.value.is_null();
                if !readable {
                    element.note("expected a value, found null");
                }
                readable
            })
            .collect()
    }

    /// The entries of a map.
    pub(crate) fn entries(&self, name: &str) -> Vec<(&'a str, At<'a>)> {
        let Some(at) = self.get(name) else { return Vec::new() };
        let Value::Object(map) = at.value else {
            at.note(format!("expected a map, found {}", kind(at.value)));
            return Vec::new();
        };
        let entry = |(key, value): (&'a String, &'a Value)| {
            (key.as_str(), At { value, path: format!("{}.{key}", at.path), notes: at.notes })
        };
        map.iter().map(entry).collect()
    }

    /// A field that holds any message, without the wrapping of a `TypedStruct`: its type's URL, and the message.
    pub(crate) fn typed(&self, name: &str) -> Option<(String, At<'a>)> {
        let any = self.get(name)?;
        let wrapped = any.type_url().ends_with(".TypedStruct");
        let url = if wrapped { any.string("type_url") } else { any.type_url() };
        let message = if wrapped { any.get("value")? } else { any };
        Some((url, message))
    }

    /// The field `@type`.
    pub(crate) fn type_url(&self) -> String {
        self.string("@type")
    }
}

/// The last part of a type's name: `TcpProxy` for
/// `type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy`.
pub(crate) fn last_part(url: &str) -> &str {
    url.rsplit(['.', '/']).next().unwrap_or(url)
}

fn lookup<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).or_else(|| if name.contains('_') { map.get(&json_name(name)) } else { None })
}

/// The JSON name that protobuf gives to a field.
fn json_name(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut whole, part| {
        let mut letters = part.chars();
        whole.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        whole.push_str(letters.as_str());
        whole
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_spellings_of_a_field_are_read() {
        let notes = Notes::default();
        for value in [json!({ "idle_timeout": "5s" }), json!({ "idleTimeout": "5s" })] {
            assert_eq!(At::new(&value, "", &notes).duration("idle_timeout"), Some(Duration::from_secs(5)));
        }
        assert!(notes.is_empty());
    }

    #[test]
    fn a_wrong_type_is_noted_with_its_place_and_read_as_absent() {
        let notes = Notes::default();
        let value = json!({ "a": { "b": 5, "list": "no", "flag": "yes", "number": "x", "time": 3 }, "c": [null] });
        let at = At::new(&value, "dump", &notes);
        let a = at.get("a").unwrap();
        assert_eq!(a.text("b"), None);
        assert!(a.list("list").is_empty() && !a.flag("flag"));
        assert_eq!((a.number("number"), a.duration("time")), (None, None));
        assert!(at.list("c").is_empty());
        assert!(a.get("b").unwrap().get("deeper").is_none());
        let places: Vec<String> = notes.into_unread().into_iter().map(|unread| unread.place).collect();
        assert_eq!(
            places,
            ["dump.a.b", "dump.a.list", "dump.a.flag", "dump.a.number", "dump.a.time", "dump.c[0]", "dump.a.b"]
        );
    }

    #[test]
    fn no_more_notes_are_kept_than_a_person_reads() {
        let notes = Notes::default();
        (0..1_000).for_each(|_| notes.add("x", "y"));
        let unread = notes.into_unread();
        assert_eq!(unread.len(), KEPT + 1);
        assert!(unread.last().unwrap().problem.contains("950"), "{unread:?}");
    }
}
