//! TLS to a server: which certificates are trusted.

use std::{io, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem, pem::PemObject},
};

use super::options::{ConnectOptions, SslMode};

/// A TLS connection to the server of this name, before its first byte. A fault in the files that the options
/// name is an error here; a fault in the server's certificate is one when the first bytes are exchanged.
pub(super) fn client(options: &ConnectOptions, server_name: &str) -> io::Result<ClientConnection> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier::new(options, &provider)?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match (&options.ssl_cert, &options.ssl_key) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| bad_file(key, &error))?;
            config.with_client_auth_cert(certificates(cert)?, key).map_err(invalid)?
        }
        _ => config.with_no_client_auth(),
    };
    let name = ServerName::try_from(server_name.to_owned()).map_err(invalid)?;
    ClientConnection::new(Arc::new(config), name).map_err(invalid)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn bad_file(path: &Path, error: &pem::Error) -> io::Error {
    invalid(format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| bad_file(path, &error))?;
    if found.is_empty() {
        return Err(invalid(format!("{}: contains no certificate", path.display())));
    }
    Ok(found)
}

/// If authorities are given, only they are trusted: anyone can get a certificate of a public one, for a name
/// of their own.
fn roots(ssl_ca: Option<&Path>) -> io::Result<RootCertStore> {
    let Some(path) = ssl_ca else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(invalid)?;
    }
    Ok(roots)
}

/// Checks the certificate as far as the mode demands it.
#[derive(Debug)]
struct Verifier {
    mode: SslMode,
    authorities: Arc<WebPkiServerVerifier>,
}

impl Verifier {
    fn new(options: &ConnectOptions, provider: &Arc<CryptoProvider>) -> io::Result<Self> {
        let roots = Arc::new(roots(options.ssl_ca.as_deref())?);
        let authorities = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        Ok(Self { mode: options.effective_ssl_mode(), authorities: authorities.map_err(invalid)? })
    }

    fn looks(&self) -> bool {
        matches!(self.mode, SslMode::VerifyCa | SslMode::VerifyIdentity)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::Error::InvalidCertificate;
        if !self.looks() {
            return Ok(ServerCertVerified::assertion());
        }
        let verified =
            self.authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is checked last: everything else is right.
            Err(InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.mode == SslMode::VerifyCa => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match self.looks() {
            true => self.authorities.verify_tls12_signature(message, cert, dss),
            false => Ok(HandshakeSignatureValid::assertion()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match self.looks() {
            true => self.authorities.verify_tls13_signature(message, cert, dss),
            false => Ok(HandshakeSignatureValid::assertion()),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.authorities.supported_verify_schemes();
        if !self.looks() {
            // Signatures are not checked: a server with an old certificate must not be kept from encrypting.
            schemes.extend([
                SignatureScheme::ED448,
                SignatureScheme::ECDSA_NISTP521_SHA512,
                SignatureScheme::RSA_PKCS1_SHA1,
                SignatureScheme::ECDSA_SHA1_Legacy,
            ]);
        }
        schemes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given authorities are trusted alone; public ones are trusted only if none are given.
    #[test]
    fn own_authorities_alone() {
        let own = holdfast_testkit::tls::file("ca.pem");
        let own = roots(Some(&own)).unwrap();
        assert_eq!(own.len(), 1);
        let public = roots(None).unwrap();
        assert!(public.len() > 1 && !public.roots.contains(&own.roots[0]));
    }
}
