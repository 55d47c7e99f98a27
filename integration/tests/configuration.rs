//! A wrong configuration is refused when it is loaded, with our words, and Envoy does not crash.

use std::{net::Ipv4Addr, path::Path};

use anyhow::Context as _;
use lab::{
    bootstrap::{Bootstrap, CertificateFiles, ExtensionPoint},
    certs::{Authority, spiffe_id},
    control_plane::{ControlPlane, Params, Protocol, Service},
    envoy::{Binary, Envoy, Options, Validation},
    mesh::{ECHO, WITHIN},
    netns::Netns,
};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use serde_json::{Value, json};

/// Checks bootstraps one after the other, as `envoy --mode validate` does.
struct Checker {
    netns: Netns,
    files: CertificateFiles,
    _folder: tempfile::TempDir,
}

impl Checker {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new().unwrap();
        let identity = authority.issue(&spiffe_id("default", "waypoint")).unwrap();
        let files =
            CertificateFiles::write(folder.path(), &identity.cert_pem, &identity.key_pem, authority.ca_pem()).unwrap();
        Self { netns: Netns::new("proxy").unwrap(), files, _folder: folder }
    }

    fn shipped(&self) -> Bootstrap {
        Bootstrap::load()
            .and_then(|bootstrap| bootstrap.with_ads((Ipv4Addr::LOCALHOST, 15010).into(), Protocol::Delta))
            .and_then(|bootstrap| bootstrap.with_certificates(&self.files))
            .unwrap()
    }

    async fn check(&self, bootstrap: &Bootstrap) -> Validation {
        Envoy::validate(&self.netns, bootstrap, &Options::default()).await.unwrap()
    }

    async fn refuses(&self, bootstrap: anyhow::Result<Bootstrap>, words: &[&str]) {
        let Validation { status, log } = self.check(&bootstrap.unwrap()).await;
        assert_eq!(status.code(), Some(1), "refused, not accepted and not crashed ({status}):\n{log}");
        for word in words {
            assert!(log.contains(word), "the message must contain {word:?}:\n{log}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_configuration_and_the_empty_one_are_accepted() {
    let checker = Checker::new();
    let empty = ExtensionPoint::ALL
        .into_iter()
        .try_fold(checker.shipped(), |bootstrap, point| bootstrap.with_config(point, &json!({})))
        .unwrap();
    for bootstrap in [checker.shipped(), empty] {
        let Validation { status, log } = checker.check(&bootstrap).await;
        assert!(status.success(), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_extension_point_refuses_what_it_does_not_know() {
    let checker = Checker::new();
    for (point, wrong_type, out_of_range) in [
        (ExtensionPoint::Retry, json!({ "max_retries": "one" }), json!({ "max_retries": 1_000 })),
        (ExtensionPoint::Fence, json!({ "tcp": 5 }), json!({ "tcp": { "user_timeout": "1ms" } })),
        (ExtensionPoint::Status, json!({ "capacity": true }), json!({ "capacity": 1 })),
        (ExtensionPoint::Watch, json!({ "treat_as_removed": "DRAINING" }), json!({ "treat_as_removed": ["ASLEEP"] })),
    ] {
        let name = point.name();
        let refused = format!("stale_guard: {name} configuration refused");
        let cases: [(Value, &str); 3] =
            [(json!({ "colour": "blue" }), "unknown field `colour`"), (wrong_type, "value"), (out_of_range, "value")];
        for (config, word) in cases {
            checker.refuses(checker.shipped().with_config(point, &config), &[&refused, "field \"", word]).await;
        }
        let no_json = json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": "{ no JSON" });
        checker.refuses(checker.shipped().with_any_config(point, &no_json), &[&refused, "not valid JSON"]).await;
        let other_name = checker.shipped().with_extension_name(point, "fense");
        checker.refuses(other_name, &["\"fense\"", &format!("\"{name}\"")]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_after_a_removal_needs_the_extension_that_has_the_timer() {
    let checker = Checker::new();
    let config = json!({ "close_after_removal": "60s" });
    let with = checker.shipped().with_config(ExtensionPoint::Fence, &config).unwrap();
    let Validation { status, log } = checker.check(&with).await;
    assert!(status.success(), "{log}");
    checker.refuses(with.without_status(), &["close_after_removal", "status"]).await;
}

/// A namespace in which `/etc/certs` holds what the shipped files name, and a control plane listens where
/// they look for it.
struct AsShipped {
    netns: Netns,
    _control_plane: ControlPlane,
}

impl AsShipped {
    async fn new() -> Self {
        let netns = Netns::new("proxy").unwrap();
        let authority = Authority::new().unwrap();
        let identity = authority.issue(&spiffe_id("default", "waypoint")).unwrap();
        let root = authority.ca_pem().to_owned();
        netns.run(move || certificates_in_etc(&identity.cert_pem, &identity.key_pem, &root)).unwrap();
        let control_plane = ControlPlane::start(&netns, Params::immediate()).await.unwrap();
        control_plane.set_service(Service::new(ECHO, Vec::new()));
        Self { netns, _control_plane: control_plane }
    }

    /// Envoy comes up with this bootstrap, all of the module's parts in it, and says nothing against it.
    async fn starts(&self, bootstrap: &Bootstrap, version: &str, config_yaml: bool) {
        let binary = Some(Binary::version(version).unwrap());
        let options = Options { binary, config_yaml, ..Options::default() };
        let how = if config_yaml { "--config-yaml" } else { "-c" };
        let envoy = Envoy::start_ready(&self.netns, bootstrap, &options, WITHIN).await;
        let envoy = envoy.unwrap_or_else(|error| panic!("Envoy {version} {how} must start: {error:#}"));
        let stats = envoy.admin().stats("^dynamicmodulescustom[.]").await.unwrap();
        for part in ["retry_requests", "fence_tunnels", "watch_"] {
            assert!(stats.keys().any(|name| name.contains(part)), "{version} {how} must load {part}: {stats:?}");
        }
        envoy.admin().get("/stale-guard").await.unwrap();
        let log = envoy.log().unwrap();
        let wrong: Vec<_> =
            log.lines().filter(|line| line.contains("stale_guard") && line.contains("[error]")).collect();
        assert!(wrong.is_empty(), "{version} {how}: {wrong:#?}");
    }
}

/// Gives the calling thread, and the processes that it starts, an `/etc` with nothing but certificates.
fn certificates_in_etc(chain: &str, key: &str, root: &str) -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("unshare(CLONE_NEWNS)")?;
    mount(Some("tmpfs"), "/etc", Some("tmpfs"), MsFlags::empty(), None::<&str>).context("mount a tmpfs on /etc")?;
    std::fs::create_dir("/etc/certs")?;
    CertificateFiles::write(Path::new("/etc/certs"), chain, key, root)?;
    Ok(())
}

/// What the shipped file writes out is what a reader of its comments takes for the default.
#[test]
fn the_shipped_values_are_the_defaults() {
    fn debug<T: std::fmt::Debug>(value: T) -> String {
        format!("{value:?}")
    }
    use stale_guard::{fence::config::FenceConfig, retry, status::config::StatusConfig, watch::config::WatchConfig};
    let parsed = |point: ExtensionPoint, json: &[u8]| match point {
        ExtensionPoint::Retry => debug(retry::policy::Policy::parse(json).unwrap()),
        ExtensionPoint::Fence => debug(FenceConfig::parse(json).unwrap()),
        ExtensionPoint::Status => debug(StatusConfig::parse(json).unwrap()),
        ExtensionPoint::Watch => debug(WatchConfig::parse(json).unwrap()),
    };
    let bootstrap = Bootstrap::load().unwrap();
    for point in ExtensionPoint::ALL {
        let field =
            if point.name() == "retry" || point.name() == "fence" { "filter_config" } else { "extension_config" };
        for place in bootstrap.extension(point) {
            let value = bootstrap.value().pointer(&format!("{place}/typed_config/{field}/value")).unwrap();
            assert_eq!(parsed(point, value.to_string().as_bytes()), parsed(point, b"{}"), "{place}");
        }
    }
}

/// A tunnel to a host that answers nothing: the file's comment, and docs that cite it, say how long it takes.
#[test]
fn the_time_that_the_comment_gives_a_tunnel_is_attempts_times_timeout() {
    let bootstrap = Bootstrap::load().unwrap();
    let at = |pointer: String| bootstrap.value().pointer(&pointer).cloned().unwrap_or(Value::Null);
    let proxy = bootstrap.tunnel_filter("envoy.filters.network.tcp_proxy").unwrap();
    let attempts = at(format!("{proxy}/typed_config/max_connect_attempts")).as_u64().unwrap_or(1);
    let timeout = at(format!("{}/connect_timeout", bootstrap.cluster("connect_originate").unwrap()));
    let seconds: u64 = timeout.as_str().unwrap().trim_end_matches('s').parse().unwrap();
    let text = bootstrap.to_yaml().unwrap();
    assert!(
        text.contains(&format!("connect_timeout to fail, {} s here", attempts * seconds)),
        "{attempts} x {seconds} s"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shipped_file_starts_as_it_is() {
    let place = AsShipped::new().await;
    let files = Bootstrap::shipped().unwrap();
    assert!(!files.is_empty(), "nothing is shipped");
    for file in files {
        let bootstrap = Bootstrap::read(&file).unwrap();
        assert_eq!(bootstrap.to_yaml().unwrap(), std::fs::read_to_string(&file).unwrap(), "byte for byte");
        for config_yaml in [false, true] {
            place.starts(&bootstrap, "1.40.0", config_yaml).await;
        }
    }
}

/// The file's head says what to leave out there.
#[tokio::test(flavor = "multi_thread")]
async fn every_shipped_file_starts_on_older_envoys_without_what_its_comment_names() {
    let place = AsShipped::new().await;
    for file in Bootstrap::shipped().unwrap() {
        let bootstrap = Bootstrap::read(&file).and_then(Bootstrap::without_config_validators).unwrap();
        for version in ["1.38.3", "1.39.3"] {
            for config_yaml in [false, true] {
                place.starts(&bootstrap, version, config_yaml).await;
            }
        }
    }
}

/// Envoy's YAML reader turns a fraction inside a `google.protobuf.Struct` into a string, and `off` into
/// `false`. Every number and every mode is read as its writer meant it, also in a route's configuration.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_and_modes_are_read_as_yaml_hands_them_over() {
    let checker = Checker::new();
    let retry = json!({ "mode": false, "max_retries": 2.0, "budget": { "ratio": 0.05, "min_per_second": 1e2 } });
    let fence = json!({ "max_connection_age": "30m", "max_connection_age_jitter": 0.25, "tcp": { "keepalive": { "probes": 4.0 } } });
    let status = json!({ "capacity": 1_048_576.0 });
    let bootstrap = checker
        .shipped()
        .with_config(ExtensionPoint::Retry, &retry)
        .and_then(|bootstrap| bootstrap.with_config(ExtensionPoint::Fence, &fence))
        .and_then(|bootstrap| bootstrap.with_config(ExtensionPoint::Status, &status))
        .unwrap();
    let yaml = bootstrap.to_yaml().unwrap();
    assert!(yaml.contains("ratio: 0.05") && yaml.contains("probes: 4.0"), "the test needs plain fractions:\n{yaml}");
    for text in [yaml.replace("mode: false", "mode: off"), yaml] {
        let Validation { status, log } = checker.check(&Bootstrap::from_yaml(&text).unwrap()).await;
        assert!(status.success(), "{log}");
    }
}
