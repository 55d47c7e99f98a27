use super::*;
use crate::watch::admin::{Parser, Unreadable};

#[derive(Default)]
struct Heard(Vec<String>);

impl Sink for Heard {
    fn added(&mut self, ip: IpAddr, cluster: &str) {
        self.0.push(format!("+{ip} {cluster}"));
    }

    fn removed(&mut self, ip: IpAddr, cluster: &str, still_listed: bool) {
        self.0.push(format!("-{ip} {cluster} {still_listed}"));
    }
}

fn read(text: &str) -> Clusters {
    let mut parser = Parser::new();
    parser.feed(text.as_bytes());
    parser.finish().expect("a complete text")
}

fn host(cluster: &str, ip: &str, cx_total: u64, flags: &str) -> String {
    let host = format!("{cluster}::envoy://connect_originate/{ip}:8080");
    format!(
        "{host}::cx_active::1\n{host}::cx_total::{cx_total}\n{host}::rq_total::{cx_total}\n{host}::health_flags::{flags}\n{host}::hostname::\n"
    )
}

fn apply(polled: &mut Polled, views: &mut Views, text: &str) -> Vec<String> {
    let mut heard = Heard::default();
    polled.apply(read(text), &Statuses::default(), views, &mut heard);
    heard.0.sort();
    heard.0
}

#[test]
fn polls_report_additions_removals_and_returns_between_two_polls() {
    let (mut polled, mut views) = (Polled::default(), Views::default());
    let text = |cx| format!("a::added_via_api::true\n{}b::added_via_api::true\n", host("a", "10.0.0.1", cx, "healthy"));
    assert_eq!(apply(&mut polled, &mut views, &text(3)), ["+10.0.0.1 a"]);
    assert!(apply(&mut polled, &mut views, &text(4)).is_empty(), "counters that grow are traffic");
    assert_eq!(
        apply(&mut polled, &mut views, &text(1)),
        ["+10.0.0.1 a", "-10.0.0.1 a false"],
        "counters that fall are a return"
    );
    assert_eq!(apply(&mut polled, &mut views, "a::added_via_api::true\n"), ["-10.0.0.1 a false"]);
    assert_eq!(apply(&mut polled, &mut views, &text(1)), ["+10.0.0.1 a"]);
    assert_eq!(
        apply(&mut polled, &mut views, "b::added_via_api::true\n"),
        ["-10.0.0.1 a false"],
        "a cluster that is gone takes its endpoints with it"
    );
}

#[test]
fn a_draining_endpoint_counts_as_removed_and_ports_of_one_pod_as_one() {
    let (mut polled, mut views) = (Polled::default(), Views::default());
    let two_ports =
        host("a", "10.0.0.1", 1, "healthy").replace(":8080", ":9090") + &host("a", "10.0.0.1", 1, "healthy");
    assert_eq!(apply(&mut polled, &mut views, &two_ports), ["+10.0.0.1 a"]);
    assert_eq!(
        apply(&mut polled, &mut views, &host("a", "10.0.0.1", 2, "/eds_status_draining")),
        ["-10.0.0.1 a false"]
    );
    assert_eq!(
        apply(&mut polled, &mut views, &host("a", "10.0.0.1", 2, "/degraded_eds_health")),
        ["+10.0.0.1 a"],
        "degraded is not removed by default"
    );
    assert_eq!(apply(&mut polled, &mut views, &host("a", "10.0.0.1", 2, "/failed_eds_health")), ["-10.0.0.1 a false"]);
    let one_of_two =
        host("a", "10.0.0.1", 2, "/failed_eds_health") + &host("a", "10.0.0.1", 1, "healthy").replace(":8080", ":9090");
    assert_eq!(
        apply(&mut polled, &mut views, &one_of_two),
        ["+10.0.0.1 a"],
        "a pod is there while one of its ports is, as for the validator"
    );
}

