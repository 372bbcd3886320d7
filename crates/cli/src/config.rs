//! holdfast.toml: settings that need not be typed each time. Optional; the command line takes precedence.
//!
//! Only one file is read, and never one from the current directory, because it can name a command to run.

use std::{
    env,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use holdfast_core::{Context as _, Error, ErrorKind, Result};
use holdfast_repo::{SourceName, keys::KeyId};
use rustix::process::{getegid, geteuid};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::args::{
    expire::KeepArgs, hooks::HookArgs, resources::ResourceArgs, source::SourceArgs, store::StoreArgs,
};

/// The configuration file.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Config {
    /// As `--repo`.
    pub(crate) repo: Option<String>,
    /// As `--password-file`.
    pub(crate) password_file: Option<PathBuf>,
    /// As `HOLDFAST_PASSWORD_COMMAND`.
    pub(crate) password_command: Option<String>,
    /// As `--identity`.
    pub(crate) identity: Option<PathBuf>,
    /// As `--key`.
    pub(crate) key: Option<KeyId>,
    /// Whether the repository is meant to be unencrypted: nothing warns of that.
    pub(crate) no_encryption: bool,
    /// As `--name`.
    #[serde(deserialize_with = "name")]
    pub(crate) name: Option<SourceName>,
    /// The server.
    pub(crate) source: SourceArgs,
    /// What a backup may use.
    pub(crate) resources: ResourceArgs,
    /// What runs around a backup.
    pub(crate) backup: HookArgs,
    /// How a repository beyond a network is reached.
    pub(crate) store: StoreArgs,
    /// Retention rules of `expire`.
    pub(crate) retention: KeepArgs,
    /// Other repositories, for copies and for backups to several.
    pub(crate) repository: Vec<OtherRepository>,
}

/// A repository besides the main one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct OtherRepository {
    /// Its name on the command line.
    pub(crate) name: String,
    /// Its location.
    pub(crate) repo: String,
    /// As `--to-password-file`.
    pub(crate) password_file: Option<PathBuf>,
    /// As `HOLDFAST_TO_PASSWORD_COMMAND`.
    pub(crate) password_command: Option<String>,
    /// As `--to-identity`.
    pub(crate) identity: Option<PathBuf>,
    /// As `--to-key`.
    pub(crate) key: Option<KeyId>,
    /// Whether it is meant to be unencrypted.
    pub(crate) no_encryption: bool,
    /// Whether backups go there as well, as with `--also-to`.
    pub(crate) backup: bool,
    /// How it is reached, if it is beyond a network.
    pub(crate) store: StoreArgs,
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SourceName>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

impl Config {
    /// Reads `named`, which must exist, or else the first of the usual places that does.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self> {
        match named {
            Some(path) => Self::read(path)?.ok_or_else(|| {
                Error::new(
                    ErrorKind::Usage,
                    format!("the configuration file {} does not exist", path.display()),
                )
            }),
            None => {
                for path in usual_places() {
                    if let Some(config) = Self::read(&path)? {
                        return Ok(config);
                    }
                }
                Ok(Self::default())
            }
        }
    }

    fn read(path: &Path) -> Result<Option<Self>> {
        let doing = format!("read the configuration file {}", path.display());
        match read_trusted(path) {
            Ok(text) => toml::from_str(&text).context_kind(ErrorKind::Usage, doing).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context_kind(ErrorKind::Usage, doing),
        }
    }
}

/// Reads the file, unless others can write to it: commands that it names run with this user's rights.
fn read_trusted(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    if about.is_file()
        && let Some(why) = distrust(about.uid(), about.gid(), about.mode(), &ThisUser::new())
    {
        let text = format!("{why}, or name a copy with --config");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Who runs the program.
struct ThisUser {
    uid: u32,
    /// Who became root by `sudo`.
    sudo_uid: Option<u32>,
    /// The group that nobody else is in, if this user has one.
    private_gid: Option<u32>,
}

impl ThisUser {
    fn new() -> Self {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let is_private = has_private_group(uid, gid, &read("/etc/passwd"), &read("/etc/group"));
        let sudo_uid = env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok()).filter(|_| uid == 0);
        Self { uid, sudo_uid, private_gid: is_private.then_some(gid) }
    }
}

/// Whether the group is the user's own, as many systems make them: of the same name, of no other user, and with no
/// other members. Users that are not in these files have none.
fn has_private_group(uid: u32, gid: u32, users: &str, groups: &str) -> bool {
    let fields = |text: &'_ str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
    };
    let is = |field: Option<&String>, id: u32| field.is_some_and(|field| *field == id.to_string());
    let (users, groups) = (fields(users), fields(groups));
    let Some(user) = users.iter().find(|user| is(user.get(2), uid)) else { return false };
    let Some(group) = groups.iter().find(|group| is(group.get(2), gid)) else { return false };
    let members = group.get(3).map_or("", String::as_str).split(',').filter(|member| !member.is_empty());
    let mut same = users.iter().filter(|other| is(other.get(3), gid));
    user.first() == group.first()
        && members.into_iter().all(|member| user.first().is_some_and(|name| name == member))
        && same.all(|other| is(other.get(2), uid))
}

