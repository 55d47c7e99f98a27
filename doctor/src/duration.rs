//! Durations as Envoy's JSON has them, and as people read them.

use std::time::Duration;

use serde_json::Value;

/// A `google.protobuf.Duration` in its JSON form: `"0.250s"`.
pub(crate) fn parse(value: &Value) -> Option<Duration> {
    let seconds: f64 = value.as_str()?.strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// `1h`, `5m`, `90s`, `250ms`: the largest unit that divides it.
pub(crate) fn show(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 => "0s".to_owned(),
        _ if millis.is_multiple_of(3_600_000) => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!("{}m", millis / 60_000),
        _ if millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        _ => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoy_s_durations_are_read_and_shown() {
        let shown = |text: &str| parse(&text.into()).map(show);
        for (text, expected) in
            [("3600s", "1h"), ("300s", "5m"), ("90s", "90s"), ("0.250s", "250ms"), ("0s", "0s"), ("1.5s", "1500ms")]
        {
            assert_eq!(shown(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "s", "1", "-1s", "1e400s", "NaNs", "one s"] {
            assert_eq!(shown(text), None, "{text:?} is no duration");
        }
        assert_eq!(parse(&Value::from(5)), None);
    }
}
