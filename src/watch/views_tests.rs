use std::net::Ipv4Addr;

use super::*;

/// What, the address's last byte, the cluster, and whether the address is listed afterwards.
type Event = (&'static str, u8, String, bool);

#[derive(Debug, Default)]
struct Heard(Vec<Event>);

impl Sink for Heard {
    fn added(&mut self, ip: IpAddr, cluster: &str) {
        self.0.push(("added", last(ip), cluster.to_owned(), true));
    }

    fn removed(&mut self, ip: IpAddr, cluster: &str, still_listed: bool) {
        self.0.push(("removed", last(ip), cluster.to_owned(), still_listed));
    }
}

fn last(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    }
}

fn ips(numbers: &[u8]) -> Vec<IpAddr> {
    numbers.iter().map(|number| IpAddr::V4(Ipv4Addr::new(10, 244, 0, *number))).collect()
}

fn heard(act: impl FnOnce(&mut Heard) -> Change) -> (Vec<Event>, (u64, u64)) {
    let mut heard = Heard::default();
    let change = act(&mut heard);
    heard.0.sort();
    (heard.0, (change.added, change.removed))
}

#[test]
fn an_update_reports_only_what_it_changes() {
    let mut views = Views::default();
    let (_, change) = heard(|sink| views.update(Source::Validator, "a", ips(&[1, 2]), sink));
    assert_eq!(change, (2, 0));
    let (events, change) = heard(|sink| views.update(Source::Validator, "a", ips(&[2, 3]), sink));
    assert_eq!(events, [("added", 3, "a".to_owned(), true), ("removed", 1, "a".to_owned(), false)]);
    assert_eq!(change, (1, 1));
    let (events, _) = heard(|sink| views.update(Source::Validator, "a", ips(&[2, 3]), sink));
    assert!(events.is_empty(), "the same content again is no change");
}

#[test]
fn a_removal_says_whether_another_cluster_still_lists_the_address() {
    let mut views = Views::default();
    heard(|sink| views.update(Source::Validator, "a", ips(&[1]), sink));
    heard(|sink| views.update(Source::Validator, "b", ips(&[1]), sink));
    let (events, _) = heard(|sink| views.update(Source::Validator, "a", ips(&[]), sink));
    assert_eq!(events, [("removed", 1, "a".to_owned(), true)], "a removal from any cluster is reported");
    let (events, _) = heard(|sink| views.remove(Source::Validator, "b", sink));
    assert_eq!(events, [("removed", 1, "b".to_owned(), false)], "a cluster that goes removes its endpoints");
    assert_eq!(views.endpoints(), 0);
}

#[test]
fn the_validator_wins_over_the_admin_endpoint() {
    let mut views = Views::default();
    heard(|sink| views.update(Source::Admin, "a", ips(&[1]), sink));
    let (events, _) = heard(|sink| views.update(Source::Validator, "a", ips(&[1]), sink));
    assert!(events.is_empty(), "the first word of the validator changes nothing that the poll already knew");
    heard(|sink| views.update(Source::Validator, "a", ips(&[]), sink));
    let (events, _) = heard(|sink| views.update(Source::Admin, "a", ips(&[1]), sink));
    assert!(events.is_empty(), "a poll that lags behind must not look like a return");
    let (events, _) = heard(|sink| views.remove(Source::Admin, "a", sink));
    assert!(events.is_empty(), "nor may it take the cluster away");
}

#[test]
fn a_replaced_endpoint_is_removed_and_added() {
    let mut views = Views::default();
    heard(|sink| views.update(Source::Admin, "a", ips(&[1]), sink));
    let one = IpAddr::from([10, 244, 0, 1]);
    let (events, _) = heard(|sink| views.replaced(Source::Admin, "a", one, sink));
    assert_eq!(events, [("added", 1, "a".to_owned(), true), ("removed", 1, "a".to_owned(), false)]);
    let (events, _) = heard(|sink| views.replaced(Source::Admin, "a", IpAddr::from([10, 244, 0, 9]), sink));
    assert!(events.is_empty(), "an endpoint that the cluster does not list cannot be replaced");
}

