//! What the recovering MySQL server needs, besides options, to get at the source's keys.
//!
//! - `component_keyring_file.cnf` in the data directory, which a backup has, tells `component_keyring_file`
//!   where its file is. On the source's own host that is the running source's file, and two servers that
//!   write to one keyring lose each other's keys. So while the server recovers, the target's configuration
//!   says that the file is read-only.
//! - A server without `auto.cnf` gives itself a new UUID, and one with a new UUID needs a master key of its
//!   own, which it would have to write (verified on 9.7.4).
//!   So it keeps the source's UUID until it has recovered.
//!
//! [`Keyring::leave`] restores both to what they were.
//! If a restore is killed before that, the next run makes them anew.

use std::{
    io::{Read, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use holdfast_formats::Flavor;
use holdfast_repo::format::item::ItemPath;
use serde_json::{Value, json};

use super::{
    opened::Opened,
    options::RestoreOptions,
    target::{Tree, io_failed, names::own_path},
};
use crate::{
    error::{Error, ErrorKind, Result},
    server::ServerFacts,
};

const COMPONENT: &str = "component_keyring_file";
const CONFIG: &str = "component_keyring_file.cnf";
/// Where the backup's own configuration is meanwhile.
const CONFIG_ASIDE: &str = "#holdfast-component_keyring_file.cnf";
const AUTO: &str = "auto.cnf";
/// The file holds a path and a flag.
const CONFIG_BYTES_MAX: u64 = 64 << 10;
/// It names a file with keys.
const MODE: u16 = 0o640;

/// Whether the source's keys are in a file that [`RestoreOptions::keyring`] can name.
pub(super) fn is_file(opened: &Opened) -> bool {
    opened.server.version.flavor == Flavor::MySql
        && opened.server.encryption.key_providers.iter().any(|provider| provider.contains(COMPONENT))
}

/// Whether all keys of a server are in a file of this component.
fn has_only_a_file(server: &ServerFacts) -> bool {
    let mut providers = server.encryption.key_providers.iter();
    providers.all(|provider| server.flavor() == Flavor::MySql && provider.contains(COMPONENT))
}

/// What was done about the component's configuration.
#[derive(Clone, Copy, Debug)]
enum Config {
    Left,
    /// The backup has none.
    Made,
    SetAside,
}

/// What was put into the target for the recovering server.
pub(super) struct Keyring<'a> {
    tree: &'a Tree,
    owner: Option<(u32, u32)>,
    config: Config,
    has_uuid: bool,
}

impl<'a> Keyring<'a> {
    /// Puts everything in place.
    pub(super) fn enter(
        tree: &'a Tree,
        opened: &Opened,
        options: &RestoreOptions,
        owner: Option<(u32, u32)>,
    ) -> Result<Self> {
        let mut this = Self { tree, owner, config: Config::Left, has_uuid: false };
        if options.keyring.is_some() && !is_file(opened) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("the source did not have its keys from {COMPONENT}"),
            )
            .hinted("leave out --keyring; --prepare-option gives the recovering server options"));
        }
        if opened.server.version.flavor != Flavor::MySql || opened.server.encryption.key_providers.is_empty()
        {
            return Ok(this);
        }
        if let Some(uuid) = &opened.server.identity.server_uuid {
            let uuid: String = uuid.chars().filter(|c| c.is_ascii_hexdigit() || *c == '-').collect();
            this.replace(AUTO, format!("[auto]\nserver-uuid={uuid}\n").as_bytes())?;
            this.has_uuid = true;
        }
        if is_file(opened) {
            let original = read(tree, CONFIG)?;
            let named = match &options.keyring {
                Some(path) => Some(path.canonicalize().map_err(|error| io_failed("read", path, error))?),
                None => original.as_deref().and_then(path_in),
            };
            if let Some(path) = named {
                this.config = match original {
                    Some(_) => {
                        this.rename(CONFIG, CONFIG_ASIDE)?;
                        Config::SetAside
                    }
                    None => Config::Made,
                };
                this.replace(CONFIG, &config(&path))?;
            }
        }
        Ok(this)
    }

    /// Whether the server that recovers writes no keys anywhere: it has none, or only a file that it was told not to
    /// write to.
    pub(super) fn is_only_read(&self, server: &ServerFacts) -> bool {
        let is_told = !matches!(self.config, Config::Left);
        server.encryption.key_providers.is_empty() || is_told && has_only_a_file(server)
    }

    /// Restores everything to what it was.
    pub(super) fn leave(self) -> Result<()> {
        if self.has_uuid {
            self.remove(AUTO)?;
        }
        match self.config {
            Config::SetAside => self.rename(CONFIG_ASIDE, CONFIG),
            Config::Made => self.remove(CONFIG),
            Config::Left => Ok(()),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (path, failed) = self.named(name, "write")?;
        let write = || {
            self.tree.remove(&path)?;
            self.tree.create_file(&path, MODE)?.write_all(bytes)?;
            self.owner.map_or(Ok(()), |owner| self.tree.give(&path, owner))
        };
        write().map_err(failed)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (path, failed) = self.named(from, "rename")?;
        self.tree.rename(&path, &own_path(to)?).map_err(failed)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let (path, failed) = self.named(name, "remove")?;
        self.tree.remove(&path).map_err(failed)
    }

    fn named(
        &self,
        name: &str,
        doing: &'static str,
    ) -> Result<(ItemPath, impl Fn(std::io::Error) -> Error + use<>)> {
        let path = own_path(name)?;
        let shown = self.tree.path_of(&path);
        Ok((path, move |error| io_failed(doing, &shown, error)))
    }
}

