//! What a mesh is started with.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicUsize;

use anyhow::Result;
use serde_json::json;

use super::waypoint::{ECHO, Mesh, WITHIN};
use crate::bootstrap::{Bootstrap, CertificateFiles, Variant};
use crate::certs::{Authority, spiffe_id};
use crate::control_plane::{ControlPlane, Params, Protocol, Service};
use crate::envoy::{Envoy, Options};
use crate::netns::{Fabric, Netns};

/// A change to the bootstrap beyond its variant.
type Customise = Box<dyn FnOnce(Bootstrap) -> Result<Bootstrap> + Send>;

/// What a mesh is started with.
pub struct Setup {
    variant: Variant,
    protocol: Protocol,
    params: Params,
    options: Options,
    hosts: Vec<String>,
    customise: Vec<Customise>,
}

// === impl Setup ===

impl Setup {
    /// The shipped configuration in one of its variants, one worker, delta protocol, no debounce,
    /// one service ([`ECHO`]).
    #[must_use]
    pub fn new(variant: Variant) -> Self {
        Self {
            variant,
            protocol: Protocol::Delta,
            params: Params::immediate(),
            options: Options::default(),
            hosts: vec![ECHO.to_owned()],
            customise: Vec::new(),
        }
    }

    /// Worker threads.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.options.workers = workers;
        self
    }

    /// State of the world or delta.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// The control plane's behaviour.
    #[must_use]
    pub fn params(mut self, params: Params) -> Self {
        self.params = params;
        self
    }

    /// The services, by host name.
    #[must_use]
    pub fn services(mut self, hosts: &[&str]) -> Self {
        self.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        self
    }

    /// How Envoy is run.
    #[must_use]
    pub fn envoy(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// A further change to the bootstrap.
    #[must_use]
    pub fn bootstrap(mut self, change: impl FnOnce(Bootstrap) -> Result<Bootstrap> + Send + 'static) -> Self {
        self.customise.push(Box::new(change));
        self
    }

    /// Starts everything but pods.
    ///
    /// # Errors
    /// Something is missing or refused; Envoy's log is part of the error.
    pub async fn start(self) -> Result<Mesh> {
        let fabric = Fabric::new().await?;
        let proxy = Netns::new("proxy")?;
        let addrs = [IpAddr::V4(Ipv4Addr::new(10, 244, 0, 2)), IpAddr::from([0xfd00, 0x244, 0, 0, 0, 0, 0, 2])];
        let link = fabric.attach(&proxy, &addrs).await?;
        let authority = Authority::new()?;
        let control_plane = ControlPlane::start(&proxy, self.params).await?;
        for host in &self.hosts {
            control_plane.set_service(Service::new(host, Vec::new()));
        }
        let folder = tempfile::tempdir()?;
        let identity = authority.issue(&spiffe_id("default", "waypoint"))?;
        let files = CertificateFiles::write(folder.path(), &identity.cert_pem, &identity.key_pem, authority.ca_pem())?;
        let hosts: Vec<&str> = self.hosts.iter().map(String::as_str).collect();
        let bootstrap = Bootstrap::load()?
            .variant(self.variant)?
            .with_services(&hosts)?
            .with_ads(control_plane.addr(), self.protocol)?
            .with_certificates(&files)?
            .with_answer_headers()?;
        let bootstrap = self.customise.into_iter().try_fold(bootstrap, |bootstrap, change| change(bootstrap))?;
        let envoy = Envoy::start_ready(&proxy, &bootstrap, &self.options, WITHIN).await?;
        control_plane.wait_acked(control_plane.version(), WITHIN).await?;
        let listener = (Ipv4Addr::LOCALHOST, envoy.admin().listener("service").await?.port()).into();
        Ok(Mesh {
            control_plane,
            envoy,
            fabric,
            authority,
            listener,
            next_id: AtomicUsize::new(0),
            bootstrap,
            options: self.options,
            _link: link,
            _folder: folder,
        })
    }
}

// === impl Bootstrap ===

impl Bootstrap {
    /// Has every answer, also Envoy's own, tell its client what the access log tells the operator:
    /// the number of attempts, the response flags, the details and the last endpoint.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_answer_headers(self) -> Result<Self> {
        let host = format!("{}/typed_config/route_config/virtual_hosts/0", self.hcm()?);
        let header = |name: &str, value: &str| json!({ "header": { "key": name, "value": value } });
        self.patch(&format!("{host}/include_attempt_count_in_response"), json!(true))?.patch(
            &format!("{host}/response_headers_to_add"),
            json!([
                header("x-response-flags", "%RESPONSE_FLAGS%"),
                header("x-custom-flags", "%CUSTOM_FLAGS%"),
                header("x-upstream-host", "%UPSTREAM_HOST%"),
                header("x-response-code-details", "%RESPONSE_CODE_DETAILS%"),
            ]),
        )
    }
}
