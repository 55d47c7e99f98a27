//! What the end of a tunnel means.

use std::time::{Duration, Instant};

use super::{ClosedBy, Progress, refusal};
use crate::endpoints::{Liveness, Refusal, ResetClass, ResetEvidence};

const SECOND: Duration = Duration::from_secs(1);

fn liveness() -> Liveness {
    Liveness { unacknowledged: Some(20 * SECOND), idle: Some(25 * SECOND) }
}

fn class(progress: &Progress, silent: Option<Duration>, now: Instant) -> ResetClass {
    let evidence = progress.closed(ClosedBy::Proxy, SECOND, silent, now).expect("it broke");
    ResetEvidence { liveness: liveness(), ..evidence }.classify()
}

#[test]
fn the_reasons_that_envoy_gives_are_told_apart() {
    for (reason, expected) in [
        ("tunnel_response:503", Refusal::Answered(503)),
        ("tunnel_response:401", Refusal::Answered(401)),
        ("delayed connect error: Connection refused", Refusal::Connect),
        ("connection timeout", Refusal::Connect),
        ("TLS_error:|268435581:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED:TLS_error_end", Refusal::Tls),
        ("", Refusal::Ended),
    ] {
        assert_eq!(refusal(reason, SECOND / 10), expected, "{reason:?}");
    }
    assert_eq!(refusal("", 5 * SECOND), Refusal::Unanswered, "it had waited for long");
    assert_eq!(refusal("tunnel_response:503", 5 * SECOND), Refusal::Answered(503));
}

#[test]
fn an_end_that_the_endpoint_or_the_pool_asked_for_is_no_break() {
    let now = Instant::now();
    let mut progress = Progress::default();
    progress.sent(None, now);
    assert!(progress.closed(ClosedBy::Pool, 60 * SECOND, None, now).is_none(), "the pool closes what it has");
    progress.heard(true);
    assert!(progress.closed(ClosedBy::Proxy, SECOND, None, now).is_none(), "the endpoint ended the tunnel properly");
}

#[test]
fn a_connect_without_an_answer_is_judged_by_the_connection_that_it_was_sent_on() {
    let (progress, now) = (Progress::default(), Instant::now());
    let sent = |age, reused| {
        let evidence = progress.closed(ClosedBy::Proxy, age, None, now).expect("it broke");
        let refusal = Some(refusal("", age));
        ResetEvidence { refusal, reused, liveness: liveness(), ..evidence }.classify()
    };
    assert_eq!(sent(SECOND / 10, false), ResetClass::TunnelRefused, "nobody has ever been served there");
    assert_eq!(sent(20 * SECOND, false), ResetClass::TunnelRefused);
    assert_eq!(sent(SECOND / 10, true), ResetClass::Fresh, "the connection had served others, and broke");
    assert_eq!(sent(20 * SECOND, true), ResetClass::Timeout, "nobody acknowledged the CONNECT");
}

#[test]
fn a_break_about_when_the_kernel_gives_up_is_a_timeout_and_a_later_one_is_not() {
    let start = Instant::now();
    let mut progress = Progress::default();
    progress.sent(None, start);
    assert_eq!(class(&progress, None, start + 20 * SECOND), ResetClass::Timeout);
    assert_eq!(class(&progress, None, start + 10 * SECOND), ResetClass::Fresh, "too early");
    assert_eq!(
        class(&progress, None, start + 120 * SECOND),
        ResetClass::Fresh,
        "bytes that were never acknowledged would have ended it long before: the answer was only slow"
    );
    progress.sent(None, start + 110 * SECOND);
    assert_eq!(
        class(&progress, None, start + 130 * SECOND),
        ResetClass::Timeout,
        "the later bytes may be what nobody acknowledged"
    );
}

#[test]
fn a_quiet_connection_that_breaks_is_judged_by_its_silence() {
    let start = Instant::now();
    let mut progress = Progress::default();
    progress.sent(Some(60 * SECOND), start);
    assert_eq!(class(&progress, None, start), ResetClass::Aged, "it was reused after a long silence");
    progress.heard(false);
    assert_eq!(class(&progress, Some(SECOND), start + SECOND), ResetClass::Fresh, "it has spoken since");
    assert_eq!(class(&progress, Some(25 * SECOND), start), ResetClass::Timeout, "the last probe was not answered");
    assert_eq!(class(&progress, Some(60 * SECOND), start), ResetClass::Aged);
}
