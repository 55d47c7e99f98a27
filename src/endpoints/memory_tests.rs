//! What the registry keeps, in numbers: tunnels come and go, and leave nothing behind.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::endpoints::{CloseAfter, Cluster, DEFAULT_CAPACITY, End, Endpoints, ResetEvidence};

const BROKEN: ResetEvidence =
    ResetEvidence { end: End::Broken, idle: None, waited: Some(Duration::ZERO), answering: false };

/// 100,000 tunnels over 1,000 endpoints: each endpoint leaves and returns, tunnels overlap, some break, all are to be
/// closed some time after a removal. All are over at the end.
fn round(endpoints: &Arc<Endpoints>, number: u64, start: Instant) {
    let cluster = Cluster::named("echo");
    let ip = |number: u64| IpAddr::from([10, 1, (number / 250) as u8, (number % 250) as u8]);
    let mut open = VecDeque::new();
    for tunnel in 0..100_000 {
        let now = start + Duration::from_micros(10 * tunnel);
        let ip = ip(tunnel % 1_000);
        let mut one = endpoints.open(ip, None, now);
        one.on_connection(number * 1_000_000 + tunnel / 3, now);
        one.close_after_removal(CloseAfter { after: Duration::from_secs(3_600), jitter: 0.1 }, Arc::new(|| {}));
        open.push_back(one);
        if tunnel % 7 == 0 {
            endpoints.removed(ip, cluster, false, now);
            endpoints.added(ip, cluster);
        }
        if open.len() > 500
            && let Some(oldest) = open.pop_front()
            && tunnel % 5 == 0
        {
            let _ = oldest.ended(&BROKEN, (tunnel % 100) as u32, now);
        }
    }
}

#[test]
fn a_hundred_thousand_tunnels_over_a_thousand_endpoints_leave_what_the_registry_keeps_where_it_was() {
    let (endpoints, start) = (Endpoints::new(DEFAULT_CAPACITY), Instant::now());
    let mut kept = Vec::new();
    for number in 0..4 {
        round(&endpoints, number, start + Duration::from_secs(number));
        kept.push(endpoints.kept());
        let totals = endpoints.totals();
        assert_eq!((totals.endpoints, totals.tunnels, totals.connections), (1_000, 0, 0));
    }
    assert_eq!(kept[0].closing, 0, "a tunnel that is over is not to be closed");
    assert!(kept[0].connections <= 64 * 1_000 && kept[0].breaks <= 64 * 64, "{:?}", kept[0]);
    assert!(kept.windows(2).all(|pair| pair[0] == pair[1]), "grown: {kept:?}");
}
