//! Certificates of our own authority: `ca.pem`, `other-ca.pem`, and the server's, for
//! `localhost` and 127.0.0.1.

use std::path::{Path, PathBuf};

/// The path of the file with this name.
#[must_use]
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tls").join(name)
}

/// Options for a server that presents the server certificate.
#[must_use]
pub fn server_options() -> [String; 3] {
    [("ca", "ca.pem"), ("cert", "server-cert.pem"), ("key", "server-key.pem")]
        .map(|(option, name)| format!("--ssl-{option}={}", file(name).display()))
}
