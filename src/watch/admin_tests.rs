use super::*;
use crate::watch::testing::{host, read};

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
    let v6 = read("a::added_via_api::true\na::envoy://connect_originate/[fd00::7]:80::cx_total::1\n");
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
    assert_eq!(finish(b"a::added_via_api::true\nc::d"), Err(Unreadable::Truncated));
    assert_eq!(finish(b"<html>\nno\n"), Err(Unreadable::UnknownFormat));
    assert_eq!(finish(&vec![b'x'; Parser::MAX_LINE + 1]), Err(Unreadable::LineTooLong));
    let mut whole = vec![b'x'; Parser::MAX_LINE + 1];
    whole.extend_from_slice(b"\na::added_via_api::true\n");
    assert_eq!(finish(&whole), Err(Unreadable::LineTooLong), "wherever the chunk ends");
    assert!(finish(b"a::\xff::cx_total::1\na::b::added_via_api::true\n").is_ok(), "a line of bad bytes is passed over");
}

/// B15: only the control plane writes these, and they must not be read as something else.
#[test]
fn names_and_values_may_hold_the_separator() {
    let host = "a::envoy://l/10.0.0.1:80";
    let text = format!(
        "a::added_via_api::true\n{host}::cx_total::3\n{host}::hostname::x::cx_total::5\n\
         {host}::region::x::envoy://l/1.2.3.4:80::cx_total::5\n{host}::zone::y::added_via_api::true\n\
         {host}::health_flags::/eds_status_draining\n"
    );
    let clusters = read(&text);
    assert_eq!(clusters.len(), 1, "{clusters:?}");
    let host = Host { cx_total: 3, draining: true, ..Host::default() };
    assert_eq!(clusters["a"].hosts, [("10.0.0.1:80".parse().expect("an address"), host)]);

    let odd = "a::eds_service_name::b";
    let text = format!(
        "{odd}::added_via_api::true\n{odd}::eds_service_name::r::s\n{odd}::10.0.0.1:80::cx_total::1\n\
         a::added_via_api::true\na::eds_service_name::a\na::10.0.0.2:80::rq_total::1\n\
         a::b::added_via_api::true\n"
    );
    let clusters = read(&text);
    assert_eq!(clusters[odd].resource.as_deref(), Some("r::s"));
    assert_eq!(clusters[odd].hosts.len(), 1);
    assert_eq!(clusters["a"].hosts.len(), 1);
    assert!(clusters["a::b"].hosts.is_empty());
    let bare = read("a::added_via_api::true\na::envoy://l/fd00::7::cx_total::2\n");
    assert_eq!(bare["a"].hosts[0].0.to_string(), "[fd00::7]:0", "an endpoint id without a port");
}
