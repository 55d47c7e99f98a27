//! The manifests: what the API server and istiod's own controller make of them.

use lab::envoy::{Binary, Envoy, Options, module};
use lab::istio::{Istiod, Settings, bootstrap_override, folder};
use lab::netns::Netns;
use serde_json::Value;

const WAYPOINTS: [&str; 4] =
    ["waypoint/overlays/observe", "waypoint/overlays/enforce", "all-waypoints/observe", "all-waypoints/enforce"];
const GATEWAYS: [&str; 2] = ["ingress/overlays/observe", "ingress/overlays/enforce"];

async fn istiod() -> Istiod {
    Istiod::start(&Netns::new("istiod").unwrap(), &Settings::default()).await.unwrap()
}

async fn built(istiod: &Istiod, overlay: &str) -> String {
    istiod.kustomize(&folder().join(overlay)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_and_webhook_accept_them_with_the_one_general_warning() {
    let istiod = istiod().await;
    for overlay in WAYPOINTS.iter().chain(&GATEWAYS) {
        let yaml = built(&istiod, overlay).await;
        assert_eq!(istiod.validate(&yaml).await.unwrap(), 2, "{overlay}: an EnvoyFilter and a ConfigMap");
        let warnings = istiod.apply(&yaml).await.unwrap();
        assert_eq!(warnings.len(), 1, "{overlay}: {warnings:?}");
        assert!(warnings[0].contains("EnvoyFilter exposes internal implementation details"), "{overlay}: {warnings:?}");
        assert!(!warnings[0].contains("unknown field"), "{overlay}: {warnings:?}");
    }
}

/// What stands between a misspelt manifest and a mesh.
#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_manifest_is_refused_or_warned_of() {
    let istiod = istiod().await;
    let yaml = built(&istiod, "waypoint/overlays/enforce").await;
    let unknown = yaml.replace("v3.DynamicModuleNetworkFilter", "v3.DynamicModuleNetworkFilters");
    let error = istiod.validate(&unknown).await.unwrap_err().to_string();
    assert!(error.contains("referenced type unknown"), "{error}");
    let schema = yaml.replace("applyTo: HTTP_FILTER", "applyTo: HTTP_FILTERS");
    let error = istiod.validate(&schema).await.unwrap_err().to_string();
    assert!(error.contains("HTTP_FILTERS"), "{error}");
    // Unknown fields of a known type: istiod would leave them out without a word if the webhook were off.
    let field = yaml.replace("do_not_close: true", "do_not_cloze: true");
    let warnings = istiod.apply(&field).await.unwrap().join("\n");
    assert!(warnings.contains("do_not_cloze"), "{warnings}");
}

#[tokio::test(flavor = "multi_thread")]
async fn istiods_controller_lays_them_over_the_deployment() {
    let istiod = istiod().await;
    for overlay in WAYPOINTS {
        let reference = (!overlay.starts_with("all-")).then_some("stale-guard-waypoint");
        let objects = render(&istiod, overlay, "istio-waypoint", "waypoint", "default", reference).await;
        assert_pod(&objects, overlay);
    }
    for overlay in GATEWAYS {
        let reference = Some("stale-guard-ingress");
        let objects = render(&istiod, overlay, "istio", "ingress", "istio-ingress", reference).await;
        assert_pod(&objects, overlay);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_image_volume_takes_the_init_containers_place() {
    let istiod = istiod().await;
    let overlay = tempfile::tempdir_in(folder().join("waypoint")).unwrap();
    let kustomization = "resources: [../overlays/enforce]\ncomponents: [../components/image-volume]\n";
    std::fs::write(overlay.path().join("kustomization.yaml"), kustomization).unwrap();
    let name = format!("waypoint/{}", overlay.path().file_name().unwrap().to_str().unwrap());
    let objects = render(&istiod, &name, "istio-waypoint", "waypoint", "default", Some("stale-guard-waypoint")).await;
    let pod = &kind(&objects, "Deployment")["spec"]["template"]["spec"];
    assert!(pod.get("initContainers").is_none(), "{pod:#}");
    let volume = named(&pod["volumes"], "stale-guard");
    assert_eq!(volume["image"]["reference"], "registry.example/stale-guard:dev");
    assert_proxy(pod, "image volume");
}

/// A gateway's listener connect_originate comes from the bootstrap: Envoy accepts it over pilot-agent's own.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_accepts_the_overrides_over_pilot_agents_bootstrap() {
    let istiod = istiod().await;
    let folder = tempfile::tempdir().unwrap();
    for (overlay, kind) in [(GATEWAYS[0], "router"), (GATEWAYS[1], "router"), (WAYPOINTS[1], "waypoint")] {
        let overrides = bootstrap_override(&built(&istiod, overlay).await).unwrap();
        let bootstrap = lab::istio::bootstrap(&istiod, folder.path(), kind, "1.31.0").await.unwrap();
        for version in ["1.39.3", "1.40.0"] {
            let mut options = Options { module: Some(module().unwrap()), ..Options::default() };
            options.binary = Some(Binary::version(version).unwrap());
            options.args = vec!["--config-yaml".to_owned(), overrides.to_string()];
            let netns = Netns::new("validate").unwrap();
            let validation = Envoy::validate(&netns, &bootstrap, &options).await.unwrap();
            assert!(validation.status.success(), "{overlay} on {version}: {}", validation.log);
            // Without the file Envoy does not start, and the rollout stops at its first pod.
            options.module = None;
            let validation = Envoy::validate(&netns, &bootstrap, &options).await.unwrap();
            assert!(!validation.status.success(), "{overlay} on {version} without the file");
        }
    }
}

/// The gateway's fence is written out twice; nothing but the mode and the attempts may differ.
#[test]
fn the_gateways_two_deployments_differ_in_mode_and_attempts_alone() {
    let read = |path: &str| std::fs::read_to_string(folder().join(path)).unwrap();
    let observe = read("ingress/module/deployment.yaml").replace("mode: observe", "mode: enforce");
    let enforce = read("ingress/overlays/enforce/deployment.yaml");
    let enforce: Vec<&str> = enforce.lines().filter(|line| line.trim() != "max_connect_attempts: 2").collect();
    assert_eq!(observe.lines().collect::<Vec<_>>(), enforce);
}

async fn render(
    istiod: &Istiod,
    overlay: &str,
    class: &str,
    name: &str,
    namespace: &str,
    parameters: Option<&str>,
) -> Vec<Value> {
    let infrastructure = parameters.map_or_else(String::new, |name| {
        format!("  infrastructure:\n    parametersRef: {{ group: \"\", kind: ConfigMap, name: {name} }}\n")
    });
    let listener = if class == "istio" { "port: 80, protocol: HTTP" } else { "port: 15008, protocol: HBONE" };
    let gateway = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata:\n  name: {name}\n  namespace: {namespace}\n\
         spec:\n  gatewayClassName: {class}\n  listeners:\n  - {{ name: mesh, {listener} }}\n{infrastructure}"
    );
    let objects = format!("{}\n---\n{gateway}", built(istiod, overlay).await);
    istiod.render(&objects).await.unwrap_or_else(|error| panic!("{overlay}: {error:#}"))
}

fn assert_pod(objects: &[Value], overlay: &str) {
    let template = &kind(objects, "Deployment")["spec"]["template"];
    let pod = &template["spec"];
    let init = named(&pod["initContainers"], "stale-guard");
    assert_eq!(init["args"], serde_json::json!(["/stale-guard"]), "{overlay}");
    assert_eq!(init["securityContext"]["runAsNonRoot"], true, "{overlay}: as strict as the proxy's container");
    assert_eq!(named(&pod["volumes"], "stale-guard")["emptyDir"], serde_json::json!({}), "{overlay}");
    assert_proxy(pod, overlay);
    let annotations = &template["metadata"]["annotations"];
    assert!(annotations["stale-guard/bootstrap"].as_str().unwrap().contains("extension_name: status"), "{overlay}");
    assert!(annotations.get("prometheus.io/port").is_some(), "{overlay}: istiod's own annotations stay");
}

fn assert_proxy(pod: &Value, overlay: &str) {
    let proxy = named(&pod["containers"], "istio-proxy");
    let environment = |name: &str| named(&proxy["env"], name)["value"].as_str().unwrap().to_owned();
    let search = environment("ENVOY_DYNAMIC_MODULES_SEARCH_PATH");
    let file = environment("ISTIO_BOOTSTRAP_OVERRIDE");
    assert!(proxy["env"].as_array().unwrap().len() > 10, "{overlay}: istiod's own environment stays");
    let mount = named(&proxy["volumeMounts"], "stale-guard");
    assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&search.into(), &true.into()), "{overlay}");
    let mount = named(&proxy["volumeMounts"], "stale-guard-bootstrap");
    let item = &named(&pod["volumes"], "stale-guard-bootstrap")["downwardAPI"]["items"][0];
    let path = format!("{}/{}", mount["mountPath"].as_str().unwrap(), item["path"].as_str().unwrap());
    assert_eq!(path, file, "{overlay}: the override is where pilot-agent looks");
    assert_eq!(item["fieldRef"]["fieldPath"], "metadata.annotations['stale-guard/bootstrap']", "{overlay}");
    assert!(named(&proxy["volumeMounts"], "workload-socket").is_object(), "{overlay}: istiod's own mounts stay");
}

fn kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let list = list.as_array().unwrap_or_else(|| panic!("no list for {name}"));
    list.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("no {name} in {list:?}"))
}
