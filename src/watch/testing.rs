//! Texts of Envoy's admin endpoint, for tests.

use super::admin::{Clusters, Parser};

/// The clusters of a complete text.
pub(super) fn read(text: &str) -> Clusters {
    let mut parser = Parser::new();
    parser.feed(text.as_bytes());
    parser.finish().expect("a complete text")
}

/// The lines of a cluster with one host behind an internal listener, as far as they matter.
pub(super) fn host(cluster: &str, ip: &str, cx_total: u64, flags: &str) -> String {
    let host = format!("{cluster}::envoy://connect_originate/{ip}:8080");
    format!(
        "{cluster}::added_via_api::true\n{host}::cx_active::1\n{host}::cx_total::{cx_total}\n{host}::rq_total::{cx_total}\n{host}::health_flags::{flags}\n{host}::hostname::\n"
    )
}
