//! What the scenes share: a mesh for each source, and what the module says it saw.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use lab::{
    bootstrap::{ExtensionPoint, Variant},
    control_plane::{Answer, ENDPOINT_TYPE, Protocol},
    envoy::Binary,
    mesh::{Mesh, Setup, WITHIN},
};
use serde_json::{Value, json};

/// Where `watch` gets its news from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// The config validators of Envoy 1.40, over one of the two protocols.
    Validator(Protocol),
    /// Polls of the admin endpoint of this Envoy.
    Admin(&'static str),
}

/// All of them.
pub const FEEDS: [Feed; 5] = [
    Feed::Validator(Protocol::Delta),
    Feed::Validator(Protocol::Sotw),
    Feed::Admin("1.40.0"),
    Feed::Admin("1.39.3"),
    Feed::Admin("1.38.3"),
];

/// What the admin page says of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    pub removals: u64,
    pub generation: u64,
    pub fenced: bool,
    pub presence: String,
}

/// Times from "removal applied by Envoy" to "fenced".
#[derive(Debug, Default)]
pub struct Delays(Vec<Duration>);

// === impl Feed ===

impl Feed {
    /// A waypoint with the fence and this source alone, and one CONNECT attempt, so that nothing else cures.
    pub fn setup(self) -> Setup {
        let setup = Setup::new(Variant::FenceOnly);
        match self {
            Self::Validator(protocol) => setup
                .protocol(protocol)
                .envoy(|options| options.binary = Some(Binary::version("1.40.0").unwrap()))
                .bootstrap(|bootstrap| polls(bootstrap, &json!({ "source": "none" }))),
            Self::Admin(version) => setup
                .envoy(|options| options.binary = Some(Binary::version(version).unwrap()))
                .bootstrap(|bootstrap| bootstrap.without_config_validators()),
        }
    }

    pub fn is_admin(self) -> bool {
        matches!(self, Self::Admin(_))
    }

    /// The source's name in statistics.
    pub fn name(self) -> &'static str {
        if self.is_admin() { "admin" } else { "validator" }
    }
}

/// Changes the polls' configuration.
pub fn polls(bootstrap: lab::bootstrap::Bootstrap, watch: &Value) -> anyhow::Result<lab::bootstrap::Bootstrap> {
    bootstrap.with_config_fields(ExtensionPoint::Status, &json!({ "watch": watch }))
}

/// The pod address with this last byte.
pub fn ip(octet: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 244, 1, octet))
}

/// The admin page.
pub async fn page(mesh: &Mesh, query: &str) -> Value {
    let text = mesh.envoy.admin().get(&format!("/stale-guard{query}")).await.unwrap();
    serde_json::from_str(&text).expect("the page is JSON")
}

/// What the module knows of an endpoint.
pub async fn seen(mesh: &Mesh, ip: IpAddr) -> Seen {
    let page = page(mesh, &format!("?endpoint={ip}")).await;
    let Some(endpoint) = page["endpoints"].get(0) else { return Seen::default() };
    Seen {
        removals: endpoint["removals"].as_u64().unwrap(),
        generation: endpoint["generation"].as_u64().unwrap(),
        fenced: endpoint["fenced"].as_bool().unwrap(),
        presence: endpoint["presence"].as_str().unwrap().to_owned(),
    }
}

/// Waits until the module has seen so many removals of an endpoint.
pub async fn removed(mesh: &Mesh, ip: IpAddr, removals: u64) -> Seen {
    wait_seen(mesh, ip, |seen| seen.removals >= removals).await
}

/// Waits until what the module knows of an endpoint is as wanted.
pub async fn wait_seen(mesh: &Mesh, ip: IpAddr, wanted: impl Fn(&Seen) -> bool) -> Seen {
    let deadline = Instant::now() + WITHIN;
    loop {
        let now = seen(mesh, ip).await;
        if wanted(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{ip}: {now:?} is not what was waited for");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// When the module fenced the endpoint for its last removal, at the earliest and at the latest.
pub async fn fenced_at(mesh: &Mesh, ip: IpAddr) -> (Instant, Instant) {
    let before = Instant::now();
    let page = page(mesh, &format!("?endpoint={ip}")).await;
    let after = Instant::now();
    let since = Duration::from_millis(page["endpoints"][0]["since_removal_ms"].as_u64().expect("it was removed"));
    (before - since - Duration::from_millis(1), after - since)
}

/// When Envoy acknowledged the last endpoints that it was sent: it had applied them just before.
pub fn applied_at(mesh: &Mesh) -> Instant {
    let pushes = mesh.control_plane.pushes();
    let last = pushes.iter().rev().find(|push| push.type_url == ENDPOINT_TYPE).expect("endpoints were pushed");
    match last.answer {
        Answer::Acked(at) => at,
        ref other => panic!("the last push was not acknowledged: {other:?}"),
    }
}

/// Waits until a look has seen the control plane, or its absence.
pub async fn wait_connected(mesh: &Mesh, connected: bool) {
    let deadline = Instant::now() + WITHIN;
    while page(mesh, "?limit=0").await["control_plane"]["connected"] != connected {
        assert!(Instant::now() < deadline, "the control plane's connection is not seen as {connected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The polls made so far.
pub async fn polled(mesh: &Mesh) -> u64 {
    page(mesh, "?limit=0").await["watch"]["admin"]["updates"].as_u64().unwrap()
}

/// Waits for `count` polls that begin from now on.
pub async fn wait_polls(mesh: &Mesh, count: u64) {
    let wanted = polled(mesh).await + count;
    let deadline = Instant::now() + WITHIN;
    while polled(mesh).await < wanted {
        assert!(Instant::now() < deadline, "the admin endpoint is not polled");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

// === impl Delays ===

impl Delays {
    /// The endpoint's removal, which was fenced already, against the last push. A negative delay is 0.
    pub async fn measure(&mut self, mesh: &Mesh, ip: IpAddr) {
        let (_, latest) = fenced_at(mesh, ip).await;
        self.0.push(latest.saturating_duration_since(applied_at(mesh)));
    }

    pub fn median(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    }

    pub fn worst(&self) -> Duration {
        self.0.iter().copied().max().expect("something was measured")
    }

    /// Prints both; shown with `--no-capture`, recorded in docs/watch.md.
    #[expect(clippy::print_stdout, reason = "the figures of the report")]
    pub fn report(&self, scene: &str, feed: Feed) {
        println!("delay {scene} {feed:?}: median {:?}, worst {:?}, of {}", self.median(), self.worst(), self.0.len());
    }
}
