//! Certificates by SDS, as pilot-agent serves them to Envoy: `default` is the proxy's own, `ROOTCA` what its
//! peers must come from.

use std::path::Path;

use anyhow::{Context, Result};
use envoy_types::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, TlsCertificate, secret::Type,
};
use envoy_types::pb::envoy::service::discovery::v3 as xds;
use envoy_types::pb::envoy::service::secret::v3::secret_discovery_service_server as sds;
use envoy_types::util::pack_any;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

use crate::certs::{Authority, Identity};

/// A server of secrets on a Unix socket; dropping it ends it.
#[derive(Debug)]
pub struct Sds {
    secrets: watch::Sender<Secrets>,
    /// How many answers have been acknowledged, of each version.
    acked: watch::Receiver<Vec<(u64, String)>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Secrets {
    version: u64,
    identity: Identity,
    root: String,
}

#[derive(Debug)]
struct Service {
    secrets: watch::Receiver<Secrets>,
    acked: watch::Sender<Vec<(u64, String)>>,
}

type Responses<T> = UnboundedReceiverStream<Result<T, Status>>;

// === impl Sds ===

impl Sds {
    /// Listens on `socket`.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn start(socket: &Path, authority: &Authority, identity: Identity) -> Result<Self> {
        let listener = UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
        let first = Secrets { version: 1, identity, root: authority.ca_pem().to_owned() };
        let (secrets, served) = watch::channel(first);
        let (acks, acked) = watch::channel(Vec::new());
        let service = sds::SecretDiscoveryServiceServer::new(Service { secrets: served, acked: acks });
        let task = tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            // An error closes the socket, and Envoy's log says so.
            let _ = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
        Ok(Self { secrets, acked, task })
    }

    /// Sends a new certificate, and returns once Envoy has acknowledged it.
    ///
    /// # Errors
    /// Envoy has not within the time.
    pub async fn rotate(&self, identity: Identity, within: std::time::Duration) -> Result<()> {
        self.secrets.send_modify(|secrets| {
            secrets.version += 1;
            secrets.identity = identity;
        });
        let version = self.secrets.borrow().version;
        let mut acked = self.acked.clone();
        let wanted = acked.wait_for(|all| all.iter().any(|(acked, name)| *acked == version && name == "default"));
        tokio::time::timeout(within, wanted).await.context("Envoy has not acknowledged the certificate")??;
        Ok(())
    }
}

impl Drop for Sds {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Secrets ===

impl Secrets {
    fn response(&self, name: &str) -> Result<xds::DiscoveryResponse, Status> {
        let kind = match name {
            "default" => Type::TlsCertificate(TlsCertificate {
                certificate_chain: inline(&self.identity.cert_pem),
                private_key: inline(&self.identity.key_pem),
                ..Default::default()
            }),
            "ROOTCA" => Type::ValidationContext(CertificateValidationContext {
                trusted_ca: inline(&self.root),
                ..Default::default()
            }),
            other => return Err(Status::not_found(format!("no secret {other}"))),
        };
        let secret = Secret { name: name.to_owned(), r#type: Some(kind) };
        let any = pack_any(secret);
        Ok(xds::DiscoveryResponse {
            version_info: self.version.to_string(),
            nonce: self.version.to_string(),
            type_url: any.type_url.clone(),
            resources: vec![any],
            ..Default::default()
        })
    }
}

// === impl Service ===

#[tonic::async_trait]
impl sds::SecretDiscoveryService for Service {
    type StreamSecretsStream = Responses<xds::DiscoveryResponse>;
    type DeltaSecretsStream = Responses<xds::DeltaDiscoveryResponse>;

    async fn stream_secrets(
        &self,
        request: Request<Streaming<xds::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamSecretsStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (mut requests, mut secrets, acked) = (request.into_inner(), self.secrets.clone(), self.acked.clone());
        tokio::spawn(async move {
            let mut name = String::new();
            loop {
                tokio::select! {
                    request = requests.message() => {
                        let Ok(Some(request)) = request else { return };
                        if let Some(wanted) = request.resource_names.first() {
                            name.clone_from(wanted);
                        }
                        // A first request has no nonce; a refusal has an error, and is in Envoy's log.
                        let answers = request.response_nonce.parse::<u64>().ok();
                        match answers {
                            Some(version) if request.error_detail.is_none() => {
                                acked.send_modify(|all| all.push((version, name.clone())));
                                continue;
                            }
                            Some(_) => continue,
                            None => {}
                        }
                    }
                    changed = secrets.changed() => if changed.is_err() { return },
                }
                let response = secrets.borrow_and_update().response(&name);
                if sender.send(response).is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }

    async fn delta_secrets(
        &self,
        _request: Request<Streaming<xds::DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaSecretsStream>, Status> {
        Err(Status::unimplemented("Istio's secrets are not delta"))
    }

    async fn fetch_secrets(
        &self,
        _request: Request<xds::DiscoveryRequest>,
    ) -> Result<Response<xds::DiscoveryResponse>, Status> {
        Err(Status::unimplemented("secrets are streamed"))
    }
}

fn inline(pem: &str) -> Option<DataSource> {
    Some(DataSource { specifier: Some(Specifier::InlineString(pem.to_owned())), ..Default::default() })
}
