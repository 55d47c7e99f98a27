use super::*;
use crate::watch::testing::{host, read};

#[derive(Default)]
struct Reported(Vec<String>);

impl Sink for Reported {
    fn added(&mut self, ip: IpAddr, cluster: &str) {
        self.0.push(format!("+{ip} {cluster}"));
    }

    fn removed(&mut self, ip: IpAddr, cluster: &str, still_listed: bool) {
        self.0.push(format!("-{ip} {cluster} {still_listed}"));
    }
}

fn apply(polled: &mut Polled, listings: &mut Listings, text: &str) -> Vec<String> {
    let mut reported = Reported::default();
    polled.apply(read(text), &Statuses::default(), listings, &mut reported);
    reported.0.sort();
    reported.0
}

#[test]
fn polls_report_additions_removals_and_returns_between_two_polls() {
    let (mut polled, mut listings) = (Polled::default(), Listings::default());
    let text = |cx| format!("a::added_via_api::true\n{}b::added_via_api::true\n", host("a", "10.0.0.1", cx, "healthy"));
    assert_eq!(apply(&mut polled, &mut listings, &text(3)), ["+10.0.0.1 a"]);
    assert!(apply(&mut polled, &mut listings, &text(4)).is_empty(), "counters that grow are traffic");
    assert_eq!(
        apply(&mut polled, &mut listings, &text(1)),
        ["+10.0.0.1 a", "-10.0.0.1 a false"],
        "counters that fall are a return"
    );
    assert_eq!(apply(&mut polled, &mut listings, "a::added_via_api::true\n"), ["-10.0.0.1 a false"]);
    assert_eq!(apply(&mut polled, &mut listings, &text(1)), ["+10.0.0.1 a"]);
    assert_eq!(
        apply(&mut polled, &mut listings, "b::added_via_api::true\n"),
        ["-10.0.0.1 a false"],
        "a cluster that is gone takes its endpoints with it"
    );
}

#[test]
fn a_draining_endpoint_counts_as_removed_and_ports_of_one_pod_as_one() {
    let (mut polled, mut listings) = (Polled::default(), Listings::default());
    let two_ports =
        host("a", "10.0.0.1", 1, "healthy").replace(":8080", ":9090") + &host("a", "10.0.0.1", 1, "healthy");
    assert_eq!(apply(&mut polled, &mut listings, &two_ports), ["+10.0.0.1 a"]);
    assert_eq!(
        apply(&mut polled, &mut listings, &host("a", "10.0.0.1", 2, "/eds_status_draining")),
        ["-10.0.0.1 a false"]
    );
    assert_eq!(
        apply(&mut polled, &mut listings, &host("a", "10.0.0.1", 2, "/degraded_eds_health")),
        ["+10.0.0.1 a"],
        "degraded is not removed by default"
    );
    assert_eq!(
        apply(&mut polled, &mut listings, &host("a", "10.0.0.1", 2, "/failed_eds_health")),
        ["-10.0.0.1 a false"]
    );
    let one_of_two =
        host("a", "10.0.0.1", 2, "/failed_eds_health") + &host("a", "10.0.0.1", 1, "healthy").replace(":8080", ":9090");
    assert_eq!(
        apply(&mut polled, &mut listings, &one_of_two),
        ["+10.0.0.1 a"],
        "a pod is there while one of its ports is, as for the validator"
    );
}

#[test]
fn one_port_that_was_away_is_seen_beside_another_that_was_not() {
    let (mut polled, mut listings) = (Polled::default(), Listings::default());
    let ports = |one, two| {
        host("a", "10.0.0.1", one, "healthy") + &host("a", "10.0.0.1", two, "healthy").replace(":8080", ":9090")
    };
    apply(&mut polled, &mut listings, &ports(5, 5));
    assert_eq!(
        apply(&mut polled, &mut listings, &ports(90, 0)),
        ["+10.0.0.1 a", "-10.0.0.1 a false"],
        "traffic on one port must not hide that the other began anew"
    );
    assert!(apply(&mut polled, &mut listings, &host("a", "10.0.0.1", 91, "healthy")).is_empty(), "one port is enough");
}

/// A10: when all of them began anew, Envoy may have made the cluster anew, or all pods were replaced.
#[test]
fn endpoints_that_all_began_anew_at_once_are_taken_for_returns() {
    let (mut polled, mut listings) = (Polled::default(), Listings::default());
    let text = |one, two, unused| {
        let hosts = [("10.0.0.1", one), ("10.0.0.2", two), ("10.0.0.3", unused)];
        hosts.iter().map(|(ip, cx)| host("a", ip, *cx, "healthy")).collect::<String>()
    };
    apply(&mut polled, &mut listings, &text(9, 7, 0));
    let all = ["+10.0.0.1 a", "+10.0.0.2 a", "-10.0.0.1 a false", "-10.0.0.2 a false"];
    assert_eq!(apply(&mut polled, &mut listings, &text(1, 0, 0)), all, "a handshake is cheaper than a 503");
    apply(&mut polled, &mut listings, &text(5, 5, 0));
    let returned = apply(&mut polled, &mut listings, &text(6, 0, 0));
    assert_eq!(returned, ["+10.0.0.2 a", "-10.0.0.2 a false"], "one began anew while the other went on");
}

#[test]
fn a_cluster_that_two_answers_leave_out_is_gone_also_where_the_validator_reported_it() {
    let (mut polled, mut listings) = (Polled::default(), Listings::default());
    let with = format!("a::added_via_api::true\n{}b::added_via_api::true\n", host("a", "10.0.0.1", 1, "healthy"));
    apply(&mut polled, &mut listings, &with);
    listings.update(Source::Validator, "a", vec!["10.0.0.1".parse().expect("an address")], &mut Reported::default());
    let without = "b::added_via_api::true\n";
    assert!(apply(&mut polled, &mut listings, without).is_empty(), "one answer may be older than the cluster");
    assert!(apply(&mut polled, &mut listings, &with).is_empty());
    assert!(apply(&mut polled, &mut listings, without).is_empty(), "two, but not in a row");
    assert_eq!(apply(&mut polled, &mut listings, without), ["-10.0.0.1 a false"]);
}

#[test]
fn clusters_that_share_an_eds_resource_share_its_listing() {
    let (mut polled, mut listings) = (Polled::default(), Listings::default());
    let cluster = |name: &str| {
        format!(
            "{name}::added_via_api::true\n{name}::eds_service_name::r\n{name}::envoy://l/10.0.0.1:80::cx_total::1\n"
        )
    };
    let both = cluster("a") + &cluster("b");
    assert_eq!(apply(&mut polled, &mut listings, &both), ["+10.0.0.1 r"]);
    assert!(apply(&mut polled, &mut listings, &cluster("b")).is_empty(), "one reader is left");
    let mut reported = Reported::default();
    listings.update(Source::Validator, "r", Vec::new(), &mut reported);
    assert!(apply(&mut polled, &mut listings, &both).is_empty(), "the validator reports it now");
    assert!(!polled.is_needed(), "so polls have nothing to do");
}
