//! Which break is named, and how many are counted together.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::endpoints::{Break, End, Endpoints, ResetClass, ResetEvidence};

const BROKEN: ResetEvidence =
    ResetEvidence { end: End::Broken, idle: None, waited: Some(Duration::ZERO), answering: false };
const REFUSED: ResetEvidence = ResetEvidence { end: End::Refused(None), ..BROKEN };
const ORDERLY: ResetEvidence = ResetEvidence { end: End::Orderly, ..BROKEN };

fn ip(host: u8) -> IpAddr {
    IpAddr::from([10, 244, 1, host])
}

/// A tunnel to `host` on outer connection `id` ends on `worker`; gives the number of others at once.
fn end(
    endpoints: &std::sync::Arc<Endpoints>,
    (host, id): (u8, Option<u64>),
    evidence: ResetEvidence,
    worker: u32,
    at: Instant,
) -> usize {
    let mut tunnel = endpoints.open(ip(host), None, at);
    if let Some(id) = id {
        tunnel.on_connection(id, at);
    }
    tunnel.ended(&evidence, worker, at).others_at_once
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn class(one: Option<Break>) -> Option<ResetClass> {
    one.map(|one| one.reset.class)
}

#[test]
fn a_request_that_was_cured_is_told_its_break_only_while_the_class_is_not_in_doubt() {
    let (endpoints, start) = (Endpoints::new(64), Instant::now());
    let since = |after| endpoints.break_since(start + ms(after), 0).map(|one| (one.reset.class, one.ip));
    assert_eq!(since(0), None, "nothing broke");
    end(&endpoints, (1, Some(1)), BROKEN, 0, start + ms(1));
    end(&endpoints, (2, Some(2)), BROKEN, 0, start + ms(3));
    assert_eq!(since(0), Some((ResetClass::Broken, ip(2))));
    assert_eq!(since(4), None, "what broke before the request began is not its business");
    assert_eq!(endpoints.break_since(start, 1), None, "nor is what broke on another worker");
    end(&endpoints, (3, None), REFUSED, 0, start + ms(5));
    assert_eq!(since(0), None, "two classes, and no telling which was this request's");
    assert_eq!(since(4), Some((ResetClass::TunnelRefused, ip(3))));
    end(&endpoints, (4, Some(4)), ResetEvidence { waited: None, ..ORDERLY }, 0, start + ms(6));
    assert_eq!(since(4), Some((ResetClass::TunnelRefused, ip(3))), "the end of an idle tunnel harmed no request");
}

#[test]
fn a_request_that_failed_is_told_the_last_break_of_its_endpoint_on_its_worker() {
    let (endpoints, start) = (Endpoints::new(64), Instant::now());
    let last = |host, worker, after| class(endpoints.last_break(ip(host), worker, ms(100), start + ms(after)));
    end(&endpoints, (1, Some(1)), BROKEN, 0, start);
    end(&endpoints, (1, Some(1)), ORDERLY, 0, start + ms(10));
    end(&endpoints, (2, Some(2)), REFUSED, 64, start + ms(20));
    assert_eq!(last(1, 0, 30), Some(ResetClass::EndedUnanswered));
    assert_eq!(last(1, 0, 111), None, "too long ago to be its cause");
    assert_eq!(last(2, 0, 30), None, "workers that share a list do not share its breaks");
    assert_eq!(last(2, 64, 30), Some(ResetClass::TunnelRefused));
}

#[test]
fn connections_that_broke_at_once_are_counted_each_once() {
    let (endpoints, start) = (Endpoints::new(64), Instant::now());
    let broke = |host, id, after| end(&endpoints, (host, id), BROKEN, 0, start + ms(after));
    assert_eq!(broke(1, Some(7), 0), 0);
    assert_eq!(broke(1, Some(7), 1), 0, "another tunnel of the same connection");
    assert_eq!(broke(1, None, 2), 0, "the same one, as far as is known");
    assert_eq!(broke(1, Some(8), 3), 1, "one that is certainly another");
    assert_eq!(broke(2, Some(9), 4), 2, "and of another endpoint");
    assert_eq!(broke(2, Some(9), 203), 1, "a while later only the last counts");
    assert_eq!(end(&endpoints, (3, Some(10)), BROKEN, 1, start + ms(203)), 0, "other workers have their own");
    assert_eq!(end(&endpoints, (4, None), REFUSED, 0, start + ms(204)), 0, "no connection was there to break");
    assert_eq!(end(&endpoints, (5, Some(11)), ORDERLY, 0, start + ms(205)), 0, "nor here");
    assert_eq!(broke(6, Some(12), 1_000), 0, "alone");
}

#[test]
fn independent_breaks_a_few_times_a_second_are_told_by_a_number_and_not_by_a_guess() {
    // Several a second, of different endpoints, as a waypoint for a few hundred pods has them.
    let (endpoints, start) = (Endpoints::new(1_024), Instant::now());
    for number in 0..200_u8 {
        let at = start + ms(150 * u64::from(number));
        let mut tunnel = endpoints.open(ip(number), None, at);
        tunnel.on_connection(u64::from(number), at);
        let reset = tunnel.ended(&BROKEN, 0, at);
        assert_eq!((reset.class, reset.others_at_once), (ResetClass::Broken, usize::from(number > 0)));
    }
}

#[test]
fn memory_is_bounded_and_old_breaks_are_forgotten() {
    let (endpoints, start) = (Endpoints::new(1_024), Instant::now());
    for host in 0..=255 {
        end(&endpoints, (host, None), REFUSED, 0, start);
    }
    let kept = (0..=255).filter(|host| endpoints.last_break(ip(*host), 0, ms(1), start).is_some()).count();
    assert_eq!(kept, 64);
    end(&endpoints, (1, None), REFUSED, 0, start + Duration::from_secs(61));
    assert_eq!(endpoints.last_break(ip(255), 0, Duration::from_secs(100), start + Duration::from_secs(61)), None);
}
