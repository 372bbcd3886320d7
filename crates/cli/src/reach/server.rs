//! Turns the typed server options into connection options.

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use holdfast_core::{
    Context as _, ErrorKind, Result,
    server::{ConnectOptions, OptionFile, Secret, SshOptions, SslMode, Tunnel, connection::CLIENT_GROUPS},
};
use holdfast_stores::SECRET_VARIABLES;

use super::repository;
use crate::{args::source, context::Context, password};

/// Where the servers' own clients look, in their order; later files override earlier ones.
const GLOBAL_FILES: [&str; 2] = ["/etc/my.cnf", "/etc/mysql/my.cnf"];
const USER_FILE: &str = ".my.cnf";

/// Connection options as typed, completed from option files.
pub(crate) fn connect_options(typed: &source::SourceArgs, context: &Context<'_>) -> Result<ConnectOptions> {
    let files = option_files(typed)?;
    for path in files.ignored() {
        context.output.warning(format!("{} is ignored: everybody can write to it", path.display()));
    }
    let password = password::of_server(typed.password, typed.server_password_file.as_deref())?;
    let mut options = ConnectOptions {
        host: typed.host.clone(),
        port: typed.port,
        socket: typed.socket.clone(),
        user: typed.user.clone(),
        password,
        ssl_mode: typed.ssl_mode.map(ssl_mode),
        ssl_ca: typed.ssl_ca.clone(),
        ssl_cert: typed.ssl_cert.clone(),
        ssl_key: typed.ssl_key.clone(),
        connect_timeout: typed.connect_timeout.map(Duration::from_secs),
        answer_timeout: typed.answer_timeout.map(Duration::from_secs),
        tunnel: tunnel(typed, context),
        ..ConnectOptions::default()
    }
    .or(ConnectOptions::from_option_file(&files)?);
    if options.password.is_none() {
        options.password = env::var(password::SERVER_PASSWORD).ok().map(Secret::new);
    }
    options.validate()?;
    Ok(options)
}

/// The requested SSH tunnel; it is not started yet.
fn tunnel(typed: &source::SourceArgs, context: &Context<'_>) -> Option<Arc<Tunnel>> {
    let ssh = repository::options(context).sftp;
    let options = SshOptions {
        host: typed.ssh_tunnel.clone()?,
        program: ssh.ssh,
        config_file: ssh.config_file,
        compress: typed.ssh_compress,
        secrets: SECRET_VARIABLES.to_vec(),
    };
    Some(Arc::new(Tunnel::new(options)))
}

fn option_files(typed: &source::SourceArgs) -> Result<OptionFile> {
    if typed.no_defaults {
        return Ok(OptionFile::default());
    }
    let suffixed: Vec<String> = typed
        .defaults_group_suffix
        .iter()
        .flat_map(|suffix| CLIENT_GROUPS.map(|group| format!("{group}{suffix}")))
        .collect();
    let groups: Vec<&str> = CLIENT_GROUPS.into_iter().chain(suffixed.iter().map(String::as_str)).collect();
    let doing = "read the option files";
    if let Some(path) = &typed.defaults_file {
        return OptionFile::read(path, &groups).context_kind(ErrorKind::Usage, doing);
    }
    let mut found =
        OptionFile::read_defaults(&GLOBAL_FILES, &groups).context_kind(ErrorKind::Usage, doing)?;
    if let Some(path) = &typed.defaults_extra_file {
        found.append(OptionFile::read(path, &groups).context_kind(ErrorKind::Usage, doing)?);
    }
    if let Some(home) = env::var_os("HOME").filter(|home| !home.is_empty()) {
        let of_user = [PathBuf::from(home).join(USER_FILE)];
        found.append(OptionFile::read_defaults(&of_user, &groups).context_kind(ErrorKind::Usage, doing)?);
    }
    Ok(found)
}

fn ssl_mode(typed: source::SslMode) -> SslMode {
    match typed {
        source::SslMode::Disabled => SslMode::Disabled,
        source::SslMode::Preferred => SslMode::Preferred,
        source::SslMode::Required => SslMode::Required,
        source::SslMode::VerifyCa => SslMode::VerifyCa,
        source::SslMode::VerifyIdentity => SslMode::VerifyIdentity,
    }
}
