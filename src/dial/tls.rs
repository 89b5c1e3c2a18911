//! TLS towards providers: rustls with ring, compiled-in roots, and the certificates of `tls.caBundle`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Why TLS could not be set up.
#[derive(thiserror::Error, Debug)]
pub enum TlsError {
    /// The bundle is no PEM.
    #[error("reading the CA bundle: {0}; it must hold PEM certificates")]
    Pem(rustls::pki_types::pem::Error),
    /// A certificate of the bundle cannot be trusted.
    #[error("adding a certificate of the CA bundle: {0}")]
    Certificate(rustls::Error),
    /// The bundle is empty.
    #[error("the CA bundle holds no certificate; it must hold PEM certificates")]
    Empty,
    /// The library refuses its own defaults.
    #[error("setting up TLS: {0}")]
    Setup(rustls::Error),
}

/// The TLS configurations in use, one for each distinct CA bundle. Sessions are resumed across all upstream pools.
#[derive(Debug, Default)]
pub struct TlsConfigs {
    by_bundle: Mutex<HashMap<Option<String>, Arc<ClientConfig>>>,
}

impl TlsConfigs {
    /// The configuration that trusts the compiled-in roots and `ca_bundle`. Called when a snapshot is loaded, not per request.
    ///
    /// # Errors
    /// What is wrong with the bundle.
    pub fn get(&self, ca_bundle: Option<&str>) -> Result<Arc<ClientConfig>, TlsError> {
        let key = ca_bundle.map(str::to_owned);
        let mut known = self.by_bundle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = known.get(&key) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(build(ca_bundle)?);
        known.insert(key, Arc::clone(&config));
        Ok(config)
    }

    /// Forgets configurations that no upstream holds any more.
    pub fn sweep(&self) {
        self.by_bundle.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, config| Arc::strong_count(config) > 1);
    }
}

fn build(ca_bundle: Option<&str>) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(pem) = ca_bundle {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(certificate.map_err(TlsError::Pem)?).map_err(TlsError::Certificate)?;
        }
        if roots.len() == before {
            return Err(TlsError::Empty);
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_without_certificates_is_refused() {
        let configs = TlsConfigs::default();
        assert!(matches!(configs.get(Some("not a certificate")), Err(TlsError::Empty)));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(configs.get(Some(broken)), Err(TlsError::Certificate(_))));
        let one = configs.get(None).expect("defaults");
        assert!(Arc::ptr_eq(&one, &configs.get(None).expect("defaults")));
        drop(one);
        configs.sweep();
        assert!(configs.by_bundle.lock().expect("lock").is_empty());
    }
}
