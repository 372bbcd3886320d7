//! Credentials and settings from the files of AWS' tools: `~/.aws/config` and `~/.aws/credentials`.
//!
//! The settings used of a profile are `aws_access_key_id`, `aws_secret_access_key`, `aws_session_token`,
//! `credential_process`, `region`, `endpoint_url` and `ca_bundle`. Anything else that a profile can name
//! (roles to assume, single sign-on) is for
//! `credential_process = aws configure export-credentials --profile NAME`.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use jiff::Timestamp;
use object_store::{CredentialProvider, aws::AwsCredential};
use serde::Deserialize;
use tokio::{process::Command, sync::Mutex, time::timeout};

use crate::SECRET_VARIABLES;

/// Larger than any such file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// How long before they expire a command's credentials are renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(300);
/// How long a command may take to answer: after that it is killed, since it may be waiting for a person.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// How long credentials from a file are used before the file is read again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The settings of one profile, from both files; those of the credential file win.
pub(super) type Settings = BTreeMap<String, String>;

/// Where to look for a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    name: String,
    config_file: Option<PathBuf>,
    credentials_file: Option<PathBuf>,
    is_named: bool,
}

impl Profile {
    /// The given profile, or that of `AWS_PROFILE`, or `default`.
    pub(super) fn find(named: Option<&str>, environment: &BTreeMap<String, String>) -> Self {
        let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        let below_home = |name: &str| variable("HOME").map(|home| Path::new(home).join(".aws").join(name));
        let file = |name: &str, usual: &str| variable(name).map(PathBuf::from).or_else(|| below_home(usual));
        let named = named.or(variable("AWS_PROFILE").map(String::as_str));
        Self {
            name: named.unwrap_or("default").to_owned(),
            config_file: file("AWS_CONFIG_FILE", "config"),
            credentials_file: file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            is_named: named.is_some(),
        }
    }

    /// Reads its current settings. A profile that was named must exist.
    pub(super) fn read(&self) -> io::Result<Settings> {
        let mut settings = Settings::new();
        let mut is_found = false;
        // In the config file, profiles other than the default one are in sections "profile NAME".
        let section = format!("profile {}", self.name);
        let names = [self.name.as_str(), section.as_str()];
        for (file, names) in [(&self.config_file, &names[..]), (&self.credentials_file, &names[..1])] {
            let Some(file) = file else { continue };
            let Some(text) = read_text(file)? else { continue };
            is_found |= collect(&text, names, &mut settings);
        }
        if self.is_named && !is_found {
            let what = format!(
                "the profile \"{}\" is neither in the AWS configuration file nor in the credentials file",
                self.name
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        Ok(settings)
    }
}

fn read_text(file: &Path) -> io::Result<Option<String>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    match fs::metadata(file) {
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => Err(named(io::ErrorKind::FileTooLarge.into())),
        Ok(_) => fs::read_to_string(file).map(Some).map_err(named),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(error)),
    }
}

/// Adds the settings of the sections with one of these names; returns whether there was any.
fn collect(text: &str, names: &[&str], settings: &mut Settings) -> bool {
    let mut is_found = false;
    let mut is_ours = false;
    for line in text.lines() {
        // An indented line belongs to a setting of several lines; none of those is used.
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            is_ours = names.contains(&section.0.trim());
            is_found |= is_ours;
        } else if let Some((key, value)) = line.split_once('=')
            && is_ours
            && !is_nested
        {
            let value = value.split(" #").next().unwrap_or_default().trim();
            settings.insert(key.trim().to_ascii_lowercase(), value.to_owned());
        }
    }
    is_found
}

/// Credentials, and how long to use them.
struct Known {
    credential: Arc<AwsCredential>,
    /// No other credentials are requested before this.
    until: Instant,
    /// When the credentials expire, if ever.
    good_until: Option<Instant>,
}

impl Known {
    /// The same credentials for a moment more, when others cannot be had at present.
    fn once_more(&mut self) -> Option<Arc<AwsCredential>> {
        let now = Instant::now();
        if self.good_until.is_some_and(|until| until <= now) {
            return None;
        }
        self.until = now + LOOK_AGAIN;
        Some(Arc::clone(&self.credential))
    }
}

/// Credentials of a profile. The files are read again now and then, so that renewing them does not stop us.
pub(super) struct ProfileCredentials {
    profile: Profile,
    known: Mutex<Option<Known>>,
}

