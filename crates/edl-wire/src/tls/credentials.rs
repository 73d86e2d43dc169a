//! The files by which a process shows who it is, read again when they have changed.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};

use crate::error::WireError;

/// The files of a process, each in PEM. One file may hold the certificate and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of those who may sign a peer's.
    pub authority: PathBuf,
    /// This process's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The marks that tell one content of a file from the next.
type Stamp = (u64, u64, i64, i64);

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

/// The certificates and the key that a process has. New connections take what the files hold then.
pub struct Credentials {
    files: TlsFiles,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    stamps: [Option<Stamp>; 3],
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Credentials {
    /// Reads the files.
    ///
    /// # Errors
    /// [`WireError::Invalid`] for a file that is missing, or holds something else; names it.
    pub fn read(files: TlsFiles) -> Result<Arc<Self>, WireError> {
        let credentials = Self {
            loaded: Mutex::new(Loaded::read(&files)?),
            files,
        };
        // Files that do not fit together are found now, and not by the first peer.
        credentials.client()?;
        Ok(Arc::new(credentials))
    }

    /// For an end that accepts clients with one of these names.
    pub(super) fn server(&self, clients: &[&str]) -> Result<Arc<ServerConfig>, WireError> {
        self.with_current(|loaded| {
            let verifier = OfRole::new(loaded.roots.clone(), clients)?;
            let mut config = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&TLS13])?
                .with_client_cert_verifier(Arc::new(verifier))
                .with_single_cert(loaded.chain.clone(), loaded.key.clone_key())?;
            // Each connection shows its certificate anew: none is resumed.
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
            Ok(Arc::new(config))
        })
    }

    /// For an end that connects.
    pub(super) fn client(&self) -> Result<Arc<ClientConfig>, WireError> {
        self.with_current(|loaded| {
            let mut config = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&TLS13])?
                .with_root_certificates(loaded.roots.clone())
                .with_client_auth_cert(loaded.chain.clone(), loaded.key.clone_key())?;
            config.resumption = rustls::client::Resumption::disabled();
            Ok(Arc::new(config))
        })
    }

    fn with_current<T>(
        &self,
        make: impl FnOnce(&Loaded) -> Result<T, Error>,
    ) -> Result<T, WireError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.stamps != stamps(&self.files) {
            match Loaded::read(&self.files) {
                Ok(newer) => *loaded = newer,
                // The files may be half renewed, so the earlier certificate is still used.
                Err(error) => log::warn!("{error}; going on with the certificate of before"),
            }
        }
        make(&loaded).map_err(|error| {
            let TlsFiles {
                certificate, key, ..
            } = &self.files;
            WireError::Invalid(format!(
                "{} and {}: expected a certificate and its key: {error}",
                certificate.display(),
                key.display()
            ))
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.files).finish()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn stamps(files: &TlsFiles) -> [Option<Stamp>; 3] {
    [&files.authority, &files.certificate, &files.key].map(|path| stamp(path))
}

impl Loaded {
    fn read(files: &TlsFiles) -> Result<Self, WireError> {
        // Stamped before it is read: a change meanwhile is seen the next time.
        let stamps = stamps(files);
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.authority)? {
            roots.add(certificate).map_err(|error| {
                WireError::Invalid(format!(
                    "{}: expected certificates of an authority: {error}",
                    files.authority.display()
                ))
            })?;
        }
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| {
            WireError::Invalid(format!(
                "{}: expected a private key in PEM: {error}",
                files.key.display()
            ))
        })?;
        Ok(Self {
            stamps,
            roots: Arc::new(roots),
            chain: certificates(&files.certificate)?,
            key,
        })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, WireError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| {
        WireError::Invalid(format!(
            "{}: expected certificates in PEM: {error}",
            path.display()
        ))
    })?;
    if found.is_empty() {
        return Err(WireError::Invalid(format!(
            "{}: expected certificates in PEM, found none",
            path.display()
        )));
    }
    Ok(found)
}

/// Accepts clients that the authority has signed, of certain roles.
#[derive(Debug)]
struct OfRole {
    signed: Arc<dyn ClientCertVerifier>,
    names: Vec<ServerName<'static>>,
}

impl OfRole {
    fn new(roots: Arc<RootCertStore>, names: &[&str]) -> Result<Self, Error> {
        let signed = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let names = names.iter().map(|&name| server_name(name));
        Ok(Self {
            signed,
            names: names.collect::<Result<_, _>>()?,
        })
    }
}

/// A name that a certificate may have.
pub(super) fn server_name(name: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(name.to_owned()).map_err(|error| Error::General(error.to_string()))
}

impl ClientCertVerifier for OfRole {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(certificate, between, now)?;
        let parsed = ParsedCertificate::try_from(certificate)?;
        let mut refused = Error::NoCertificatesPresented;
        for name in &self.names {
            match verify_server_name(&parsed, name) {
                Ok(()) => return Ok(verified),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
