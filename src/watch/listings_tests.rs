use std::net::Ipv4Addr;

use super::*;

/// What, the address's last byte, the cluster, and whether the address is listed afterwards.
type Event = (&'static str, u8, String, bool);

#[derive(Debug, Default)]
struct Reported(Vec<Event>);

impl Sink for Reported {
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

fn reported(act: impl FnOnce(&mut Reported) -> Change) -> (Vec<Event>, (u64, u64)) {
    let mut reported = Reported::default();
    let change = act(&mut reported);
    reported.0.sort();
    (reported.0, (change.added, change.removed))
}

#[test]
fn an_update_reports_only_what_it_changes() {
    let mut listings = Listings::default();
    let (_, change) = reported(|sink| listings.update(Source::Validator, "a", ips(&[1, 2]), sink));
    assert_eq!(change, (2, 0));
    let (events, change) = reported(|sink| listings.update(Source::Validator, "a", ips(&[2, 3]), sink));
    assert_eq!(events, [("added", 3, "a".to_owned(), true), ("removed", 1, "a".to_owned(), false)]);
    assert_eq!(change, (1, 1));
    let (events, _) = reported(|sink| listings.update(Source::Validator, "a", ips(&[2, 3]), sink));
    assert!(events.is_empty(), "the same content again is no change");
}

#[test]
fn a_removal_says_whether_another_cluster_still_lists_the_address() {
    let mut listings = Listings::default();
    reported(|sink| listings.update(Source::Validator, "a", ips(&[1]), sink));
    reported(|sink| listings.update(Source::Validator, "b", ips(&[1]), sink));
    let (events, _) = reported(|sink| listings.update(Source::Validator, "a", ips(&[]), sink));
    assert_eq!(events, [("removed", 1, "a".to_owned(), true)], "a removal from any cluster is reported");
    let (events, _) = reported(|sink| listings.remove(Source::Validator, "b", sink));
    assert_eq!(events, [("removed", 1, "b".to_owned(), false)], "a cluster that goes removes its endpoints");
    assert_eq!(listings.endpoints(), 0);
}

#[test]
fn the_validator_wins_over_the_admin_endpoint() {
    let mut listings = Listings::default();
    reported(|sink| listings.update(Source::Admin, "a", ips(&[1]), sink));
    let (events, _) = reported(|sink| listings.update(Source::Validator, "a", ips(&[1]), sink));
    assert!(events.is_empty(), "the validator's first report changes nothing that the poll already knew");
    reported(|sink| listings.update(Source::Validator, "a", ips(&[]), sink));
    let (events, _) = reported(|sink| listings.update(Source::Admin, "a", ips(&[1]), sink));
    assert!(events.is_empty(), "a poll that lags behind must not look like a return");
    let (events, _) = reported(|sink| listings.remove(Source::Admin, "a", sink));
    assert!(events.is_empty(), "nor may it take the cluster away");
}

#[test]
fn a_replaced_endpoint_is_removed_and_added() {
    let mut listings = Listings::default();
    reported(|sink| listings.update(Source::Admin, "a", ips(&[1]), sink));
    let one = IpAddr::from([10, 244, 0, 1]);
    let (events, _) = reported(|sink| listings.replaced(Source::Admin, "a", one, sink));
    assert_eq!(events, [("added", 1, "a".to_owned(), true), ("removed", 1, "a".to_owned(), false)]);
    let (events, _) = reported(|sink| listings.replaced(Source::Admin, "a", IpAddr::from([10, 244, 0, 9]), sink));
    assert!(events.is_empty(), "an endpoint that the cluster does not list cannot be replaced");
}

#[test]
fn order_and_repetition_are_no_change() {
    let mut listings = Listings::default();
    reported(|sink| listings.update(Source::Validator, "a", ips(&[3, 1, 2, 1]), sink));
    let (events, _) = reported(|sink| listings.update(Source::Validator, "a", ips(&[2, 2, 1, 3]), sink));
    assert!(events.is_empty(), "several ports of one pod, in whatever order, are one endpoint");
    let (_, change) = reported(|sink| listings.update(Source::Validator, "a", ips(&[9, 2, 0]), sink));
    assert_eq!(change, (2, 2));
}

#[test]
fn a_cluster_that_envoy_removed_takes_its_resource_away_unless_another_reads_it() {
    let mut listings = Listings::default();
    listings.seen_by_poll("a", "shared");
    listings.seen_by_poll("b", "shared");
    reported(|sink| listings.update(Source::Validator, "shared", ips(&[1]), sink));
    let mut sink = Reported::default();
    assert_eq!(listings.cluster_gone("a", &mut sink), Change::default(), "cluster b still reads it");
    let gone = listings.cluster_gone("b", &mut sink);
    assert_eq!(gone, Change { added: 0, removed: 1 });
    assert_eq!(listings.cluster_gone("b", &mut sink), Change::default(), "no second removal of what is gone");
    reported(|sink| listings.update(Source::Admin, "c", ips(&[1]), sink));
    assert_eq!(listings.cluster_gone("c", &mut sink), Change { added: 0, removed: 1 });
}

#[test]
fn a_cluster_that_changes_its_eds_resource_gives_the_old_one_up() {
    let mut listings = Listings::default();
    reported(|sink| listings.cluster("a", Some("old"), sink));
    reported(|sink| listings.cluster("b", Some("old"), sink));
    reported(|sink| listings.update(Source::Validator, "old", ips(&[1]), sink));
    let (events, _) = reported(|sink| listings.cluster("a", Some("new"), sink));
    assert!(events.is_empty(), "cluster b still reads it");
    let (events, change) = reported(|sink| listings.cluster("b", None, sink));
    assert_eq!((events, change), (vec![("removed", 1, "old".to_owned(), false)], (0, 1)));
    reported(|sink| listings.update(Source::Validator, "new", ips(&[2]), sink));
    let (events, _) = reported(|sink| listings.cluster("a", Some("new"), sink));
    assert!(events.is_empty(), "the same cluster again is no change");
    let (events, _) = reported(|sink| listings.cluster_removed("a", sink));
    assert_eq!(events, [("removed", 2, "new".to_owned(), false)]);
    assert_eq!(listings.clusters().count(), 0, "b has no EDS resource any more");
}

#[test]
fn a_resource_with_the_name_of_one_of_its_two_clusters_outlives_the_other() {
    let mut listings = Listings::default();
    reported(|sink| listings.cluster("r", Some("r"), sink));
    reported(|sink| listings.cluster("a", Some("r"), sink));
    reported(|sink| listings.update(Source::Validator, "r", ips(&[1]), sink));
    reported(|sink| listings.cluster_removed("a", sink));
    assert_eq!(listings.cluster_gone("a", &mut Reported::default()), Change::default());
    assert_eq!(listings.endpoints(), 1, "cluster r still reads it");
}

#[test]
fn the_validator_covers_everything_once_it_has_reported_every_resource_that_cds_names() {
    let mut listings = Listings::default();
    reported(|sink| listings.update(Source::Validator, "a", ips(&[1]), sink));
    assert!(!listings.is_covered(), "without CDS nobody knows what there is");
    reported(|sink| listings.cluster("a", Some("a"), sink));
    reported(|sink| listings.cluster("static", None, sink));
    assert!(listings.is_covered());
    reported(|sink| listings.cluster("b", Some("b"), sink));
    assert!(!listings.is_covered(), "b may have a source of its own");
    reported(|sink| listings.update(Source::Admin, "b", ips(&[2]), sink));
    assert!(!listings.is_covered());
    reported(|sink| listings.update(Source::Validator, "b", ips(&[]), sink));
    assert!(listings.is_covered());
}

#[test]
fn it_is_known_which_resources_list_an_address() {
    let mut listings = Listings::default();
    reported(|sink| listings.update(Source::Validator, "a", ips(&[1, 2]), sink));
    reported(|sink| listings.update(Source::Admin, "b", ips(&[1]), sink));
    let listing = |listings: &Listings, number| {
        let mut names: Vec<_> = listings.listing(ips(&[number])[0]).map(str::to_owned).collect();
        names.sort();
        names
    };
    assert_eq!(listing(&listings, 1), ["a", "b"]);
    assert_eq!(listing(&listings, 2), ["a"]);
    reported(|sink| listings.remove(Source::Validator, "a", sink));
    assert_eq!(listing(&listings, 1), ["b"]);
    assert!(listing(&listings, 2).is_empty());
}

/// B9: istiod takes a service away by CDS first, and sends its empty assignment after that.
#[test]
fn an_assignment_that_comes_after_its_cluster_has_gone_leaves_nothing_behind() {
    let mut listings = Listings::default();
    reported(|sink| listings.cluster("a", Some("a"), sink));
    reported(|sink| listings.update(Source::Validator, "a", ips(&[1]), sink));
    let (events, _) = reported(|sink| listings.cluster_removed("a", sink));
    assert_eq!(events, [("removed", 1, "a".to_owned(), false)]);
    for late in [&[][..], &[1]] {
        let (events, _) = reported(|sink| listings.update(Source::Validator, "a", ips(late), sink));
        assert!(events.is_empty());
        assert_eq!((listings.of(Source::Validator).count(), listings.endpoints()), (0, 0), "no ghost: {late:?}");
    }
    reported(|sink| listings.cluster("a", Some("a"), sink));
    let (events, _) = reported(|sink| listings.update(Source::Validator, "a", ips(&[1]), sink));
    assert_eq!(events.len(), 1, "a cluster that is made again is listened to");
    reported(|sink| listings.update(Source::Validator, "static", ips(&[9]), sink));
    assert_eq!(listings.endpoints(), 2, "clusters of the bootstrap are not in CDS");
}

/// B11: what a removal costs must not depend on how many clusters there are.
#[test]
fn many_clusters_are_taken_away_as_quickly_as_few() {
    const CLUSTERS: usize = 100_000;
    let mut listings = Listings::default();
    let names: Vec<String> =
        (0..CLUSTERS).map(|number| format!("inbound-vip|80|http|service-{number}.default")).collect();
    let mut sink = Reported::default();
    for name in &names {
        listings.cluster(name, Some(name), &mut sink);
        let number: u32 = name
            .trim_start_matches("inbound-vip|80|http|service-")
            .trim_end_matches(".default")
            .parse()
            .expect("a number");
        listings.update(Source::Validator, name, vec![IpAddr::from(number.to_be_bytes())], &mut sink);
    }
    // Quadratic, these were five thousand million comparisons of long names: minutes.
    for name in names.iter().step_by(2) {
        listings.cluster_removed(name, &mut sink);
    }
    assert_eq!((listings.clusters().count(), listings.endpoints()), (CLUSTERS / 2, CLUSTERS / 2));
}