#[test]
fn one_port_that_was_away_is_seen_beside_another_that_was_not() {
    let (mut polled, mut views) = (Polled::default(), Views::default());
    let ports = |one, two| {
        host("a", "10.0.0.1", one, "healthy") + &host("a", "10.0.0.1", two, "healthy").replace(":8080", ":9090")
    };
    apply(&mut polled, &mut views, &ports(5, 5));
    assert_eq!(
        apply(&mut polled, &mut views, &ports(90, 0)),
        ["+10.0.0.1 a", "-10.0.0.1 a false"],
        "traffic on one port must not hide that the other began anew"
    );
    assert!(apply(&mut polled, &mut views, &host("a", "10.0.0.1", 91, "healthy")).is_empty(), "one port is enough");
}

#[test]
fn a_cluster_with_a_new_configuration_is_no_return_of_its_endpoints() {
    let (mut polled, mut views) = (Polled::default(), Views::default());
    let text = |one, two, unused| {
        let hosts = [("10.0.0.1", one), ("10.0.0.2", two), ("10.0.0.3", unused)];
        hosts.iter().map(|(ip, cx)| host("a", ip, *cx, "healthy")).collect::<String>()
    };
    apply(&mut polled, &mut views, &text(9, 7, 0));
    assert!(apply(&mut polled, &mut views, &text(1, 0, 0)).is_empty(), "all began anew: Envoy made the cluster anew");
    apply(&mut polled, &mut views, &text(5, 5, 0));
    let returned = apply(&mut polled, &mut views, &text(6, 0, 0));
    assert_eq!(returned, ["+10.0.0.2 a", "-10.0.0.2 a false"], "one began anew while the other went on");
    apply(&mut polled, &mut views, &host("a", "10.0.0.1", 7, "healthy"));
    let alone = apply(&mut polled, &mut views, &host("a", "10.0.0.1", 0, "healthy"));
    assert_eq!(alone, ["+10.0.0.1 a", "-10.0.0.1 a false"], "a single one is taken for a return: the safe side");
}

#[test]
fn a_cluster_that_two_answers_leave_out_is_gone_also_where_the_validator_had_the_word() {
    let (mut polled, mut views) = (Polled::default(), Views::default());
    let with = format!("a::added_via_api::true\n{}b::added_via_api::true\n", host("a", "10.0.0.1", 1, "healthy"));
    apply(&mut polled, &mut views, &with);
    views.update(Source::Validator, "a", vec!["10.0.0.1".parse().expect("an address")], &mut Heard::default());
    let without = "b::added_via_api::true\n";
    assert!(apply(&mut polled, &mut views, without).is_empty(), "one answer may be older than the cluster");
    assert!(apply(&mut polled, &mut views, &with).is_empty());
    assert!(apply(&mut polled, &mut views, without).is_empty(), "two, but not in a row");
    assert_eq!(apply(&mut polled, &mut views, without), ["-10.0.0.1 a false"]);
}

#[test]
fn clusters_that_share_an_eds_resource_share_its_listing() {
    let (mut polled, mut views) = (Polled::default(), Views::default());
    let cluster = |name: &str| {
        format!("{name}::added_via_api::true\n{name}::eds_service_name::r\n{}", host(name, "10.0.0.1", 1, "healthy"))
    };
    let both = cluster("a") + &cluster("b");
    assert_eq!(apply(&mut polled, &mut views, &both), ["+10.0.0.1 r"]);
    assert!(apply(&mut polled, &mut views, &cluster("b")).is_empty(), "one reader is left");
    let mut heard = Heard::default();
    views.update(Source::Validator, "r", Vec::new(), &mut heard);
    assert!(apply(&mut polled, &mut views, &both).is_empty(), "the validator has the word on it now");
    assert!(!polled.is_needed(), "so polls have nothing to do");
}

#[test]
fn plain_hosts_are_read_in_eds_clusters_and_elsewhere_left_to_envoy() {
    let text = "connect_originate::added_via_api::true\nconnect_originate::10.0.0.1:15008::cx_total::3\n\
                d::added_via_api::true\nd::[fd00::1]:80::cx_total::1\n";
    assert!(read(text).values().all(|cluster| cluster.hosts.is_empty()), "they come and go with traffic");
    let eds = read(
        "e::added_via_api::true\ne::eds_service_name::e\ne::[fd00::1]:80::rq_total::1\ne::10.0.0.1:80::cx_total::2\n",
    );
    let ips: Vec<String> = eds["e"].hosts.iter().map(|(address, _)| address.to_string()).collect();
    assert_eq!(ips, ["10.0.0.1:80", "[fd00::1]:80"]);
    let mapped = "m::added_via_api::true\nm::eds_service_name::m\nm::[::ffff:10.0.0.1]:80::cx_total::1\n\
                  m::envoy://connect_originate/[::ffff:10.0.0.2]:80::cx_total::1\n";
    let ips: Vec<String> = read(mapped)["m"].hosts.iter().map(|(address, _)| address.to_string()).collect();
    assert_eq!(ips, ["10.0.0.1:80", "10.0.0.2:80"], "an IPv4 address mapped into IPv6 leads to the same pod");
    let v6 = read("a::envoy://connect_originate/[fd00::7]:80::cx_total::1\n");
    assert_eq!(v6["a"].hosts[0].0.to_string(), "[fd00::7]:80", "the endpoint id of a tunnel may be IPv6");
}

