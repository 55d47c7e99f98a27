//! Polls: their share of the main thread, and what other formats would cost.

use std::time::Duration;

use anyhow::Result;
use lab::{
    bootstrap::{Bootstrap, ExtensionPoint, Variant},
    control_plane::Service,
    mesh::{ECHO, Mesh, Setup},
};
use serde_json::json;

use crate::cost;

const FORMATS: [(&str, &str); 4] = [
    ("/clusters", "/clusters"),
    ("/clusters?format=json", "/clusters?format=json"),
    ("/config_dump?include_eds", "/config_dump?include_eds"),
    (
        "/config_dump with a mask",
        "/config_dump?include_eds&resource=dynamic_endpoint_configs&mask=endpoint_config.endpoints",
    ),
];

/// The connection to the control plane, as the module asks, and without the type.
const LOOKS: [(&str, &str); 2] = [
    ("look, gauges only", "/stats?filter=%5Econtrol_plane%5C.connected_state%24&usedonly&type=Gauges"),
    ("look, all stats", "/stats?filter=%5Econtrol_plane%5C.connected_state%24&usedonly"),
];

fn polling(watch: serde_json::Value) -> Setup {
    Setup::new(Variant::FenceOnly).bootstrap(Bootstrap::without_config_validators).bootstrap(move |bootstrap| {
        bootstrap.with_config_fields(ExtensionPoint::Status, &json!({ "watch": watch, "suspect_after": null }))
    })
}

async fn filled(setup: Setup, endpoints: usize) -> Result<Mesh> {
    let mesh = setup.start().await?;
    mesh.control_plane.set_service(Service::new(ECHO, cost::endpoints(endpoints, 0)));
    mesh.acked().await?;
    Ok(mesh)
}

/// Time of the main thread that polls took, Envoy's part included, as the module counts it.
async fn polls_cost(mesh: &Mesh) -> Result<Duration> {
    Ok(Duration::from_micros(mesh.stat("watch_admin_main_thread_us").await?))
}

async fn polls(mesh: &Mesh) -> Result<u64> {
    mesh.stat("watch_admin_updates").await
}

#[expect(clippy::print_stdout, reason = "the report")]
pub async fn run(sizes: &[usize]) -> Result<()> {
    for &size in sizes {
        let mesh = filled(polling(json!({ "source": "none" })), size).await?;
        for (name, path) in FORMATS {
            let mut costs = Vec::new();
            let mut bytes = 0;
            for _ in 0..7 {
                costs.push(
                    cost::of(&mesh, async { mesh.envoy.admin().get(path).await.map(|text| bytes = text.len()) })
                        .await?,
                );
            }
            println!("{size} endpoints: {name}: {:?} of the main thread, {bytes} bytes", cost::median(costs));
        }
        let without = cost::idle(&mesh, Duration::from_secs(12)).await?;
        drop(mesh);
        // Quiet, at the default intervals: once in five seconds.
        let mesh = filled(polling(json!({})), size).await?;
        mesh.wait_stat("endpoints_listed", |listed| listed == size as u64).await?;
        tokio::time::sleep(Duration::from_secs(12)).await;
        let before = polls(&mesh).await?;
        let quiet = cost::idle(&mesh, Duration::from_secs(25)).await?;
        let count = polls(&mesh).await? - before;
        let share = quiet.saturating_sub(without).as_secs_f64() * 100.0;
        println!("{size} endpoints: {count} polls in 25 s, quiet: {share:.2} % of the main thread");
        drop(mesh);
        // As often as a poll's cost allows: the shortest interval, which the share of a hundredth stretches.
        let busy = polling(json!({ "min_interval": "50ms", "max_interval": "5s" }));
        let mesh = filled(busy, size).await?;
        mesh.wait_stat("endpoints_listed", |listed| listed == size as u64).await?;
        let before = polls(&mesh).await?;
        let polls_before = polls_cost(&mesh).await?;
        let start = cost::main_thread(&mesh)?;
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_secs(15) {
            // A cluster that comes or goes asks for a poll at once.
            mesh.control_plane.set_service(Service::new("passing.default.svc.cluster.local", Vec::new()));
            mesh.acked().await?;
            mesh.control_plane
                .remove_service(&lab::control_plane::cluster_name("passing.default.svc.cluster.local", 80))?;
            mesh.acked().await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let spent = (cost::main_thread(&mesh)? - start).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        let count = polls(&mesh).await? - before;
        let share = (polls_cost(&mesh).await? - polls_before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        println!(
            "{size} endpoints: {count} polls in 15 s while clusters come and go; {share:.2} % of the main thread for polls, \
             {spent:.2} % for all that happened"
        );
    }
    let hosts: Vec<String> = (0..2_000).map(|index| format!("s{index}.default.svc.cluster.local")).collect();
    let mesh = polling(json!({ "source": "none" })).start().await?;
    mesh.control_plane.hold();
    for host in &hosts {
        mesh.control_plane.set_service(Service::new(host, Vec::new()));
    }
    mesh.control_plane.release();
    mesh.acked().await?;
    for (name, path) in LOOKS {
        let mut costs = Vec::new();
        for _ in 0..7 {
            costs.push(cost::of(&mesh, mesh.envoy.admin().get(path)).await?);
        }
        println!("2000 clusters: {name}: {:?} of the main thread", cost::median(costs));
    }
    Ok(())
}
