//! One certificate authority per lab, and SPIFFE identities signed by it.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, ServerConfig,
    SignatureScheme,
};

/// A self-signed authority, as a mesh's root.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

/// A certificate with one SPIFFE id, and its key.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The URI in the subject alternative name, e.g. `spiffe://cluster.local/ns/default/sa/web`.
    pub spiffe_id: String,
    /// The certificate, PEM.
    pub cert_pem: String,
    /// The private key, PKCS #8, PEM.
    pub key_pem: String,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

/// The trust domain of the lab's mesh, and Istio's default.
pub const TRUST_DOMAIN: &str = "cluster.local";

/// The SPIFFE id that Istio gives to a service account.
#[must_use]
pub fn spiffe_id(namespace: &str, service_account: &str) -> String {
    format!("spiffe://{TRUST_DOMAIN}/ns/{namespace}/sa/{service_account}")
}

// === impl Authority ===

impl Authority {
    /// Makes a new authority with a key of its own.
    ///
    /// # Errors
    /// No entropy, or the certificate cannot be encoded.
    pub fn new() -> anyhow::Result<Self> {
        let key = KeyPair::generate().context("key of the authority")?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::OrganizationName, "stale-guard lab");
        // Unique, so that a certificate of another authority is one of an unknown issuer.
        let name = format!("root {}", uuid::Uuid::new_v4());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).context("certificate of the authority")?;
        let (pem, certificate) = (certificate.pem(), certificate.der().clone());
        Ok(Self { issuer: Issuer::new(params, key), certificate, pem })
    }

    /// The authority's certificate, PEM: what a peer has to trust.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.pem
    }

    /// Signs a certificate for client and server use.
    ///
    /// # Errors
    /// `spiffe_id` is not a URI in ASCII, or as [`Authority::new`].
    pub fn issue(&self, spiffe_id: &str) -> anyhow::Result<Identity> {
        let key = KeyPair::generate().context("key of an identity")?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.subject_alt_names = vec![SanType::URI(spiffe_id.try_into().context("SPIFFE id")?)];
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).context("certificate")?;
        Ok(Identity {
            spiffe_id: spiffe_id.to_owned(),
            cert_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            certificate: certificate.der().clone(),
            key: key.serialize_der(),
        })
    }

    /// TLS 1.3, ALPN `h2`, a client certificate of this authority with a SPIFFE id of [`TRUST_DOMAIN`]
    /// required: ztunnel's inbound side.
    ///
    /// # Errors
    /// The identity's key does not fit its certificate.
    pub fn server_config(&self, identity: &Identity) -> anyhow::Result<Arc<ServerConfig>> {
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider())
            .build()
            .context("client verifier")?;
        let verifier = Arc::new(TrustDomainVerifier { chain });
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![identity.certificate.clone()], identity.private_key())
            .context("server certificate")?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// The client side of the same, for tests that speak HBONE themselves. The server's chain is
    /// verified, a host name is not: SPIFFE certificates have none.
    ///
    /// # Errors
    /// As [`Authority::server_config`].
    pub fn client_config(&self, identity: &Identity) -> anyhow::Result<Arc<ClientConfig>> {
        client_config(self.roots()?, vec![identity.certificate.clone()], identity.private_key())
    }

    fn roots(&self) -> anyhow::Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).context("root certificate")?;
        Ok(roots)
    }
}

// === impl Identity ===

impl Identity {
    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// As [`Authority::client_config`], of files: `root-cert.pem`, `cert-chain.pem` and `key.pem` in `folder`.
///
/// # Errors
/// A file is missing, or is not what its name says.
pub fn client_config_of(folder: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let read = |name: &str| -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let certificates = CertificateDer::pem_file_iter(folder.join(name)).with_context(|| name.to_owned())?;
        Ok(certificates.collect::<Result<_, _>>()?)
    };
    let mut roots = RootCertStore::empty();
    for root in read("root-cert.pem")? {
        roots.add(root)?;
    }
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).context("key.pem")?;
    client_config(roots, read("cert-chain.pem")?, key)
}

fn client_config(
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> anyhow::Result<Arc<ClientConfig>> {
    let verifier = SpiffeVerifier { roots, provider: provider() };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)
        .context("client certificate")?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct SpiffeVerifier {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

// === impl SpiffeVerifier ===

impl ServerCertVerifier for SpiffeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts a client whose chain is good and whose SPIFFE id is of [`TRUST_DOMAIN`].
#[derive(Debug)]
struct TrustDomainVerifier {
    chain: Arc<dyn ClientCertVerifier>,
}

/// The peer has no SPIFFE id of the trust domain.
#[derive(Debug, thiserror::Error)]
#[error("no SPIFFE id of trust domain {TRUST_DOMAIN}")]
struct OtherTrustDomain;

// === impl TrustDomainVerifier ===

impl ClientCertVerifier for TrustDomainVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        if is_of_trust_domain(end_entity) {
            return Ok(verified);
        }
        // Told to the client as CertificateUnknown.
        Err(CertificateError::Other(OtherError(Arc::new(OtherTrustDomain))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Whether the certificate has a SPIFFE id of [`TRUST_DOMAIN`]. A look for the name's bytes, which serves
/// for certificates that the lab itself makes: a URI is tagged `[6]` (RFC 5280, section 4.2.1.6), and its
/// length, here below 128, stands before it.
fn is_of_trust_domain(certificate: &[u8]) -> bool {
    const URI: u8 = 0x86;
    let wanted = format!("spiffe://{TRUST_DOMAIN}/");
    certificate.windows(2 + wanted.len()).any(|window| match window {
        [URI, length, text @ ..] => usize::from(*length) > wanted.len() && text == wanted.as_bytes(),
        _ => false,
    })
}