#[test]
fn order_and_repetition_are_no_change() {
    let mut views = Views::default();
    heard(|sink| views.update(Source::Validator, "a", ips(&[3, 1, 2, 1]), sink));
    let (events, _) = heard(|sink| views.update(Source::Validator, "a", ips(&[2, 2, 1, 3]), sink));
    assert!(events.is_empty(), "several ports of one pod, in whatever order, are one endpoint");
    let (_, change) = heard(|sink| views.update(Source::Validator, "a", ips(&[9, 2, 0]), sink));
    assert_eq!(change, (2, 2));
}

#[test]
fn a_cluster_that_envoy_removed_takes_its_resource_away_unless_another_reads_it() {
    let mut views = Views::default();
    views.name("a", "shared");
    views.name("b", "shared");
    heard(|sink| views.update(Source::Validator, "shared", ips(&[1]), sink));
    let mut sink = Heard::default();
    assert_eq!(views.cluster_gone("a", &mut sink), Change::default(), "cluster b still reads it");
    let gone = views.cluster_gone("b", &mut sink);
    assert_eq!(gone, Change { added: 0, removed: 1 });
    assert_eq!(views.cluster_gone("b", &mut sink), Change::default(), "no second removal of what is gone");
    heard(|sink| views.update(Source::Admin, "c", ips(&[1]), sink));
    assert_eq!(views.cluster_gone("c", &mut sink), Change { added: 0, removed: 1 });
}

#[test]
fn a_cluster_that_changes_its_eds_resource_gives_the_old_one_up() {
    let mut views = Views::default();
    let resource = |name: &str| Some(name.to_owned());
    heard(|sink| views.cluster("a", resource("old"), sink));
    heard(|sink| views.cluster("b", resource("old"), sink));
    heard(|sink| views.update(Source::Validator, "old", ips(&[1]), sink));
    let (events, _) = heard(|sink| views.cluster("a", resource("new"), sink));
    assert!(events.is_empty(), "cluster b still reads it");
    let (events, change) = heard(|sink| views.cluster("b", None, sink));
    assert_eq!((events, change), (vec![("removed", 1, "old".to_owned(), false)], (0, 1)));
    heard(|sink| views.update(Source::Validator, "new", ips(&[2]), sink));
    let (events, _) = heard(|sink| views.cluster("a", resource("new"), sink));
    assert!(events.is_empty(), "the same cluster again is no change");
    let (events, _) = heard(|sink| views.cluster_removed("a", sink));
    assert_eq!(events, [("removed", 2, "new".to_owned(), false)]);
    assert_eq!(views.clusters().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_resource_with_the_name_of_one_of_its_two_clusters_outlives_the_other() {
    let mut views = Views::default();
    heard(|sink| views.cluster("r", Some("r".to_owned()), sink));
    heard(|sink| views.cluster("a", Some("r".to_owned()), sink));
    heard(|sink| views.update(Source::Validator, "r", ips(&[1]), sink));
    heard(|sink| views.cluster_removed("a", sink));
    assert_eq!(views.cluster_gone("a", &mut Heard::default()), Change::default());
    assert_eq!(views.endpoints(), 1, "cluster r still reads it");
}

#[test]
fn the_validator_covers_everything_once_it_speaks_for_every_resource_that_cds_names() {
    let mut views = Views::default();
    heard(|sink| views.update(Source::Validator, "a", ips(&[1]), sink));
    assert!(!views.is_covered(), "without CDS nobody knows what there is");
    heard(|sink| views.cluster("a", Some("a".to_owned()), sink));
    heard(|sink| views.cluster("static", None, sink));
    assert!(views.is_covered());
    heard(|sink| views.cluster("b", Some("b".to_owned()), sink));
    assert!(!views.is_covered(), "b may have a source of its own");
    heard(|sink| views.update(Source::Admin, "b", ips(&[2]), sink));
    assert!(!views.is_covered());
    heard(|sink| views.update(Source::Validator, "b", ips(&[]), sink));
    assert!(views.is_covered());
}
