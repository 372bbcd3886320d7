//! MySQL servers that keep their keys in a file, with `component_keyring_file`.
//!
//! A manifest beside the program loads the component, and a file beside its library configures it, for all
//! servers of an installation. Such a server therefore gets its own program in its own directory, which holds
//! both, and its data directory contains its local configuration.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};

use crate::kind::ServerKind;
use crate::server::ServerOptions;

const MANIFEST: &str = "mysqld.my";
const CONFIG: &str = "component_keyring_file.cnf";

/// Makes servers load the component. `dir` receives the program; `keyring` is the file with the keys.
pub fn with_keyring(options: ServerOptions, dir: &Path, keyring: &Path) -> Result<ServerOptions> {
    let wrapper = ServerKind::MySql97.server_program()?;
    let text = fs::read_to_string(&wrapper).with_context(|| wrapper.display().to_string())?;
    let plugins = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("--plugin-dir="))
        .with_context(|| format!("{} names no plugin directory", wrapper.display()))?;
    let own_plugins = dir.join("plugin");
    fs::create_dir_all(&own_plugins)?;
    for entry in fs::read_dir(plugins)? {
        let entry = entry?;
        symlink(entry.path(), own_plugins.join(entry.file_name()))?;
    }
    fs::write(own_plugins.join(CONFIG), r#"{"read_local_config": true}"#)?;
    fs::write(dir.join(MANIFEST), r#"{"read_local_manifest": true}"#)?;
    let program = dir.join("mysqld");
    let text = text
        .replace(plugins, &own_plugins.display().to_string())
        // The server looks for its manifest where it believes that it is located.
        .replace("--argv0 mysqld", &format!("--argv0 {}", program.display()));
    fs::write(&program, text)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    let files = vec![
        (MANIFEST.to_owned(), r#"{"components": "file://component_keyring_file"}"#.to_owned()),
        (CONFIG.to_owned(), config(keyring)),
    ];
    Ok(ServerOptions { program: Some(program), files, ..options })
}

/// Gives a stopped server its own keyring, with the keys of another server.
pub fn give_keyring(datadir: &Path, from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(fs::write(datadir.join(CONFIG), config(to))?)
}

fn config(keyring: &Path) -> String {
    format!(r#"{{"path": "{}", "read_only": false}}"#, keyring.display())
}
