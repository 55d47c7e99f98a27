//! A dump that was cut off is read up to the cut.

use serde_json::Value;

/// A JSON text that could be read, at least its beginning.
#[derive(Debug)]
pub(crate) struct Parsed {
    /// The value.
    pub(crate) value: Value,
    /// Set if the text ends early: how many bytes of it were used, and how many there are.
    pub(crate) cut: Option<(usize, usize)>,
}

/// Reads a JSON text. Where it ends early, the longest beginning that can be completed by closing what is
/// open is read instead.
pub(crate) fn parse(text: &str) -> Result<Parsed, String> {
    // Some shells and editors put a byte order mark in front.
    let text = text.trim_start_matches('\u{feff}');
    let error = match serde_json::from_str(text) {
        Ok(value) => return Ok(Parsed { value, cut: None }),
        Err(error) => error,
    };
    if !error.is_eof() {
        return Err(error.to_string());
    }
    let repaired = completed(text).and_then(|(used, whole)| Some((used, serde_json::from_str(&whole).ok()?)));
    match repaired {
        Some((used, value)) => Ok(Parsed { value, cut: Some((used, text.len())) }),
        None => Err(error.to_string()),
    }
}

/// The longest beginning that ends with a whole value, and the same with everything closed that is open there.
fn completed(text: &str) -> Option<(usize, String)> {
    let mut open: Vec<u8> = Vec::new();
    let mut best: Option<(usize, Vec<u8>)> = None;
    let (mut in_string, mut escaped) = (false, false);
    for (index, byte) in text.bytes().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b'}' | b']' => {
                open.pop()?;
                best = Some((index + 1, open.clone()));
            }
            // What stands before a comma is whole.
            b',' => best = Some((index, open.clone())),
            _ => {}
        }
    }
    let (used, open) = best?;
    let closing: String = open.iter().rev().map(|byte| char::from(*byte)).collect();
    Some((used, format!("{}{closing}", text.get(..used)?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str = r#"{"configs":[{"a":"x,]}\"","b":[1,2]},{"c":{"d":true}}]}"#;

    #[test]
    fn every_beginning_is_read_up_to_its_last_whole_value() {
        let mut read = 0;
        for end in 0..TEXT.len() {
            let Ok(parsed) = parse(TEXT.get(..end).unwrap()) else { continue };
            let (used, whole) = parsed.cut.expect("a beginning of this text is never whole");
            assert!(used <= whole && whole == end, "cut at {end}");
            read += 1;
        }
        assert!(read > 25, "most beginnings can be completed: {read}");
        let cut = parse(r#"{"configs":[{"a":"x","b":[1,2"#).unwrap();
        assert_eq!(cut.value, json!({ "configs": [{ "a": "x", "b": [1] }] }));
        assert_eq!(parse(TEXT).unwrap().cut, None);
    }

    #[test]
    fn what_is_no_json_is_refused_and_not_completed() {
        for text in ["", "{", "upstream connect error", "{]", "{\"a\":1}}", "[1,2]]", "\u{0}", "{\"a\" 1"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(&deep).is_err(), "too deep is an error, not a crash");
    }
}