/// The keyring of the server whose data directory is `target`, if it is in there.
pub(super) fn below(target: &Path) -> Result<Option<ItemPath>> {
    let tree = match Tree::open(target) {
        Ok(tree) => tree,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_failed("open", target, error)),
    };
    let named = read(&tree, CONFIG)?.as_deref().and_then(path_in);
    let path = named.and_then(|path| match path.strip_prefix(tree.path()) {
        Ok(below) => Some(below.to_owned()),
        Err(_) => path.is_relative().then_some(path),
    });
    Ok(path.and_then(|path| ItemPath::new(path.as_os_str().as_bytes()).ok()))
}

fn read(tree: &Tree, name: &str) -> Result<Option<Vec<u8>>> {
    let path = own_path(name)?;
    let failed = |error| io_failed("read", tree.path_of(&path), error);
    let Some(file) = tree.open_file(&path).map_err(failed)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// The file that a configuration of the component names.
fn path_in(config: &[u8]) -> Option<PathBuf> {
    let config: Value = serde_json::from_slice(config).ok()?;
    config.get("path")?.as_str().map(PathBuf::from)
}

fn config(path: &Path) -> Vec<u8> {
    json!({ "path": path.to_string_lossy(), "read_only": true }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{restore::tests::facts, server::ServerVersion};

    /// What the source wrote is read, whatever else it says, and what we write says that nothing may be
    /// written.
    #[test]
    fn configurations() {
        let theirs = br#"{"path": "/keys/of \"db1\"", "read_only": false}"#;
        let path = path_in(theirs);
        assert_eq!(path.as_deref(), Some(Path::new("/keys/of \"db1\"")));
        assert_eq!(path_in(&config(Path::new("/k"))).as_deref(), Some(Path::new("/k")));
        assert!(String::from_utf8_lossy(&config(Path::new("/k"))).contains("\"read_only\":true"));
        for bad in [&b"{\"read_local_config\": true}"[..], b"", b"[1]", b"{\"path\": 7}"] {
            assert_eq!(path_in(bad), None);
        }
    }

    /// Only of the component with a file is it known that its keys are not written to.
    #[test]
    fn providers() {
        const FILE: &str = "file://component_keyring_file";
        for (version, providers, is_read) in [
            ("9.7.4", &[][..], true),
            ("9.7.4", &[FILE], true),
            ("9.7.4", &[FILE, "file://component_keyring_kmip"], false),
            ("9.7.4", &["keyring_vault"], false),
            ("10.11.19-MariaDB", &[], true),
            ("10.11.19-MariaDB", &["file_key_management"], false),
        ] {
            let mut server = facts();
            server.version = ServerVersion::parse(version).unwrap();
            server.encryption.key_providers = providers.iter().map(ToString::to_string).collect();
            assert_eq!(has_only_a_file(&server), is_read, "{version} {providers:?}");
        }
    }
}
