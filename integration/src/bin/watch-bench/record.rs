//! Seeds for the fuzz targets: what a real Envoy and the lab's control plane say.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use lab::{
    bootstrap::Variant,
    control_plane::{Endpoint, Health, Service, cluster_name},
    mesh::{ECHO, Setup},
};

const PLAIN: &str = "plain.default.svc.cluster.local";

fn write(folder: &Path, target: &str, name: &str, bytes: &[u8]) -> Result<()> {
    let folder = folder.join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes).with_context(|| format!("write {name}"))
}

pub async fn run(folder: &Path) -> Result<()> {
    let mesh = Setup::new(Variant::FenceOnly).start().await?;
    let pod = mesh.pod("pod", 1).await?;
    let endpoints = vec![
        Endpoint::new("10.244.1.1".parse()?, pod.addr().port()),
        Endpoint::new("10.244.1.2".parse()?, 8080).health(Health::Draining),
        Endpoint::new("fd00:244::3".parse()?, 8080).health(Health::Unhealthy).priority(1),
    ];
    mesh.control_plane.set_service(Service::new(ECHO, endpoints));
    let plain =
        vec![Endpoint::new("10.244.1.4".parse()?, 80).plain(), Endpoint::new("fd00:244::5".parse()?, 80).plain()];
    mesh.control_plane.set_service(Service::new(PLAIN, plain));
    mesh.acked().await?;
    mesh.get(ECHO, "/").await?;
    // The first byte of a seed says where the text is cut in two.
    let text = mesh.envoy.admin().get("/clusters").await?;
    write(folder, "admin", "clusters", format!("\u{40}{text}").as_bytes())?;
    for host in [ECHO, PLAIN] {
        let (cluster, assignment) =
            mesh.control_plane.resources(&cluster_name(host, 80)).context("the service is there")?;
        let name = host.split('.').next().unwrap_or(host);
        write(folder, "eds", &format!("assignment-{name}"), &assignment)?;
        write(folder, "eds", &format!("cluster-{name}"), &cluster)?;
    }
    Ok(())
}
