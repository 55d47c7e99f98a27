//! The doctor on real Envoy: what it reads from the admin endpoint of a running proxy, and from the same saved
//! to files.

use std::path::Path;
use std::time::{Duration, Instant};

use lab::{
    bootstrap::{Bootstrap, CertificateFiles, ExtensionPoint, Variant},
    certs::{Authority, spiffe_id},
    envoy::{Binary, Envoy, Options},
    mesh::{ECHO, Mesh, Setup, WITHIN},
    netns::Netns,
    scenes::warm,
};
use serde_json::{Value, json};
use stale_guard_doctor::cli::{self, Exit};

/// istiod's waypoint as a bootstrap, without Stale Guard.
const ISTIOD: &str = include_str!("../../../doctor/tests/data/istiod-waypoint.yaml");
/// What it suffers from.
const SUFFERS: [&str; 5] = ["SG0101", "SG0102", "SG0103", "SG0105", "SG0108"];

// === a doctor in the proxy's namespace ===

/// Runs the doctor where the proxy lives, and gives its JSON report.
fn examine(netns: &Netns, arguments: &[&str]) -> (Exit, Value) {
    let fixed = ["stale-guard-doctor", "--output", "json", "--failure-threshold", "info"];
    let arguments: Vec<_> = fixed.iter().chain(arguments).map(|argument| (*argument).into()).collect();
    netns.run(move || {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let exit = cli::run(arguments, &mut std::io::empty(), &mut output, &mut errors);
        assert!(errors.is_empty(), "{}", String::from_utf8_lossy(&errors));
        (exit, serde_json::from_slice(&output).expect("a report"))
    })
}

/// The same from the running admin endpoint, and from its answers in files; both must agree.
async fn both_ways(envoy: &Envoy) -> (Exit, Value) {
    let live = examine(envoy.netns(), &["http://127.0.0.1:15000"]);
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (name, path) in
        [("dump.json", "/config_dump"), ("clusters.json", "/clusters?format=json"), ("stats.txt", "/stats")]
    {
        let file = folder.path().join(name);
        std::fs::write(&file, envoy.admin().get(path).await.unwrap()).unwrap();
        files.push(file.to_str().unwrap().to_owned());
    }
    let saved = examine(envoy.netns(), &[&files[0], "--clusters", &files[1], "--stats", &files[2]]);
    assert_eq!(codes(&live.1), codes(&saved.1), "the endpoint and its answers in files lead to the same");
    live
}

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    let mut codes: Vec<&str> = findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect();
    codes.sort_unstable();
    codes
}

// === proxies ===

fn on(version: &str, variant: Variant) -> Setup {
    let binary = Binary::version(version).unwrap();
    let setup = Setup::new(variant).envoy(|options| options.binary = Some(binary));
    let validators = version.starts_with("1.40") || !variant.has_module();
    if validators { setup } else { setup.bootstrap(Bootstrap::without_config_validators) }
}

fn certified(yaml: &str, folder: &Path) -> Bootstrap {
    let authority = Authority::new().unwrap();
    let identity = authority.issue(&spiffe_id("shop", "waypoint")).unwrap();
    CertificateFiles::write(folder, &identity.cert_pem, &identity.key_pem, authority.ca_pem()).unwrap();
    Bootstrap::from_yaml(&yaml.replace("/etc/certs", folder.to_str().unwrap())).unwrap()
}

