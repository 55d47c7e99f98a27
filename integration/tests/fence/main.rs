//! probe
use http::StatusCode;
use lab::{
    app::Behaviour,
    bootstrap::Variant,
    mesh::{ECHO, Mesh, Setup},
    pod::{Ending, Pod},
    ztunnel::{ConnectBehaviour, TlsBehaviour},
};
use std::time::Duration;

async fn scene(name: &str, fault: impl AsyncFn(&Mesh, &Pod)) {
    let mesh = Setup::new(Variant::FenceOnly)
        .envoy(|o| o.component_log_levels.push(("dynamic_modules".into(), "debug".into())))
        .bootstrap(|b| b.with_config_fields(lab::bootstrap::ExtensionPoint::Fence, &serde_json::json!({"tcp": {"user_timeout": "2s", "keepalive": {"idle":"1s","interval":"1s","probes":1}}})))
        .bootstrap(|b| b.with_route_timeout(Duration::from_secs(8)))
        .start().await.unwrap();
    let pod = mesh.pod("old", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    fault(&mesh, &pod).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for l in mesh
        .envoy
        .log()
        .unwrap()
        .lines()
        .filter(|l| l.contains("XATTR") || l.contains("XREAD") || l.contains("broke:") || l.contains("\"log\""))
    {
        println!("[{name}] {l}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probe() {
    scene("connect503", async |m, p| {
        p.ztunnel().unwrap().set_connect(ConnectBehaviour::Answer(StatusCode::SERVICE_UNAVAILABLE));
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("connect401", async |m, p| {
        p.ztunnel().unwrap().set_connect(ConnectBehaviour::Answer(StatusCode::UNAUTHORIZED));
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("connectnever", async |m, p| {
        p.ztunnel().unwrap().set_connect(ConnectBehaviour::NeverAnswer);
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("connectend", async |m, p| {
        p.ztunnel().unwrap().set_connect(ConnectBehaviour::EndConnection(Ending::Rst));
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("refuse", async |m, p| {
        p.ztunnel().unwrap().refuse().await;
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("tlsrefuse", async |m, p| {
        p.ztunnel().unwrap().set_tls(TlsBehaviour::RefuseClient);
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("tlsuntrusted", async |m, p| {
        p.ztunnel().unwrap().set_tls(TlsBehaviour::UntrustedServer);
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("tlsnever", async |m, p| {
        p.ztunnel().unwrap().set_tls(TlsBehaviour::NeverAnswer);
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("blackhole", async |m, p| {
        m.get(ECHO, "/").await.unwrap();
        p.link().black_hole().await.unwrap();
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("blackhole idle", async |m, p| {
        m.get(ECHO, "/").await.unwrap();
        p.link().black_hole().await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
    })
    .await;
    scene("ztunnel rst in flight", async |m, p| {
        m.get(ECHO, "/").await.unwrap();
        let (r, _) = tokio::join!(m.post(ECHO, "/?hang=headers"), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            p.ztunnel().unwrap().connections().end_all(Ending::Rst).await.unwrap();
        });
        println!("{r:?}");
    })
    .await;
    scene("ztunnel fin in flight", async |m, p| {
        m.get(ECHO, "/").await.unwrap();
        let (r, _) = tokio::join!(m.post(ECHO, "/?hang=headers"), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            p.ztunnel().unwrap().connections().end_all(Ending::Fin).await.unwrap();
        });
        println!("{r:?}");
    })
    .await;
    scene("app rst", async |m, p| {
        p.script().next(1, Behaviour::ReadThenReset);
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("app fin", async |m, p| {
        p.script().next(1, Behaviour::ReadThenClose);
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
    scene("no app", async |m, p| {
        p.app().unwrap().refuse().await;
        let r = m.post(ECHO, "/").await.unwrap();
        println!("{r:?}");
    })
    .await;
}