#[test]
fn chunks_may_end_anywhere() {
    let text = host("inbound-vip|80|http|echo.default", "10.0.0.1", 7, "healthy");
    let whole = read(&text);
    for cut in 0..text.len() {
        let mut parser = Parser::new();
        let (head, tail) = text.as_bytes().split_at(cut);
        parser.feed(head);
        parser.feed(tail);
        assert_eq!(parser.finish().as_ref(), Ok(&whole), "cut at {cut}");
    }
}

#[test]
fn unreadable_answers_are_told_apart() {
    let finish = |text: &[u8]| {
        let mut parser = Parser::new();
        parser.feed(text);
        parser.finish()
    };
    assert_eq!(finish(b""), Err(Unreadable::UnknownFormat), "Envoy never has no cluster at all");
    assert_eq!(finish(b"a::b::cx_total::1\nc::d"), Err(Unreadable::Truncated));
    assert_eq!(finish(b"<html>\nno\n"), Err(Unreadable::UnknownFormat));
    assert_eq!(finish(&vec![b'x'; Parser::MAX_LINE + 1]), Err(Unreadable::LineTooLong));
    assert!(finish(b"a::\xff::cx_total::1\na::b::added_via_api::true\n").is_ok(), "a line of bad bytes is passed over");
}

#[test]
fn the_rhythm_slows_down_when_quiet_and_never_polls_twice_at_once() {
    let (short, long) = (Duration::from_millis(250), Duration::from_secs(5));
    let mut rhythm = Rhythm::new(short, long);
    let mut now = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..7 {
        assert!(rhythm.start(now), "due after the pause that it named itself");
        assert!(!rhythm.start(now + long * 10), "one poll at a time");
        rhythm.done(false, Duration::ZERO);
        pauses.push(rhythm.wait(now));
        now += rhythm.wait(now);
    }
    assert_eq!(pauses.first(), Some(&(short * 2)));
    assert_eq!(pauses.last(), Some(&long));
    assert!(rhythm.start(now));
    rhythm.done(false, Duration::ZERO);
    rhythm.hint();
    assert_eq!(rhythm.wait(now), short, "a hint brings the next poll near, but not nearer than the shortest pause");
}

#[test]
fn a_hint_during_a_poll_is_not_lost_to_it() {
    let (short, long) = (Duration::from_millis(250), Duration::from_secs(5));
    let mut rhythm = Rhythm::new(short, long);
    let now = Instant::now();
    assert!(rhythm.start(now));
    rhythm.hint();
    rhythm.done(false, Duration::ZERO);
    assert_eq!(rhythm.wait(now), short, "the answer may be older than what the hint is about");
}

#[test]
fn expensive_polls_are_spread_out() {
    let (short, long) = (Duration::from_millis(250), Duration::from_secs(5));
    let mut rhythm = Rhythm::new(short, long);
    let now = Instant::now();
    assert!(rhythm.start(now));
    rhythm.done(true, Duration::from_millis(10));
    assert_eq!(rhythm.wait(now), Duration::from_secs(1), "a hundredth of the main thread's time, even after a change");
    rhythm.hint();
    assert_eq!(rhythm.wait(now), Duration::from_secs(1), "nor for a hint");
    assert!(rhythm.start(now + Duration::from_secs(1)));
    rhythm.done(true, Duration::from_secs(1));
    assert_eq!(rhythm.wait(now), Duration::from_secs(6), "but never less often than was asked for");
}
