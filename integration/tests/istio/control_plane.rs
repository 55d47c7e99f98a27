//! istiod away, and its EnvoyFilter edited, under traffic.

use std::time::{Duration, Instant};

use http::StatusCode;
use lab::istio::objects::{self, Service};
use lab::istio::{AgentPath, Guard, Setup, WAYPOINT_IP};
use lab::load::{HeldStream, Load, Plan, RequestClass, StreamSpec};
use lab::pod::PodSpec;

use crate::scenes::{Feed, broken, first, ip, tunnels_closed, warm};

const AUTHORITY: &str = "echo.default.svc.cluster.local";
const SUSPECTED: &str = "dynamicmodulescustom.watch_suspected";

fn short_suspicion(guard: Guard) -> Setup {
    let setup = Feed::Polls139.setup(guard);
    setup.manifests(|yaml| yaml.replace("suspect_after: 30s", "suspect_after: 2s"))
}

/// istiod is away for longer than `suspect_after`, and while nobody can say so, a pod is replaced on its address.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_behind_an_absence_of_istiod_is_fenced() {
    for (guard, expected) in [(Guard::Enforce, StatusCode::OK), (Guard::Stock, StatusCode::SERVICE_UNAVAILABLE)] {
        let mut mesh = short_suspicion(guard).start().await.unwrap();
        // The application closes its connections, so that each request opens a tunnel.
        let keep_alive = Some(Duration::from_millis(200));
        let old = mesh.pod_with(PodSpec { keep_alive, ..PodSpec::new("old", ip("10.244.1.1")) }).await.unwrap();
        mesh.announce(&old, "echo").await.unwrap();
        mesh.health("echo", old.addr(), "HEALTHY").await.unwrap();
        assert_eq!(first(&mesh, http::Method::GET, "echo").await.status, StatusCode::OK);
        mesh.known(1).await.unwrap();
        tunnels_closed(&old).await;
        mesh.stop_istiod();
        if guard == Guard::Enforce {
            let suspected = mesh.envoy.admin().wait_for_stat(SUSPECTED, Duration::from_secs(30), |count| count > 0);
            suspected.await.unwrap();
        }
        old.vanish().await.unwrap();
        let new = mesh.pod("new", 1).await.unwrap();
        let reply = mesh.post("echo", "/").await.unwrap();
        assert_eq!(reply.status, expected, "{guard:?}, while it is away: {reply:?}");
        assert_eq!(broken(&mesh).await, u64::from(guard == Guard::Stock), "{guard:?}");
        // Another istiod has the cluster as it is now.
        let mut cluster = vec![
            objects::waypoint(WAYPOINT_IP),
            objects::UPSTREAM_ENVOY.to_owned(),
            Service::new("echo", ip("10.96.1.1")).yaml(),
            objects::Pod::new("new", "echo", new.ip()).yaml(),
        ];
        cluster.extend(mesh.manifests().map(str::to_owned));
        mesh.replace_istiod(&cluster).await.unwrap();
        mesh.istiod.settled(1, Duration::from_secs(60)).await.unwrap();
        let reply = mesh.post("echo", "/").await.unwrap();
        assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("new")), "{guard:?}: {reply:?}");
    }
}

/// What the module cannot know: behind pilot-agent's socket, a way to istiod that swallows everything looks like
/// an istiod that has nothing to say. Endpoints known before serve on.
#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_behind_the_agent_is_not_noticed_and_harms_nobody() {
    let mesh = short_suspicion(Guard::Enforce).start().await.unwrap();
    let _pod = warm(&mesh, "first").await;
    mesh.agent.set(AgentPath::BlackHole);
    // Well past suspect_after, which is looked at every half second here.
    let page = async || mesh.envoy.admin().stat("dynamicmodulescustom.watch_admin_updates").await.unwrap();
    let (before, start) = (page().await, Instant::now());
    mesh.eventually("polls over six seconds", async || {
        Ok(start.elapsed() > Duration::from_secs(6) && page().await > before)
    })
    .await
    .unwrap();
    assert_eq!(mesh.stat(SUSPECTED).await.unwrap(), 0, "Envoy's own gauge says connected");
    assert_eq!(mesh.get("echo", "/").await.unwrap().status, StatusCode::OK);
}

/// An edit of the EnvoyFilter makes the chain of connect_originate anew. Requests do not notice; what is still
/// open on a tunnel of the old chain is cut after Istio's drain time, 45 s. So it is with every EnvoyFilter on
/// that listener, ours or not.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_and_a_removal_under_load_fail_no_request_and_cut_long_streams_after_45_seconds() {
    let mesh = Feed::Polls139.setup(Guard::Enforce).start().await.unwrap();
    let _pod = warm(&mesh, "first").await;
    let connector = mesh.connector("echo").unwrap();
    let mut stream =
        HeldStream::open(&connector, &StreamSpec::get(AUTHORITY, lab::scenes::HANG), "held").await.unwrap();
    let plan = Plan { connections: 4, ..Plan::new("edit", 100.0, vec![RequestClass::get(AUTHORITY, "/")]) };
    let load = Load::start(plan, connector).await.unwrap();
    let start = Instant::now();
    let manifests = mesh.manifests().unwrap().to_owned();
    mesh.istiod.apply(&manifests.replace("user_timeout: 20s", "user_timeout: 25s")).await.unwrap();
    mesh.eventually("the edited chain", async || Ok(mesh.config_dump().await?.to_string().contains(r#""25s""#)))
        .await
        .unwrap();
    assert!(stream.ended().is_none(), "a drain cuts nobody at once");
    let end = stream.wait_end(Duration::from_secs(70)).await.unwrap();
    let after = start.elapsed();
    println!("cut after {after:?}: {end:?}");
    assert!((Duration::from_secs(40)..Duration::from_secs(55)).contains(&after), "{after:?}");
    let filter = manifests.split("\n---\n").find(|object| object.contains("kind: EnvoyFilter")).unwrap();
    mesh.istiod.delete(filter).await.unwrap();
    mesh.eventually("the chain without us", async || {
        Ok(mesh.filters("connect_originate").await?.iter().all(|(_, network, _)| network.len() == 1))
    })
    .await
    .unwrap();
    let report = load.stop(Duration::from_secs(20)).await.unwrap();
    let failed: Vec<_> = report.records.iter().filter(|record| !record.success()).collect();
    println!("{} requests, {} failed", report.records.len(), failed.len());
    assert!(failed.is_empty(), "of {}: {failed:#?}", report.records.len());
    mesh.envoy.assert_alive().unwrap();
}