impl ProfileCredentials {
    /// Credentials of `profile`; `None` if it has none.
    pub(super) fn of(profile: Profile) -> io::Result<Option<Self>> {
        let settings = profile.read()?;
        let has = |key| settings.contains_key(key);
        let some = has("aws_access_key_id") || has("credential_process");
        Ok(some.then(|| Self { profile, known: Mutex::default() }))
    }

    async fn current(&self) -> io::Result<Arc<AwsCredential>> {
        let mut known = self.known.lock().await;
        if let Some(known) = &*known
            && Instant::now() < known.until
        {
            return Ok(Arc::clone(&known.credential));
        }
        let fresh = match (self.fresh().await, &mut *known) {
            (Ok(fresh), _) => fresh,
            // The files may be in the middle of being written, or the command may fail: credentials that are
            // still good are used.
            (Err(error), Some(known)) => return known.once_more().ok_or(error),
            (Err(error), None) => return Err(error),
        };
        let credential = Arc::clone(&fresh.credential);
        *known = Some(fresh);
        Ok(credential)
    }

    /// Current credentials from the files or the command.
    async fn fresh(&self) -> io::Result<Known> {
        let settings = self.profile.read()?;
        let setting = |key: &str| settings.get(key).filter(|value| !value.is_empty()).cloned();
        match (setting("aws_access_key_id"), setting("aws_secret_access_key")) {
            (Some(key_id), Some(secret_key)) => Ok(Known {
                credential: Arc::new(AwsCredential {
                    key_id,
                    secret_key,
                    token: setting("aws_session_token"),
                }),
                until: Instant::now() + LOOK_AGAIN,
                good_until: None,
            }),
            _ => match setting("credential_process") {
                Some(command) => ask(&command).await,
                None => {
                    let what = format!("the profile \"{}\" has no credentials", self.profile.name);
                    Err(io::Error::new(io::ErrorKind::NotFound, what))
                }
            },
        }
    }
}

/// What a `credential_process` prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<Timestamp>,
}

async fn ask(command: &str) -> io::Result<Known> {
    let mut process = Command::new("sh");
    process.args(["-c", command]).stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    for name in SECRET_VARIABLES {
        process.env_remove(name);
    }
    let output = timeout(ANSWERS_WITHIN, process.output())
        .await
        .map_err(|_| {
            let what = format!("credential_process has not answered for {} s", ANSWERS_WITHIN.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, what)
        })?
        .map_err(|error| io::Error::new(error.kind(), format!("running credential_process: {error}")))?;
    if !output.status.success() {
        return Err(io::Error::other(format!("credential_process ended with {}", output.status)));
    }
    // Serde's messages may repeat the output.
    let printed = serde_json::from_slice::<Printed>(&output.stdout)
        .ok()
        .filter(|printed| printed.version == 1)
        .ok_or_else(|| io::Error::other("credential_process printed no credentials of version 1"))?;
    let left = printed
        .expiration
        .map(|at| SystemTime::from(at).duration_since(SystemTime::now()).unwrap_or_default());
    let good_for = left.map_or(RENEW_BEFORE, |left| left.saturating_sub(RENEW_BEFORE).max(LOOK_AGAIN));
    Ok(Known {
        credential: Arc::new(AwsCredential {
            key_id: printed.access_key_id,
            secret_key: printed.secret_access_key,
            token: printed.session_token,
        }),
        until: Instant::now() + good_for.min(Duration::from_secs(86_400)),
        // `None` if that is later than the clock can count, too.
        good_until: left.and_then(|left| Instant::now().checked_add(left)),
    })
}

