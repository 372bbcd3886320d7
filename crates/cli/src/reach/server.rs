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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use holdfast_core::{Cancel, server::connection::Endpoint};

    use super::*;
    use crate::{
        args::{self, Verb, source::SourceArgs},
        config::Config,
        output::{Output, Verbosity},
        seen::SeenRepositories,
    };

    /// What a backup with these words uses, if the configuration file has these lines in `[source]`.
    fn merged(source: &str, words: &[&str]) -> (SourceArgs, ConnectOptions) {
        let line = ["holdfast", "backup", "--no-defaults"].iter().chain(words);
        let cli = args::parse(&line.map(Into::into).collect::<Vec<_>>()).unwrap();
        let Verb::Backup(args) = cli.verb else { panic!("not a backup") };
        let output = Arc::new(Output::new("backup", false, Verbosity::Quiet));
        let config: Config = toml::from_str(&format!("[source]\n{source}")).unwrap();
        let typed = args.source.or(config.source.clone());
        let context = Context {
            global: cli.global,
            store: cli.store,
            config,
            output: &output,
            cancel: &Cancel::default(),
            ends_in_order: true,
            seen: SeenRepositories::default(),
        };
        let options = connect_options(&typed, &context).unwrap();
        (typed, options)
    }

    /// A server that is typed is reached as it is typed: by the network or by a socket, whatever the configuration file
    /// says. What else was not typed comes from the file.
    #[test]
    fn a_typed_server_is_the_one_that_is_reached() {
        let tcp = |host: &str, port| Endpoint::Tcp { host: host.to_owned(), port };
        let socket = |path: &str| Endpoint::Socket(path.into());
        let one = "socket = '/run/one/x'";
        let two = "host = 'db2'\nport = 3308";
        let far = "ssh-tunnel = 'bastion'\nhost = 'db3'";
        for (source, words, endpoint) in [
            (one, &[][..], socket("/run/one/x")),
            (one, &["--port", "3307"], tcp("localhost", 3307)),
            (one, &["--host", "db9"], tcp("db9", 3306)),
            (one, &["--socket", "/run/two/x"], socket("/run/two/x")),
            (two, &[], tcp("db2", 3308)),
            (two, &["--socket", "/run/two/x"], socket("/run/two/x")),
            (two, &["--host", "db9"], tcp("db9", 3308)),
            (two, &["--port", "3307"], tcp("db2", 3307)),
            (two, &["--ssh-tunnel", "bastion"], tcp("db2", 3308)),
            (far, &[], tcp("db3", 3306)),
            (far, &["--host", "db9"], tcp("db9", 3306)),
            (far, &["--socket", "/run/two/x"], socket("/run/two/x")),
            (far, &["--user", "u"], tcp("db3", 3306)),
        ] {
            let options = merged(source, words).1;
            assert_eq!(options.endpoint(), endpoint, "{source} with {words:?}");
            let has_tunnel =
                words.contains(&"--ssh-tunnel") || (source == far && !words.contains(&"--socket"));
            assert_eq!(options.tunnel.is_some(), has_tunnel, "{source} with {words:?}");
        }
    }

    /// Where the files of the configured server are is no statement about another one.
    #[test]
    fn a_typed_server_has_not_the_files_of_the_configured_one() {
        let source = "socket = '/run/one/x'\ndatadir = '/srv/one'\npath-map = ['/a=/b']\nuser = 'keeper'";
        let files = |words: &[&str]| {
            let (it, options) = merged(source, words);
            assert_eq!(options.user.as_deref(), Some("keeper"));
            (it.datadir, it.path_map.len())
        };
        let dir = |path| Some(Path::new(path).to_owned());
        assert_eq!(files(&[]), (dir("/srv/one"), 1));
        assert_eq!(files(&["--datadir", "/srv/two"]), (dir("/srv/two"), 1));
        assert_eq!(files(&["--port", "3307"]), (None, 0));
        assert_eq!(files(&["--socket", "/run/two/x", "--datadir", "/srv/two"]), (dir("/srv/two"), 0));
    }
}
