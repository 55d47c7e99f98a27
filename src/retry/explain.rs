//! Which tunnel broke under a request.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::outcome::Ending;
use crate::endpoints::{Break, Endpoints};

/// A tunnel that broke within this time before its request's end is taken for the cause. Envoy tells the tunnel
/// and the request in the same turn of the worker's event loop or in the next; a turn may be long.
const JUST_NOW: Duration = Duration::from_secs(1);

/// The tunnel to `ip` that broke under a request that has just failed on `worker`, if its failure was the end of a
/// connection. A timeout, or a reset of one stream, ends a tunnel only afterwards, or not at all.
pub(super) fn failed(endpoints: &Endpoints, ip: IpAddr, worker: u32, ending: &Ending<'_>) -> Option<Break> {
    let lost = ending.lost_its_connection();
    lost.then(|| endpoints.last_break(ip, worker, JUST_NOW, Instant::now())).flatten()
}
