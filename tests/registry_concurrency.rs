//! The registry under a scheduler that tries orders of execution: the same source, compiled against
//! `shuttle`'s locks and atomics instead of the standard library's.
//!
//! The main thread observes removals and returns (one thread, as in Envoy), while workers open and
//! close tunnels. Logical time stands between "the call has returned" and "the call has not begun":
//! only such pairs are judged, as the invariants speak of nothing else.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail so")]

/// What `crate::sync` is in the module: here, with a scheduler behind it.
mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use shuttle::sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    };
}

#[allow(dead_code, unreachable_pub, unused_imports, reason = "the module's own source, of which a part is driven")]
#[path = "../src/endpoints/mod.rs"]
mod endpoints;

use std::{net::IpAddr, time::Instant};

use endpoints::{CloseAfter, Cluster, End, Endpoints, ResetEvidence, Totals};
use sync::{Arc, AtomicU64, Mutex, Ordering};

const ITERATIONS: usize = 2_000;

const BROKEN: ResetEvidence =
    ResetEvidence { end: End::Broken, idle: None, waited: Some(std::time::Duration::ZERO), answering: false };

/// A clock that every event moves.
#[derive(Default)]
struct Clock(AtomicU64);

/// One event with the times before its call began and after it returned.
#[derive(Debug, Clone, Copy)]
struct Span {
    began: u64,
    returned: u64,
}

impl Clock {
    fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    fn span<R>(&self, act: impl FnOnce() -> R) -> (R, Span) {
        let began = self.tick();
        let result = act();
        (result, Span { began, returned: self.tick() })
    }
}

fn ip(octet: u8) -> IpAddr {
    IpAddr::from([10, 244, 0, octet])
}

/// What happened to one endpoint: barriers, and tunnels with their generations.
#[derive(Default)]
struct Log {
    barriers: Vec<Span>,
    tunnels: Vec<(u64, Span)>,
}

/// No tunnel that was opened after a barrier shares a generation with one opened before it.
fn check(log: &Log) {
    for barrier in &log.barriers {
        for (before, _) in log.tunnels.iter().filter(|(_, span)| span.returned < barrier.began) {
            for (after, span) in log.tunnels.iter().filter(|(_, span)| span.began > barrier.returned) {
                assert_ne!(
                    before, after,
                    "a tunnel opened after {barrier:?} ({span:?}) shares the pool of one before it"
                );
            }
        }
    }
}

/// What befalls one endpoint; each step is handed to the observer, which notes its time.
type Change = fn(&Endpoints, IpAddr, Instant, &mut dyn FnMut(&dyn Fn()));