impl std::fmt::Debug for ProfileCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProfileCredentials({})", self.profile.name)
    }
}

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.current().await.map_err(|source| object_store::Error::Unauthenticated {
            path: String::new(),
            source: Box::new(source),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
[default]
region = eu-west-1 # the near one
s3 =
  endpoint_url = https://nested.example
[profile backup]
region=eu-central-1
endpoint_url = https://s3.example
[sso-session x]
region = nowhere
";
    const CREDENTIALS: &str = "\
; made by hand
[default]
aws_access_key_id = AKDEFAULT
aws_secret_access_key = s3cr3t=/+
[backup]
aws_access_key_id=AKBACKUP
aws_secret_access_key=other
aws_session_token=token
";

    fn home() -> (tempfile::TempDir, BTreeMap<String, String>) {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        fs::write(home.path().join(".aws/config"), CONFIG).unwrap();
        fs::write(home.path().join(".aws/credentials"), CREDENTIALS).unwrap();
        let environment = [("HOME".to_owned(), home.path().display().to_string())].into();
        (home, environment)
    }

    #[test]
    fn a_profile_is_what_both_files_say() {
        let (_home, mut environment) = home();
        let settings = Profile::find(None, &environment).read().unwrap();
        assert_eq!(settings["region"], "eu-west-1");
        assert_eq!(settings["aws_secret_access_key"], "s3cr3t=/+");
        assert!(!settings.contains_key("endpoint_url"), "that of another service");
        let settings = Profile::find(Some("backup"), &environment).read().unwrap();
        assert_eq!(
            (settings["endpoint_url"].as_str(), settings["aws_session_token"].as_str()),
            ("https://s3.example", "token")
        );
        environment.insert("AWS_PROFILE".to_owned(), "nobody".to_owned());
        let error = Profile::find(None, &environment).read().unwrap_err().to_string();
        assert!(error.contains("\"nobody\""), "{error}");
        assert_eq!(Profile::find(None, &BTreeMap::new()).read().unwrap(), Settings::new());
    }

    #[tokio::test]
    async fn credentials_follow_the_file_and_stay_out_of_words() {
        let (home, environment) = home();
        let it = ProfileCredentials::of(Profile::find(Some("backup"), &environment)).unwrap().unwrap();
        assert_eq!(it.current().await.unwrap().key_id, "AKBACKUP");
        fs::write(
            home.path().join(".aws/credentials"),
            "[backup]\naws_access_key_id=AKNEW\naws_secret_access_key=n\n",
        )
        .unwrap();
        it.known.lock().await.as_mut().unwrap().until = Instant::now();
        let renewed = it.current().await.unwrap();
        assert_eq!((renewed.key_id.as_str(), renewed.token.as_deref()), ("AKNEW", None));
        assert!(!format!("{it:?}{renewed:?}").contains("\"n\""));
    }

    /// A file is truncated before it is rewritten, and a command may fail.
    #[tokio::test]
    async fn credentials_are_used_as_long_as_they_are_good() {
        let (home, environment) = home();
        let it = ProfileCredentials::of(Profile::find(Some("backup"), &environment)).unwrap().unwrap();
        assert_eq!(it.current().await.unwrap().key_id, "AKBACKUP");
        fs::write(home.path().join(".aws/credentials"), "").unwrap();
        let look_again = async || it.known.lock().await.as_mut().unwrap().until = Instant::now();
        look_again().await;
        assert_eq!(it.current().await.unwrap().key_id, "AKBACKUP");
        it.known.lock().await.as_mut().unwrap().good_until = Some(Instant::now());
        look_again().await;
        assert!(it.current().await.is_err());
    }

    /// Credentials that last for long are asked for once a day, but are good for as long as they say.
    #[tokio::test]
    async fn long_lived_credentials_stay_good() {
        let printed = |expires: &str| {
            format!(
                r#"echo '{{"Version":1,"AccessKeyId":"A","SecretAccessKey":"s","Expiration":"{expires}"}}'"#
            )
        };
        let day = Duration::from_secs(86_400);
        let known = ask(&printed("2099-01-01T00:00:00Z")).await.unwrap();
        let now = Instant::now();
        assert!(known.until <= now + day);
        assert!(known.good_until.is_none_or(|until| until > now + 30 * day));
        let over = ask(&printed("2001-01-01T00:00:00Z")).await.unwrap();
        assert!(over.good_until.is_some_and(|until| until <= Instant::now()));
    }

    #[tokio::test]
    async fn a_process_may_hold_the_credentials() {
        let (home, environment) = home();
        let process = async |printed: &str| {
            let text = format!("[profile backup]\ncredential_process = echo '{printed}'\n");
            fs::write(home.path().join(".aws/config"), text).unwrap();
            fs::remove_file(home.path().join(".aws/credentials")).ok();
            let it = ProfileCredentials::of(Profile::find(Some("backup"), &environment)).unwrap().unwrap();
            it.current().await.map(|credential| credential.key_id.clone())
        };
        let good = r#"{"Version":1,"AccessKeyId":"AKP","SecretAccessKey":"hush","Expiration":"2099-01-01T00:00:00Z"}"#;
        assert_eq!(process(good).await.unwrap(), "AKP");
        for bad in ["", "hush", r#"{"Version":2,"AccessKeyId":"AKP","SecretAccessKey":"hush"}"#] {
            let error = process(bad).await.unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
