//! The main thread's processor time.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use lab::{control_plane::Endpoint, mesh::Mesh};

/// Time on the processor of Envoy's main thread since its start.
pub fn main_thread(mesh: &Mesh) -> Result<Duration> {
    let pid = mesh.envoy.pid();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).context("read schedstat")?;
    let nanos = text.split_whitespace().next().context("schedstat is empty")?.parse()?;
    Ok(Duration::from_nanos(nanos))
}

/// What the main thread spends on what happens in `during`, and until it is idle again.
pub async fn of<T>(mesh: &Mesh, during: impl Future<Output = Result<T>>) -> Result<Duration> {
    let before = main_thread(mesh)?;
    during.await?;
    let mut last = main_thread(mesh)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = main_thread(mesh)?;
        if now - last < Duration::from_millis(1) || Instant::now() > deadline {
            return Ok(now - before);
        }
        last = now;
    }
}

/// What the main thread spends on nothing in particular, per second.
pub async fn idle(mesh: &Mesh, during: Duration) -> Result<Duration> {
    let before = main_thread(mesh)?;
    tokio::time::sleep(during).await;
    Ok((main_thread(mesh)? - before).div_f64(during.as_secs_f64()))
}

/// So many endpoints; another `round` has one in twenty replaced.
pub fn endpoints(count: usize, round: usize) -> Vec<Endpoint> {
    let endpoint = |index: usize| {
        let replaced = index.is_multiple_of(20);
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let [_, high, mid, low] = number.to_be_bytes();
        let second = if replaced { 128 + u8::try_from(round % 100).unwrap_or(0) } else { high };
        Endpoint::new(IpAddr::from([10, second, mid, low]), 8080)
    };
    (0..count).map(endpoint).collect()
}

/// The middle of several measurements.
pub fn median(mut costs: Vec<Duration>) -> Duration {
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied().unwrap_or_default()
}
