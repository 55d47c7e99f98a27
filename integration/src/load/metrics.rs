//! Latency figures.

use super::record::RequestRecord;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Latency of all requests, failed ones included, from their intended start to their end.
///
/// Failed requests are included on purpose: leaving out the ones that ran into a timeout would make
/// the worst proxy look fast. Quantiles have three significant digits; the maximum is exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Median, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile, in milliseconds.
    pub p99_ms: f64,
    /// Slowest request, in milliseconds.
    pub max_ms: f64,
}

impl Latency {
    /// Figures of these records; zeros if there are none.
    ///
    /// # Errors
    /// When a latency does not fit the histogram.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a RequestRecord>) -> anyhow::Result<Self> {
        let mut histogram = Histogram::<u64>::new(3)?;
        let mut max = Duration::ZERO;
        for record in records {
            let latency = record.latency();
            max = max.max(latency);
            histogram.record(u64::try_from(latency.as_micros())?)?;
        }
        let max_ms = max.as_secs_f64() * 1e3;
        // A bucket's upper edge may lie above the exact maximum.
        let quantile = |q| (histogram.value_at_quantile(q) as f64 / 1e3).min(max_ms);
        Ok(Self { p50_ms: quantile(0.50), p99_ms: quantile(0.99), max_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Outcome;
    use super::*;
    use http::Method;
    use std::time::Instant;

    #[test]
    fn counts_failed_requests_and_the_wait_before_the_start() {
        let origin = Instant::now();
        let records: Vec<_> = (1..=100_u64)
            .map(|ms| RequestRecord {
                id: ms.to_string(),
                class: "get".into(),
                method: Method::GET,
                idempotent: true,
                intended: origin,
                started: origin + Duration::from_millis(ms - 1),
                ended: origin + Duration::from_millis(ms),
                connection: None,
                outcome: Outcome::TimedOut,
            })
            .collect();
        let latency = Latency::of(&records).unwrap();
        assert!((49.9..50.1).contains(&latency.p50_ms), "{latency:?}");
        assert!((98.9..99.2).contains(&latency.p99_ms), "{latency:?}");
        assert!((latency.max_ms - 100.0).abs() < 1e-9, "{latency:?}");
    }

    #[test]
    fn no_records_give_zeros() {
        assert_eq!(Latency::of([]).unwrap(), Latency { p50_ms: 0.0, p99_ms: 0.0, max_ms: 0.0 });
    }
}
