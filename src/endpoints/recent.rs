//! Tunnels that broke under a request on this worker a moment ago.
//!
//! A request that was retried ends well, and at its end Envoy shows its last attempt only. What broke
//! the earlier one is known to the worker all the same: an internal listener's connections live on the
//! worker of the request that uses them, and a tunnel is explained before its request is told.

use std::{
    cell::RefCell,
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::Closed;

/// A tunnel that broke while a request was waiting on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Break {
    /// When.
    pub at: Instant,
    /// The endpoint.
    pub ip: IpAddr,
    /// Why.
    pub closed: Closed,
}

thread_local! {
    static BREAKS: RefCell<VecDeque<Break>> = const { RefCell::new(VecDeque::new()) };
}

impl Break {
    /// Breaks that a worker remembers, and for how long: a retry follows within Envoy's back-off (25 ms,
    /// at most 250 ms by default), and what is forgotten is merely left unexplained.
    const MAX: usize = 64;
    const KEPT: Duration = Duration::from_secs(60);

    /// Remembers a break on this worker.
    pub(super) fn note(self) {
        BREAKS.with_borrow_mut(|breaks| {
            if breaks.len() >= Self::MAX {
                breaks.pop_front();
            }
            breaks.push_back(self);
        });
    }

    /// The last of this worker's breaks since a request began, if all of them have one cause.
    ///
    /// Other requests' breaks may be among them; where they differ in class, none is named.
    #[must_use]
    pub fn here_since(start: Instant, now: Instant) -> Option<Self> {
        BREAKS.with_borrow_mut(|breaks| {
            breaks.retain(|one| now.saturating_duration_since(one.at) <= Self::KEPT);
            let mut since = breaks.iter().rev().take_while(|one| one.at >= start);
            let last = *since.next()?;
            since.all(|one| one.closed.class == last.closed.class).then_some(last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{Endpoints, ResetClass, ResetEvidence};

    fn broke(at: Instant, host: u8, class: ResetClass) {
        Break { at, ip: IpAddr::from([10, 244, 1, host]), closed: Closed { class, connection: None } }.note();
    }

    #[test]
    fn a_break_is_named_only_while_its_cause_is_not_in_doubt() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let class = |since| Break::here_since(since, start + ms(9)).map(|one| (one.closed.class, one.ip));
        assert_eq!(class(start), None, "nothing broke");
        broke(start + ms(1), 1, ResetClass::Stale);
        broke(start + ms(3), 2, ResetClass::Stale);
        assert_eq!(class(start), Some((ResetClass::Stale, IpAddr::from([10, 244, 1, 2]))));
        assert_eq!(class(start + ms(4)), None, "what broke before the request began is not its business");
        broke(start + ms(5), 3, ResetClass::Fresh);
        assert_eq!(class(start), None, "two causes, and no telling which was this request's");
        assert_eq!(class(start + ms(4)).map(|(class, _)| class), Some(ResetClass::Fresh));
    }

    #[test]
    fn memory_is_bounded_and_old_breaks_are_forgotten() {
        let start = Instant::now();
        for host in 0..=255 {
            broke(start, host, ResetClass::Aged);
        }
        assert_eq!(BREAKS.with_borrow(VecDeque::len), Break::MAX);
        assert_eq!(Break::here_since(start, start + Break::KEPT * 2), None);
        assert_eq!(BREAKS.with_borrow(VecDeque::len), 0);
    }

    #[test]
    fn tunnels_that_may_share_a_connection_are_no_restart_of_the_peer() {
        let (endpoints, now) = (Endpoints::new(8), Instant::now());
        let evidence =
            ResetEvidence { established: true, waited: Some(Duration::from_millis(5)), ..ResetEvidence::default() };
        let broke = |connection: Option<u64>| {
            let mut tunnel = endpoints.open(IpAddr::from([10, 244, 1, 9]), None, now);
            if let Some(id) = connection {
                tunnel.on_connection(id, now);
            }
            tunnel.broke(evidence, now).class
        };
        assert_eq!([Some(7), None, Some(7)].map(broke), [ResetClass::Fresh; 3], "one connection, as far as is known");
        assert_eq!(broke(Some(8)), ResetClass::PeerRestart, "another one, for certain");
        let last = Break::here_since(now, now).map(|one| one.closed.class);
        assert_eq!(last, None, "and with it the cause of what broke here is in doubt");
    }
}
