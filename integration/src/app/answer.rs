//! From a behaviour and a request to what is sent: pure, shared by both protocols.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};

use super::script::Behaviour;

/// What to do once the request was read and recorded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Answer { delay: Duration, status: StatusCode, body: Bytes },
    HangBeforeHeaders,
    HangBody,
    CloseUnanswered,
    ResetUnanswered,
    HeadersThenReset,
    GrpcEcho,
    GrpcStatus(u16),
}

/// The bytes announced and the bytes sent by [`Plan::HeadersThenReset`].
pub(super) const ANNOUNCED: &str = "100";
pub(super) const SENT: &[u8] = &[b'x'; 10];

pub(super) fn plan(behaviour: Behaviour, request: &Parts, pod: &str) -> Plan {
    let answer = |delay, status| Plan::Answer { delay, status, body: body(request, pod) };
    match behaviour {
        Behaviour::Delay(delay) => answer(delay, StatusCode::OK),
        Behaviour::Status(status) => answer(Duration::ZERO, status),
        Behaviour::GrpcStatus(code) => Plan::GrpcStatus(code),
        Behaviour::HangBeforeHeaders => Plan::HangBeforeHeaders,
        Behaviour::HangBody => Plan::HangBody,
        Behaviour::ReadThenClose => Plan::CloseUnanswered,
        Behaviour::ReadThenReset => Plan::ResetUnanswered,
        Behaviour::HeadersThenReset => Plan::HeadersThenReset,
        Behaviour::Normal
        | Behaviour::ResetOnArrival
        | Behaviour::FinCrossing
        | Behaviour::RefuseStream
        | Behaviour::GoAwayBelow
        | Behaviour::ResetOnAccept
        | Behaviour::CloseOnAccept => by_request(request, pod),
    }
}

fn by_request(request: &Parts, pod: &str) -> Plan {
    match query(request, "hang") {
        Some("headers") => return Plan::HangBeforeHeaders,
        Some("body") => return Plan::HangBody,
        _ => {}
    }
    if is_grpc(request) {
        return Plan::GrpcEcho;
    }
    let delay = number(request, "delay_ms").map_or(Duration::ZERO, Duration::from_millis);
    let status = number(request, "status")
        .and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok())
        .unwrap_or(StatusCode::OK);
    Plan::Answer { delay, status, body: body(request, pod) }
}

fn body(request: &Parts, pod: &str) -> Bytes {
    match number(request, "bytes").and_then(|count| usize::try_from(count).ok()) {
        Some(count) => Bytes::from(vec![b'x'; count]),
        None => Bytes::copy_from_slice(pod.as_bytes()),
    }
}

pub(super) fn is_grpc(request: &Parts) -> bool {
    let content_type = request.headers.get(http::header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The head of a response, with the pod's name.
pub(super) fn head<B>(pod: &str, status: StatusCode, body: B) -> Response<B> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    // A pod's name is a DNS label; anything else leaves the header out and fails the test's look-up.
    if let Ok(name) = pod.parse() {
        response.headers_mut().insert("x-pod", name);
    }
    response
}

fn query<'a>(request: &'a Parts, key: &str) -> Option<&'a str> {
    let mut pairs = request.uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(name, value)| (name == key).then_some(value))
}

fn number(request: &Parts, key: &str) -> Option<u64> {
    query(request, key)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(uri: &str) -> Parts {
        http::Request::get(uri).body(()).expect("request").into_parts().0
    }

    #[test]
    fn the_query_decides_where_the_script_does_not() {
        let request = parts("/a?delay_ms=5&status=418&bytes=3");
        let expected = Plan::Answer {
            delay: Duration::from_millis(5),
            status: StatusCode::IM_A_TEAPOT,
            body: Bytes::from_static(b"xxx"),
        };
        assert_eq!(plan(Behaviour::Normal, &request, "pod"), expected);
        assert_eq!(plan(Behaviour::ReadThenClose, &request, "pod"), Plan::CloseUnanswered);
        assert_eq!(plan(Behaviour::Normal, &parts("/?hang=body"), "pod"), Plan::HangBody);
    }
}
