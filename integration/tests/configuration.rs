//! A wrong configuration is refused when it is loaded, with our words, and Envoy does not crash.

use std::net::Ipv4Addr;

use lab::{
    bootstrap::{Bootstrap, CertificateFiles, ExtensionPoint},
    certs::{Authority, spiffe_id},
    control_plane::Protocol,
    envoy::{Envoy, Options, Validation},
    netns::Netns,
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