/// Starts an Envoy that has no control plane, hence never becomes ready, and waits for its admin endpoint to
/// say `words` in its dump.
async fn start(bootstrap: &Bootstrap, version: &str, words: &str) -> Envoy {
    let netns = Netns::new("proxy").unwrap();
    let options = Options { binary: Some(Binary::version(version).unwrap()), ..Options::default() };
    let envoy = Envoy::start(&netns, bootstrap, &options).unwrap();
    let deadline = Instant::now() + WITHIN;
    loop {
        envoy.assert_alive().unwrap();
        if envoy.admin().get("/config_dump").await.is_ok_and(|dump| dump.contains(words)) {
            return envoy;
        }
        assert!(Instant::now() < deadline, "no {words:?} in the dump:\n{}", envoy.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn nothing_is_found_as_shipped_on(version: &str) {
    let (mesh, _pod) = warm(on(version, Variant::StaleGuard)).await.unwrap();
    let (exit, report) = both_ways(&mesh.envoy).await;
    assert_eq!(report["findings"], json!([]), "{version}: {report:#}");
    assert_eq!(
        (exit, &report["exposure"], &report["unread"]),
        (Exit::Clean, &json!("fenced"), &json!([])),
        "{version}"
    );
    let told = report["proxy"]["envoy"].as_str().unwrap();
    assert_eq!(told, version, "the version is Envoy's own");
}

async fn istiod_s_waypoint_is_told_on(version: &str) {
    let folder = tempfile::tempdir().unwrap();
    let envoy = start(&certified(ISTIOD, folder.path()), version, "outer_connect_originate").await;
    let (exit, report) = both_ways(&envoy).await;
    assert_eq!(codes(&report), SUFFERS, "{version}: {report:#}");
    assert_eq!(
        (exit, &report["exposure"], &report["unread"]),
        (Exit::Found, &json!("exposed"), &json!([])),
        "{version}"
    );
}

// === tests ===

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_found_on_the_shipped_configuration_of_envoy_1_40() {
    nothing_is_found_as_shipped_on("1.40.0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_found_on_the_shipped_configuration_of_envoy_1_39() {
    nothing_is_found_as_shipped_on("1.39.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_found_on_the_shipped_configuration_of_envoy_1_38() {
    nothing_is_found_as_shipped_on("1.38.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn istiod_s_waypoint_is_told_what_it_suffers_from_on_envoy_1_40() {
    istiod_s_waypoint_is_told_on("1.40.0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn istiod_s_waypoint_is_told_what_it_suffers_from_on_envoy_1_39() {
    istiod_s_waypoint_is_told_on("1.39.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn istiod_s_waypoint_is_told_what_it_suffers_from_on_envoy_1_38() {
    istiod_s_waypoint_is_told_on("1.38.3").await;
}

/// The fault itself, before any request meets it: the endpoint is gone, its outer connection is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_removed_pod_is_shown_on_stock_envoy_and_not_behind_a_fence() {
    for (variant, expected) in [(Variant::Stock, true), (Variant::StaleGuard, false)] {
        let (mesh, pod) = warm(Setup::new(variant)).await.unwrap();
        let before = examine_mesh(&mesh).await;
        assert!(!codes(&before).contains(&"SG0109"), "the pod is listed: {before:#}");
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        mesh.drained(ECHO).await.unwrap();
        let after = examine_mesh(&mesh).await;
        assert_eq!(codes(&after).contains(&"SG0109"), expected, "{variant:?}: {after:#}");
    }
}

async fn examine_mesh(mesh: &Mesh) -> Value {
    both_ways(&mesh.envoy).await.1
}

/// Faults that Envoy itself accepts.
#[tokio::test(flavor = "multi_thread")]
async fn faults_that_envoy_accepts_are_found() {
    type Plant = fn(Bootstrap) -> anyhow::Result<Bootstrap>;
    let faults: [(&str, &str, Plant); 5] = [
        ("SG0203", "exposed", |bootstrap| {
            let (fence, key) = filters(&bootstrap)?;
            let [first, second] = [&fence, &key].map(|place| bootstrap.value().pointer(place).unwrap().clone());
            bootstrap.patch(&fence, second)?.patch(&key, first)
        }),
        ("SG0204", "exposed", |bootstrap| {
            let (_, key) = filters(&bootstrap)?;
            bootstrap.remove(&key)
        }),
        ("SG0206", "exposed", |bootstrap| {
            let (_, key) = filters(&bootstrap)?;
            bootstrap.remove(&format!("{key}/typed_config/on_new_connection/0/shared_with_upstream"))
        }),
        ("SG0302", "fenced", |bootstrap| {
            let status = json!({ "watch": { "cluster": "no_such_cluster" } });
            bootstrap.with_config_fields(ExtensionPoint::Status, &status)
        }),
        ("SG0104", "fenced", |bootstrap| bootstrap.with_retry_on("reset")),
    ];
    for (code, exposure, plant) in faults {
        let mesh = Setup::new(Variant::StaleGuard).bootstrap(plant).start().await.unwrap();
        let (exit, report) = both_ways(&mesh.envoy).await;
        assert_eq!((codes(&report), exit), (vec![code], Exit::Found), "{report:#}");
        assert_eq!(report["exposure"], exposure, "{code}");
    }
}

/// JSON pointers of the fence, and of what puts its generation into the pool key.
fn filters(bootstrap: &Bootstrap) -> anyhow::Result<(String, String)> {
    let key = bootstrap.tunnel_filter("envoy.filters.network.set_filter_state")?;
    Ok((bootstrap.tunnel_filter("stale_guard.fence")?, key))
}

/// What happens to a fresh waypoint whose image lacks the file.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_envoy_refuses_for_want_of_the_module_is_found() {
    for version in ["1.39.3", "1.40.0"] {
        let folder = tempfile::tempdir().unwrap();
        let bootstrap = certified(ISTIOD, folder.path());
        // The listener comes by LDS, as from istiod, with the fence in front; the file of the module is nowhere.
        let place = bootstrap.listener("connect_originate").unwrap();
        let mut listener = bootstrap.value().pointer(&place).unwrap().clone();
        let fence = json!({ "name": "stale_guard.fence", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.dynamic_modules.v3.DynamicModuleNetworkFilter",
            // By its own name cargo's library path would have it.
            "dynamic_module_config": { "name": "stale_guard_absent", "do_not_close": true },
            "filter_name": "fence",
        } });
        listener["filter_chains"][0]["filters"].as_array_mut().unwrap().insert(0, fence);
        listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
        let lds = folder.path().join("lds.json");
        std::fs::write(&lds, json!({ "version_info": "1", "resources": [listener] }).to_string()).unwrap();
        let source = json!({ "path_config_source": { "path": lds }, "resource_api_version": "V3" });
        let bootstrap = bootstrap.remove(&place).unwrap();
        // Envoy asks for listeners once its clusters are there; those of services would be waited for.
        let bootstrap = ["80|http", "9000|tcp"].iter().fold(bootstrap, |bootstrap, service| {
            let cluster = bootstrap.cluster(&format!("inbound-vip|{service}|echo.shop.svc.cluster.local")).unwrap();
            bootstrap.remove(&cluster).unwrap()
        });
        let bootstrap = bootstrap.patch("/dynamic_resources/lds_config", source).unwrap();
        let envoy = start(&bootstrap, version, "error_state").await;
        let (exit, report) = both_ways(&envoy).await;
        let rejected = report["findings"].as_array().unwrap().iter().find(|finding| finding["code"] == "SG0202");
        let rejected = rejected.unwrap_or_else(|| panic!("{version}: {report:#}"));
        assert_eq!(rejected["places"], json!(["listener connect_originate"]));
        let message = rejected["message"].as_str().unwrap();
        assert!(message.contains("libstale_guard_absent.so"), "Envoy's own reason is told: {message}");
        assert_eq!((exit, &report["exposure"]), (Exit::Found, &json!("unknown")), "no tunnel can be opened at all");
    }
}