/// Churn on the main thread, tunnels on `workers` threads, over `addresses` endpoints.
fn run(capacity: usize, workers: usize, addresses: u8, change: Change) {
    let now = Instant::now();
    let endpoints = Endpoints::new(capacity);
    let clock = Arc::new(Clock::default());
    let logs: Arc<Vec<Mutex<Log>>> = Arc::new((0..addresses).map(|_| Mutex::default()).collect());
    let threads: Vec<_> = (0..workers)
        .map(|worker| {
            let (endpoints, clock, logs) = (Arc::clone(&endpoints), Arc::clone(&clock), Arc::clone(&logs));
            shuttle::thread::spawn(move || {
                let mut held = Vec::new();
                for round in 0..2 * usize::from(addresses) {
                    let address = round % usize::from(addresses);
                    let open = || endpoints.open(ip(address as u8), None, now);
                    let (mut tunnel, span) = clock.span(open);
                    logs[address].lock().unwrap().tunnels.push((tunnel.generation().get(), span));
                    tunnel.on_connection(1 + tunnel.generation().get() * 8 + worker as u64, now);
                    held.push(tunnel);
                    if held.len() > 2 {
                        let oldest = held.remove(0);
                        if round % 2 == 0 {
                            drop(oldest);
                        } else {
                            let _ = oldest.ended(&BROKEN, worker as u32, now);
                        }
                    }
                }
            })
        })
        .collect();
    for address in 0..addresses {
        let mut observe = |act: &dyn Fn()| {
            let ((), span) = clock.span(act);
            logs[usize::from(address)].lock().unwrap().barriers.push(span);
        };
        change(&endpoints, ip(address), now, &mut observe);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    for log in logs.iter() {
        check(&log.lock().unwrap());
    }
    let Totals { tunnels, connections, .. } = endpoints.totals();
    assert_eq!((tunnels, connections), (0, 0), "every opening is paired with a close");
}

/// A removal and the return, by one cluster.
fn replaced(endpoints: &Endpoints, ip: IpAddr, now: Instant, observe: &mut dyn FnMut(&dyn Fn())) {
    let cluster = Cluster::named("echo");
    observe(&|| endpoints.removed(ip, cluster, false, now));
    observe(&|| endpoints.added(ip, cluster));
}

/// The address moves to another cluster in one update, which the removal does not leave unlisted.
fn moved(endpoints: &Endpoints, ip: IpAddr, now: Instant, observe: &mut dyn FnMut(&dyn Fn())) {
    observe(&|| endpoints.removed(ip, Cluster::named("echo"), true, now));
    observe(&|| endpoints.added(ip, Cluster::named("other")));
}

/// Every endpoint is suspect.
fn suspected(endpoints: &Endpoints, _ip: IpAddr, _now: Instant, observe: &mut dyn FnMut(&dyn Fn())) {
    observe(&|| endpoints.suspect_all());
}

#[test]
fn tunnels_on_two_workers_and_a_replacement_keep_apart_in_every_order() {
    shuttle::check_random(|| run(1_024, 2, 1, replaced), ITERATIONS);
    shuttle::check_pct(|| run(1_024, 2, 1, replaced), ITERATIONS, 3);
}

#[test]
fn tunnels_and_a_move_between_services_keep_apart_in_every_order() {
    shuttle::check_random(|| run(1_024, 2, 1, moved), ITERATIONS);
}

#[test]
fn tunnels_and_a_suspicion_of_everything_keep_apart_in_every_order() {
    shuttle::check_random(|| run(1_024, 2, 1, suspected), ITERATIONS / 2);
}

#[test]
fn tunnels_and_replacements_keep_apart_while_entries_are_evicted() {
    // One entry per shard, and more endpoints than shards: entries come and go under the workers' hands.
    shuttle::check_random(|| run(1, 2, 90, replaced), 15);
}

#[test]
fn a_tunnel_is_closed_after_a_removal_whichever_of_the_two_is_seen_first() {
    shuttle::check_random(
        || {
            let now = Instant::now();
            let after = |seconds| now + std::time::Duration::from_secs(seconds);
            let endpoints = Endpoints::new(1_024);
            let closed = Arc::new(AtomicU64::new(0));
            let worker = {
                let (endpoints, closed) = (Arc::clone(&endpoints), Arc::clone(&closed));
                shuttle::thread::spawn(move || {
                    let mut tunnel = endpoints.open(ip(1), None, now);
                    let close = move || {
                        closed.fetch_add(1, Ordering::SeqCst);
                    };
                    let five = CloseAfter { after: std::time::Duration::from_secs(5), jitter: 0.0 };
                    tunnel.close_after_removal(five, std::sync::Arc::new(close));
                    tunnel
                })
            };
            endpoints.removed(ip(1), Cluster::named("echo"), false, now);
            let tunnel = worker.join().unwrap();
            endpoints.close_removed(after(4));
            assert_eq!(closed.load(Ordering::SeqCst), 0, "not before its time");
            endpoints.close_removed(after(5));
            assert_eq!(closed.load(Ordering::SeqCst), 1, "the tunnel was forgotten");
            assert!(tunnel.is_due(after(5)));
            drop(tunnel);
            endpoints.close_removed(after(6));
            assert_eq!(closed.load(Ordering::SeqCst), 1, "it is over");
        },
        ITERATIONS,
    );
}

#[test]
fn a_tunnel_that_ends_while_its_endpoint_leaves_and_its_time_comes_is_told_at_most_once() {
    shuttle::check_random(
        || {
            let now = Instant::now();
            let endpoints = Endpoints::new(1_024);
            let closed = Arc::new(AtomicU64::new(0));
            let mut tunnel = endpoints.open(ip(1), None, now);
            let told = Arc::clone(&closed);
            let close = move || {
                told.fetch_add(1, Ordering::SeqCst);
            };
            let at_once = CloseAfter { after: std::time::Duration::ZERO, jitter: 0.0 };
            tunnel.close_after_removal(at_once, std::sync::Arc::new(close));
            let worker = shuttle::thread::spawn(move || drop(tunnel));
            endpoints.removed(ip(1), Cluster::named("echo"), false, now);
            endpoints.close_removed(now);
            endpoints.close_removed(now);
            assert!(closed.load(Ordering::SeqCst) <= 1);
            worker.join().unwrap();
            let told = closed.load(Ordering::SeqCst);
            endpoints.close_removed(now);
            assert_eq!(closed.load(Ordering::SeqCst), told, "a tunnel that is over is told nothing");
        },
        ITERATIONS,
    );
}

/// Workers open and close tunnels of one endpoint, which leaves and returns, ages, is suspected and forgotten. Once
/// a pool is over and carries nothing, no tunnel joins it: what would close its connections harms nobody.
fn over_and_empty_is_final() {
    let now = Instant::now();
    let endpoints = Endpoints::new(1);
    let threads: Vec<_> = (0..2_u32)
        .map(|worker| {
            let endpoints = Arc::clone(&endpoints);
            shuttle::thread::spawn(move || {
                for _ in 0..3 {
                    drop(endpoints.open_pooled(worker % 2, ip(1), None, now));
                    drop(endpoints.open_pooled(worker % 2, ip(65), None, now));
                }
            })
        })
        .collect();
    let (mut over, mut empty) = (Vec::new(), Vec::new());
    for step in 0..4 {
        match step % 3 {
            0 => endpoints.removed(ip(1), Cluster::named("a"), false, now),
            1 => endpoints.added(ip(1), Cluster::named("a")),
            _ => endpoints.suspect_all(),
        }
        over.extend(endpoints.take_ended_pools());
        empty.extend(over.iter().filter(|pool| pool.tunnels() == 0).cloned());
        for pool in &empty {
            assert_eq!(pool.tunnels(), 0, "a tunnel joined a pool that was over and empty: {pool:?}");
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for pool in empty {
        assert_eq!(pool.tunnels(), 0, "a tunnel joined a pool that was over and empty: {pool:?}");
    }
}

#[test]
fn no_tunnel_joins_a_pool_that_is_over_and_empty() {
    shuttle::check_random(over_and_empty_is_final, ITERATIONS);
}
