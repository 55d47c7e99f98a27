//! The request headers that carry a verdict to Envoy's router.
//!
//! The router reads them once and merges them with the route's `retry_policy`. Conditions are united with the route's. `x-envoy-max-retries` *replaces*
//! the route's `num_retries`, which a filter cannot read, unless the operator repeats it in the route's
//! metadata ([`ROUTE_RETRIES`]): so it is set only where the policy asks for more than Envoy's own default
//! of one retry, more than the caller asks for, and more than the route is known to ask for.

use super::{
    decide::{Action, applies},
    headers::{MAX_RETRIES, PER_TRY_TIMEOUT, RETRY_GRPC_ON, RETRY_ON, parse_number},
    request::Evidence,
    words::{Carrier, Condition},
};

/// What Envoy's router retries when neither the route nor a header names a number.
pub const ENVOY_DEFAULT_RETRIES: u32 = 1;

/// Where a route's metadata, in Stale Guard's namespace, repeats its `num_retries`.
pub const ROUTE_RETRIES: &str = "num_retries";

/// A header to set, replacing every value that it has.
pub type Header = (&'static str, Vec<u8>);

/// The headers that give the request the rights of `action`; empty for [`Action::Leave`].
///
/// For [`Action::RetryUnprocessed`] nothing but conditions is set: the number of retries and the
/// per-try timeout would also hold for conditions that the route itself has, and so could send a
/// request again that this policy does not allow to be sent again.
///
/// `route` is asked for the route's own number of retries, where that decides.
#[must_use]
pub fn headers(request: &Evidence<'_>, action: &Action<'_>, route: impl FnOnce() -> Option<u32>) -> Vec<Header> {
    match action {
        Action::Leave => Vec::new(),
        Action::RetryUnprocessed(on) => {
            let on = on.iter().copied().filter(|condition| condition.proves_unprocessed());
            conditions(request, RETRY_ON, on).into_iter().collect()
        }
        Action::Retry(terms) => {
            let on = |carrier| {
                terms
                    .on
                    .iter()
                    .copied()
                    .filter(move |condition| condition.carrier() == carrier && applies(*condition, request))
            };
            [
                conditions(request, RETRY_ON, on(Carrier::Http)),
                conditions(request, RETRY_GRPC_ON, on(Carrier::Grpc)),
                max_retries(request, terms.max_retries, route),
                terms.per_try_timeout.and_then(|timeout| per_try_timeout(request, timeout.as_millis())),
            ]
            .into_iter()
            .flatten()
            .collect()
        }
    }
}

/// The caller's list with what it lacks at its end; `None` when it lacks nothing.
fn conditions(request: &Evidence<'_>, name: &'static str, on: impl Iterator<Item = Condition>) -> Option<Header> {
    let mut value = request.headers.joined(name).unwrap_or_default();
    let mut added = false;
    for word in on.map(Condition::word) {
        if value.split(|byte| *byte == b',').any(|known| known.trim_ascii() == word.as_bytes()) {
            continue;
        }
        if !value.trim_ascii().is_empty() {
            value.push(b',');
        }
        value.extend_from_slice(word.as_bytes());
        added = true;
    }
    added.then_some((name, value))
}

fn max_retries(request: &Evidence<'_>, ours: u32, route: impl FnOnce() -> Option<u32>) -> Option<Header> {
    let theirs = request.headers.joined(MAX_RETRIES).and_then(|value| parse_number(&value));
    let wanted = match theirs {
        Some(theirs) => u64::from(ours) > theirs,
        None => ours > ENVOY_DEFAULT_RETRIES && route().is_none_or(|route| ours > route),
    };
    wanted.then(|| (MAX_RETRIES, ours.to_string().into_bytes()))
}

fn per_try_timeout(request: &Evidence<'_>, millis: u128) -> Option<Header> {
    (!request.headers.contains(PER_TRY_TIMEOUT)).then(|| (PER_TRY_TIMEOUT, millis.to_string().into_bytes()))
}

#[cfg(test)]
#[path = "steer_tests.rs"]
mod tests;
