//! EDS updates with and without the validators: two Envoys, the same updates, in turn.

use anyhow::{Context, Result};
use lab::{
    bootstrap::{Bootstrap, Variant},
    control_plane::Service,
    mesh::{ECHO, Mesh, Setup},
};
use serde_json::json;

use crate::cost;

/// The main thread must be quiet but for the update: no polls, no looks, no statistics.
fn quiet() -> Setup {
    Setup::new(Variant::FenceOnly).bootstrap(Bootstrap::without_status)
}

async fn update(mesh: &Mesh, endpoints: usize, round: usize) -> Result<std::time::Duration> {
    let service = Service::new(ECHO, cost::endpoints(endpoints, round));
    cost::of(mesh, async {
        mesh.control_plane.set_service(service);
        mesh.acked().await
    })
    .await
}

#[expect(clippy::print_stdout, reason = "the report")]
pub async fn run(sizes: &[usize], repetitions: usize) -> Result<()> {
    let mut lines = Vec::new();
    for &size in sizes {
        let with = quiet().start().await.context("with the validators")?;
        let without = quiet().bootstrap(Bootstrap::without_config_validators).start().await.context("without")?;
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=repetitions {
            let plain = update(&without, size, round).await?;
            let watched = update(&with, size, round).await?;
            // The first round fills the cluster.
            if round > 0 {
                ours.push(watched.saturating_sub(plain));
                theirs.push(plain);
                ratios.push(watched.as_secs_f64() / plain.as_secs_f64() - 1.0);
            }
        }
        ratios.sort_by(f64::total_cmp);
        let (ours, theirs) = (cost::median(ours), cost::median(theirs));
        let ratio = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
        println!("{size} endpoints: Envoy {theirs:?}, validators {ours:?}, ratio {ratio:.3}");
        lines.push(json!({ "endpoints": size, "envoy_us": theirs.as_micros(), "watch_us": ours.as_micros(),
                           "ratio": ratio, "repetitions": repetitions }));
    }
    println!("{}", serde_json::to_string_pretty(&lines)?);
    Ok(())
}
