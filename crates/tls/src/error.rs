//! Why certificates and keys cannot be used, in a sentence for the user who gave the files.

use std::path::PathBuf;

use tokio_rustls::rustls;

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read `{path}`; check that the file exists and that this user may read it")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("`{path}` has more than {limit} bytes; pass a PEM file of certificates or a key")]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("`{path}` is not valid PEM: {reason}")]
    NotPem { path: PathBuf, reason: String },
    #[error(
        "`{path}` has no certificate; pass a PEM file, which starts with `-----BEGIN CERTIFICATE-----`"
    )]
    NoCertificate { path: PathBuf },
    #[error(
        "the key in `{path}` has a passphrase; remove it with `openssl pkey -in FILE -out FILE`"
    )]
    EncryptedKey { path: PathBuf },
    #[error(
        "`{path}` has no private key; pass a PEM file, which starts with `-----BEGIN PRIVATE KEY-----`"
    )]
    NoKey { path: PathBuf },
    #[error("the key in `{key}` does not belong to the certificate in `{certificate}`")]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error("the certificate in `{certificate}` with the key in `{key}` cannot be used")]
    Unusable {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("`{path}` has a certificate that cannot be used as an authority")]
    Authority {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("`{path}` has no certificate that clients' certificates can be checked with")]
    ClientAuthority {
        path: PathBuf,
        #[source]
        source: rustls::server::VerifierBuilderError,
    },
    #[error(
        "this machine has no certificate authorities; install `ca-certificates`, or pass `--upstream-ca`"
    )]
    NoAuthorities,
    /// Nothing that another file could fix.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
}
