//! What the end of a tunnel means.

use std::time::{Duration, Instant};

use super::{ClosedBy, DURATION_TIMEOUT, Progress, refusal};
use crate::endpoints::{End, Refusal, ResetClass, ResetEvidence};

const SECOND: Duration = Duration::from_secs(1);
const PROXY: ClosedBy = ClosedBy::Proxy { flags: Some(0) };

fn closed(progress: &Progress, by: ClosedBy, now: Instant) -> Option<ResetEvidence> {
    progress.closed(by, || Some(Refusal::Ended), (SECOND, Some(3 * SECOND)), now)
}

fn established(now: Instant) -> Progress {
    let mut progress = Progress::default();
    progress.sent(None, now);
    progress
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
fn an_end_that_the_pool_asked_for_is_no_break_whichever_way_envoy_tells_it() {
    let now = Instant::now();
    let mut progress = established(now);
    assert!(closed(&progress, ClosedBy::Pool, now).is_none(), "Envoy 1.40 says so");
    assert!(progress.pool_ended(), "the pool has left the tunnel");
    assert!(!progress.pool_ended(), "which is told once");
    assert!(progress.heard(0, true, now).is_none(), "which the endpoint answers by its own end");
    assert!(closed(&progress, PROXY, now).is_none(), "Envoy before 1.40 ends the pool's half, and closes the rest");
}

#[test]
fn an_orderly_end_by_the_endpoint_says_whether_bytes_had_no_answer() {
    let now = Instant::now();
    let mut progress = established(now);
    let evidence = progress.heard(0, true, now + SECOND).expect("an end to know of");
    assert_eq!((evidence.end, evidence.waited, evidence.is_reset()), (End::Orderly, Some(SECOND), false));
    assert_eq!(evidence.classify(true), ResetClass::EndedUnanswered, "the endpoint was there");
    assert!(!progress.pool_ended(), "the pool's half follows the endpoint's: it has not left by itself");
    assert!(closed(&progress, PROXY, now).is_none(), "it was told");

    let mut answered = established(now);
    assert!(answered.heard(90, false, now).is_none());
    assert_eq!(answered.heard(0, true, now).and_then(|evidence| evidence.waited), None);
}

#[test]
fn an_end_on_which_nothing_waited_is_no_reset_since_it_may_be_envoys_own() {
    let now = Instant::now();
    let mut progress = established(now);
    let _ = progress.heard(90, false, now);
    let idle = closed(&progress, PROXY, now + SECOND).expect("an end to know of");
    assert_eq!((idle.end, idle.waited, idle.is_reset()), (End::Broken, None, false), "tcp_proxy's idle timeout");
    assert_eq!(idle.idle, Some(3 * SECOND));
    let answering = closed(&progress, PROXY, now + SECOND / 10).expect("it broke");
    assert!(answering.is_reset(), "bytes had just come");
    progress.sent(Some(7 * SECOND), now + SECOND);
    let broke = closed(&progress, PROXY, now + 3 * SECOND).expect("it broke");
    assert!(broke.is_reset());
    assert_eq!((broke.waited, broke.idle), (Some(2 * SECOND), Some(7 * SECOND)), "silence is counted to the request");
}

#[test]
fn the_greatest_age_of_a_connection_is_told_by_envoys_flag() {
    let now = Instant::now();
    let by = ClosedBy::Proxy { flags: Some(DURATION_TIMEOUT) };
    assert!(closed(&established(now), by, now).is_none());
    assert!(closed(&Progress::default(), by, now).is_none());
    assert!(closed(&established(now), ClosedBy::Proxy { flags: None }, now).is_some(), "Envoy 1.38 does not say");
}

#[test]
fn a_tunnel_without_a_byte_was_refused_and_waited_with_its_connect() {
    let evidence = closed(&Progress::default(), PROXY, Instant::now()).expect("it was refused");
    assert_eq!((evidence.end, evidence.waited), (End::Refused(Some(Refusal::Ended)), Some(SECOND)));
    assert!(evidence.is_reset());
    let class = |refusal, left| ResetEvidence { end: End::Refused(refusal), ..evidence }.classify(left);
    for unanswered in [None, Some(Refusal::Ended), Some(Refusal::Unanswered)] {
        assert_eq!(class(unanswered, false), ResetClass::TunnelRefused);
        assert_eq!(class(unanswered, true), ResetClass::Stale, "the CONNECT was sent on a connection left behind");
    }
    for answered in [Refusal::Connect, Refusal::Tls, Refusal::Answered(503)] {
        assert_eq!(class(Some(answered), true), ResetClass::TunnelRefused, "no connection, or one that works");
    }
}
