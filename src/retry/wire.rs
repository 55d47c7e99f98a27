//! A route's configuration as Envoy 1.38 hands it over.
//!
//! Every release turns the `google.protobuf.Struct` of a *filter* into JSON. For a *route* (and a
//! virtual host, and a weighted cluster) Envoy 1.38 hands over the `Struct`'s own bytes instead.

use std::{borrow::Cow, collections::HashMap};

use prost::Message;
use serde_json::{Map, Number, Value as Json};

/// The first byte of every `Struct` that has a field: field 1, length-delimited.
const FIELDS_TAG: u8 = 0x0a;

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
struct Struct {
    #[prost(map = "string, message", tag = "1")]
    fields: HashMap<String, Value>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(List),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
}

/// The configuration as JSON: as it is, or read from a `Struct`'s bytes. Bytes that are neither are
/// left for the parser to refuse. The tag is a line feed, which JSON allows at its beginning, so JSON
/// is tried first.
#[must_use]
pub fn json(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.first() != Some(&FIELDS_TAG) || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() {
        return Cow::Borrowed(bytes);
    }
    match Struct::decode(bytes) {
        Ok(decoded) => Cow::Owned(object(decoded).to_string().into_bytes()),
        Err(_) => Cow::Borrowed(bytes),
    }
}

fn object(decoded: Struct) -> Json {
    Json::Object(decoded.fields.into_iter().map(|(name, field)| (name, value(field))).collect::<Map<_, _>>())
}

fn value(decoded: Value) -> Json {
    match decoded.kind {
        None | Some(Kind::Null(_)) => Json::Null,
        Some(Kind::Number(number)) => Number::from_f64(number).map_or(Json::Null, Json::Number),
        Some(Kind::Text(text)) => Json::String(text),
        Some(Kind::Bool(yes)) => Json::Bool(yes),
        Some(Kind::Struct(fields)) => object(fields),
        Some(Kind::List(list)) => Json::Array(list.values.into_iter().map(value).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }

    #[test]
    fn a_struct_is_read_as_the_json_that_it_came_from() {
        let list = List { values: vec![field(Kind::Text("POST".to_owned()))] };
        let budget = Struct { fields: HashMap::from([("ratio".to_owned(), field(Kind::Number(0.5)))]) };
        let fields = HashMap::from([
            ("methods".to_owned(), field(Kind::List(list))),
            ("max_retries".to_owned(), field(Kind::Number(2.0))),
            ("budget".to_owned(), field(Kind::Struct(budget))),
            ("per_try_timeout".to_owned(), field(Kind::Null(0))),
        ]);
        let bytes = Struct { fields }.encode_to_vec();
        let read: Json = serde_json::from_slice(&json(&bytes)).expect("JSON");
        let expected = r#"{"methods":["POST"],"max_retries":2.0,"budget":{"ratio":0.5},"per_try_timeout":null}"#;
        assert_eq!(read, serde_json::from_str::<Json>(expected).expect("JSON"));
        super::super::policy::Policy::parse(&json(&bytes)).expect("a valid policy");
    }

    #[test]
    fn json_and_anything_else_stay_as_they_are() {
        for bytes in [&b"{}"[..], b"", b"\n{\"mode\":\"off\"}", b"nonsense", b"\n\xff\xff\xff\xff\xff\xff", b"\n"] {
            assert_eq!(json(bytes), bytes, "{bytes:?}");
        }
    }
}
