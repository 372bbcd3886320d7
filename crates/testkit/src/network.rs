//! A server and a repository that are reached through connections which can fail.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::object_storage::{BUCKET, ObjectStorage, ObjectStorageKind};
use crate::program::Holdfast;
use crate::server::Server;
use crate::wire::Wire;

/// Connections to a server and to a bucket with the repository.
#[derive(Debug)]
pub struct Network {
    /// To the server.
    pub to_source: Wire,
    /// To the store.
    pub to_store: Wire,
    /// The store that has the bucket.
    pub store: ObjectStorage,
}

impl Network {
    /// Starts a store, and lays the connections.
    pub fn to(source: &Server) -> Result<Network> {
        let store = ObjectStorage::start(ObjectStorageKind::Versitygw)?;
        let (to_source, to_store) = (Wire::to(source.port())?, Wire::to(store.port())?);
        Ok(Network { to_source, to_store, store })
    }

    /// The program, with a repository of this name in the bucket; its password file is in `dir`.
    pub fn holdfast(&self, program: PathBuf, dir: &Path, name: &str) -> Result<Holdfast> {
        let endpoint = format!("http://127.0.0.1:{}", self.to_store.port());
        let environment = self.store.environment().map(|(name, value)| match name {
            "AWS_ENDPOINT_URL" => (name, endpoint.clone()),
            _ => (name, value),
        });
        Holdfast::beyond_network(program, dir, &format!("s3://{BUCKET}/{name}"), environment)
    }
}
