//! A route's configuration as Envoy 1.38 hands it over.
//!
//! Every release turns the `google.protobuf.Struct` of a *filter* into JSON. For a *route* (and a
//! virtual host, and a weighted cluster) Envoy 1.38 hands over the `Struct`'s own bytes instead.

use std::borrow::Cow;

use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};
use serde_json::{Map, Number, Value as Json};

/// The first byte of every `Struct` that has a field: field 1, length-delimited.
const FIELDS_TAG: u8 = 0x0a;

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
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::NumberValue(number)) => Number::from_f64(number).map_or(Json::Null, Json::Number),
        Some(Kind::StringValue(text)) => Json::String(text),
        Some(Kind::BoolValue(yes)) => Json::Bool(yes),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(list)) => Json::Array(list.values.into_iter().map(value).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }

    fn object<const N: usize>(fields: [(&str, Kind); N]) -> Struct {
        Struct { fields: fields.into_iter().map(|(name, kind)| (name.to_owned(), field(kind))).collect() }
    }

    #[test]
    fn a_struct_is_read_as_the_json_that_it_came_from() {
        let list = prost_types::ListValue { values: vec![field(Kind::StringValue("POST".to_owned()))] };
        let bytes = object([
            ("methods", Kind::ListValue(list)),
            ("max_retries", Kind::NumberValue(2.0)),
            ("unprocessed", Kind::BoolValue(false)),
            ("budget", Kind::StructValue(object([("ratio", Kind::NumberValue(0.5))]))),
            ("per_try_timeout", Kind::NullValue(0)),
        ])
        .encode_to_vec();
        let read: Json = serde_json::from_slice(&json(&bytes)).expect("JSON");
        let expected = r#"{"methods":["POST"],"max_retries":2.0,"unprocessed":false,"budget":{"ratio":0.5},"per_try_timeout":null}"#;
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
