//! PEM files: certificates, keys and authorities as rustls wants them, and how a change of a file is noticed.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, InconsistentKeys, RootCertStore};

use crate::TlsError;

/// Larger files are a mistake; all authorities of a system are a quarter of this.
const MAX_BYTES: u64 = 1 << 20;
/// What a key with a passphrase starts with; older ones say so in a separate header.
const ENCRYPTED: [&str; 2] = ["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"];

/// What changes with a file's content.
pub(crate) type Stamp = Option<(SystemTime, u64, u64)>;

/// The file's stamp; `None` where there is no file.
pub(crate) fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len(), data.ino()))
}

/// What signs and encrypts. Never the process's default, which another library may set.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut content = Vec::new();
    let length = file.take(MAX_BYTES + 1).read_to_end(&mut content);
    if length.map_err(unreadable)? as u64 > MAX_BYTES {
        let path = path.to_owned();
        let limit = MAX_BYTES;
        return Err(TlsError::TooLarge { path, limit });
    }
    Ok(content)
}

/// The certificates in a file, the leaf first; at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content = read(path)?;
    let found: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&content).collect();
    let found = found.map_err(|error| not_pem(path, &error))?;
    match found.is_empty() {
        true => Err(TlsError::NoCertificate {
            path: path.to_owned(),
        }),
        false => Ok(found),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let content = read(path)?;
    let text = String::from_utf8_lossy(&content);
    if ENCRYPTED.iter().any(|mark| text.contains(mark)) {
        return Err(TlsError::EncryptedKey {
            path: path.to_owned(),
        });
    }
    PrivateKeyDer::from_pem_slice(&content).map_err(|error| match error {
        PemError::NoItemsFound => TlsError::NoKey {
            path: path.to_owned(),
        },
        error => not_pem(path, &error),
    })
}

fn not_pem(path: &Path, error: &PemError) -> TlsError {
    TlsError::NotPem {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

/// A certificate, those that lead to its authority, and its key.
pub(crate) struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    secret: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads both files.
    ///
    /// # Errors
    /// One cannot be read, or has not what it must have.
    pub(crate) fn read(certificate: &Path, key_file: &Path) -> Result<Self, TlsError> {
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key_file.to_owned(),
            chain: certificates(certificate)?,
            secret: key(key_file)?,
        })
    }

    /// Hands both to `build`, one of rustls's builders, and names the files in its error.
    ///
    /// # Errors
    /// The key is another certificate's, or of a kind that is not supported.
    pub(crate) fn build<T>(
        self,
        build: impl FnOnce(
            Vec<CertificateDer<'static>>,
            PrivateKeyDer<'static>,
        ) -> Result<T, rustls::Error>,
    ) -> Result<T, TlsError> {
        let (certificate, key) = (self.certificate, self.key);
        build(self.chain, self.secret).map_err(|source| match source {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch { certificate, key }
            }
            source => TlsError::Unusable {
                certificate,
                key,
                source,
            },
        })
    }
}

/// The authorities in a file.
///
/// # Errors
/// It cannot be read, has none, or one that cannot be used.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store
            .add(certificate)
            .map_err(|source| TlsError::Authority {
                path: path.to_owned(),
                source,
            })?;
    }
    Ok(store)
}

/// Those that this machine trusts: `SSL_CERT_FILE`, `SSL_CERT_DIR`, or the system's own.
///
/// # Errors
/// There are none.
pub(crate) fn system_authorities() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "some certificate authorities of this machine cannot be read");
    }
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    match store.is_empty() {
        true => Err(TlsError::NoAuthorities),
        false => Ok(store),
    }
}