/// Why a file with this owner, group and mode may say something that neither this user nor root wants, and what
/// to do about it.
fn distrust(owner: u32, group: u32, mode: u32, user: &ThisUser) -> Option<String> {
    const ROOT: u32 = 0;
    const GROUP_WRITES: u32 = 0o020;
    const OTHERS_WRITE: u32 = 0o002;
    let shown = mode & 0o777;
    if mode & OTHERS_WRITE != 0 {
        return Some(format!("everybody can write to it (mode {shown:o}): run chmod go-w"));
    }
    if mode & GROUP_WRITES != 0 && user.private_gid != Some(group) {
        return Some(format!("its group can write to it (mode {shown:o}, group {group}): run chmod g-w"));
    }
    (![ROOT, user.uid].contains(&owner) && user.sudo_uid != Some(owner))
        .then(|| format!("it belongs to another user ({owner}), who is not root: run chown"))
}

fn usual_places() -> impl Iterator<Item = PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    home.map(|home| home.join(".config/holdfast/holdfast.toml"))
        .into_iter()
        .chain([PathBuf::from("/etc/holdfast/holdfast.toml")])
}

/// Where this user's programs keep data that they can do without.
pub(crate) fn usual_cache_dir() -> Option<PathBuf> {
    let of = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")))?;
    Some(cache.join("holdfast"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::units::{ByteSize, Span};

    #[test]
    fn every_option_reads_as_on_the_command_line() {
        let config: Config = toml::from_str(
            r#"
            repo = "/backup/repo"
            password-file = "/etc/holdfast/password"
            name = "db1"
            [source]
            host = "127.0.0.1"
            port = 3307
            ssl-mode = "verify-ca"
            path-map = ["/var/lib/mysql=/srv/db1"]
            [resources]
            compress = "zstd:3"
            memory = "512M"
            lock-max = "1s"
            [backup]
            hook-after = "systemctl start etl"
            hook-timeout = "1m"
            [store]
            s3-endpoint = "https://minio.example:9000"
            s3-path-style = true
            s3-part-size = "16M"
            limit-upload = "20M"
            ssh-config = "/etc/holdfast/ssh_config"
            [retention]
            keep-daily = 7
            keep-monthly = 12
            [[repository]]
            name = "offsite"
            backup = true
            repo = "s3://offsite/holdfast"
            password-file = "/etc/holdfast/offsite.password"
            [repository.store]
            s3-endpoint = "https://s3.example"
            "#,
        )
        .unwrap();
        assert_eq!(config.source.port, Some(3307));
        assert_eq!(
            (config.store.s3_path_style, config.store.s3_part_size),
            (Some(true), Some(ByteSize(16 << 20)))
        );
        assert_eq!(config.resources.memory, Some(ByteSize(512 << 20)));
        assert_eq!(config.resources.compress.map(|c| c.to_string()).as_deref(), Some("zstd:3"));
        assert_eq!(config.resources.lock_max, Some(Span(std::time::Duration::from_secs(1))));
        let hooks = &config.backup;
        let timeout = Some(Span(std::time::Duration::from_secs(60)));
        assert_eq!((hooks.hook_after.as_deref(), hooks.hook_timeout), (Some("systemctl start etl"), timeout));
        assert_eq!(config.repository[0].name, "offsite");
        assert_eq!(config.repository[0].store.s3_endpoint.as_deref(), Some("https://s3.example"));
        assert_eq!((config.retention.keep_daily, config.retention.keep_weekly), (Some(7), None));
    }

    /// A value replaced by anything else, or a truncated file, gives an error or a
    /// configuration, never a panic.
    #[test]
    fn nonsense_never_panics() {
        let text = "[source]\nhost = \"h\"\npath-map = [\"/a=/b\"]\n[resources]\nmemory = \"512M\"\ncompress = \"zstd:3\"\n\
                    lock-max = \"1s\"\nmax-rewrite = \"5%\"\nspool-max = \"1G\"\n[retention]\nkeep-daily = 7\nkeep-within = \"3d\"\n";
        for cut in 0..=text.len() {
            let _ = toml::from_str::<Config>(&text[..cut]);
        }
        let values =
            ["-1", "1e999", "\"\"", "\"99999999999999999999G\"", "\"\u{1f4a3}%\"", "[[]]", "nan", "\"=\""];
        for (number, value) in (0..12).flat_map(|number| values.map(|value| (number, value))) {
            let line = text.lines().enumerate().map(|(at, line)| match line.split_once(" = ") {
                Some((key, _)) if at == number => format!("{key} = {value}"),
                _ => line.to_owned(),
            });
            let _ = toml::from_str::<Config>(&line.collect::<Vec<_>>().join("\n"));
        }
    }

    #[test]
    fn a_misspelt_option_is_an_error() {
        assert!(toml::from_str::<Config>("[resources]\nparalel = 4").is_err());
        assert!(toml::from_str::<Config>("[source]\npassword = true").is_err());
        assert!(toml::from_str::<Config>("[resources]\nmemory = \"lots\"").is_err());
        let little = toml::from_str::<Config>("[resources]\nmemory = \"1M\"").unwrap_err().to_string();
        assert!(little.contains("at least 80.0 MiB"), "{little}");
    }

    /// As ssh does with its own: root's and one's own file is trusted, if nobody else can write to it.
    #[test]
    fn a_file_that_others_can_write_to_is_not_trusted() {
        let (ours, others) = (1000, 1001);
        let alone = ThisUser { uid: ours, sudo_uid: None, private_gid: Some(1000) };
        let shared = ThisUser { uid: ours, sudo_uid: None, private_gid: None };
        let by_sudo = ThisUser { uid: 0, sudo_uid: Some(ours), private_gid: None };
        for (owner, group, mode, user, trusted) in [
            (ours, 1000, 0o644, &shared, true),
            (0, 0, 0o640, &shared, true),
            (others, 1000, 0o600, &shared, false),
            (ours, 1000, 0o600, &by_sudo, true),
            (others, 1000, 0o600, &by_sudo, false),
            (others, 0, 0o644, &alone, false),
            (ours, 1000, 0o664, &alone, true),
            (0, 1000, 0o660, &alone, true),
            (ours, 1000, 0o664, &shared, false),
            (ours, 100, 0o664, &alone, false),
            (0, 0, 0o664, &shared, false),
            (ours, 1000, 0o646, &alone, false),
            (0, 0, 0o666, &alone, false),
        ] {
            let why = distrust(owner, group, mode, user);
            assert_eq!(why.is_none(), trusted, "{owner}:{group} {mode:o}: {why:?}");
        }
        let users = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:100::/:/bin/sh\n";
        let is_private = |groups: &str, users: &str| has_private_group(1000, 1000, users, groups);
        assert!(is_private("ann:x:1000:\n", users) && is_private("ann:x:1000:ann\n", users));
        assert!(!is_private("ann:x:1000:bob\n", users) && !is_private("staff:x:1000:\n", users));
        assert!(!is_private("", users) && !is_private("ann:x:1000:\n", ""));
        assert!(!is_private("ann:x:1000:\n", &format!("{users}eve:x:1002:1000::/:/bin/sh\n")));
    }

    #[test]
    fn what_was_typed_wins() {
        let typed = SourceArgs { port: Some(1), no_defaults: true, ..SourceArgs::default() };
        let file = SourceArgs {
            port: Some(2),
            user: Some("backup".to_owned()),
            defaults_file: Some("/x".into()),
            ..SourceArgs::default()
        };
        let merged = typed.or(file);
        assert_eq!((merged.port, merged.user.as_deref()), (Some(1), Some("backup")));
        assert_eq!(
            merged.defaults_file, None,
            "--no-defaults and a file's defaults-file contradict each other"
        );
    }
}
