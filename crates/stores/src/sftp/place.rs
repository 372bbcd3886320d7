//! Where a repository behind SSH is.

use std::fmt;

use crate::BadLocation;

/// A directory of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The user; without it, the one in the configuration of ssh.
    pub user: Option<String>,
    /// A host, or a name from the configuration of ssh.
    pub host: String,
    /// The port; without it, the one in the configuration of ssh.
    pub port: Option<u16>,
    /// The directory, from the root, or from the home directory if it begins with `~/`.
    pub directory: String,
}

impl Place {
    /// Reads `[user@]host[:port]/directory`; `host/~/directory` begins at the home directory.
    pub(crate) fn parse(rest: &str) -> Result<Self, BadLocation> {
        let bad = |why| Err(BadLocation::Malformed { why });
        let Some((authority, path)) = rest.split_once('/') else { return bad("it names no directory") };
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return bad("it must not contain a password: ssh uses keys, or asks for one");
        }
        let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("none"))),
            None => match address.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            },
        };
        let port = match port.map(str::parse::<u16>) {
            None => None,
            Some(Ok(port)) if port > 0 => Some(port),
            Some(_) => return bad("its port is not a number from 1 to 65535"),
        };
        // Both become arguments of ssh.
        let is_plain = |word: &str| {
            !word.is_empty()
                && !word.starts_with('-')
                && word
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !b"'\"`$\\;|&<>(){}*?!#".contains(&byte))
        };
        if !is_plain(host) || !user.is_none_or(is_plain) {
            return bad("its user or host has characters that are not allowed");
        }
        let path = path.trim_end_matches('/');
        let directory = match path.strip_prefix("~/") {
            Some(_) => path.to_owned(),
            None if path.is_empty() => return bad("it names no directory"),
            None => format!("/{path}"),
        };
        let is_part = |part: &str| !part.is_empty() && !matches!(part, "." | "..") && !part.contains('\0');
        if !directory.strip_prefix('/').unwrap_or(&directory).split('/').all(is_part) {
            return bad("its directory has an empty part, \".\" or \"..\"");
        }
        Ok(Self { user: user.map(str::to_owned), host: host.to_owned(), port, directory })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sftp://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?
        } else {
            f.write_str(&self.host)?
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        let slash = if self.directory.starts_with('/') { "" } else { "/" };
        write!(f, "{slash}{}", self.directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_it_is_read() {
        for location in ["host/d", "user@host:2222/srv/my repo", "[::1]:22/d", "host/~/d", "host/a/b"] {
            assert_eq!(Place::parse(location).unwrap().to_string(), format!("sftp://{location}"));
        }
        assert_eq!(Place::parse("h/a/b//").unwrap().directory, "/a/b");
        let why = "its directory has an empty part, \".\" or \"..\"";
        assert_eq!(Place::parse("h//a"), Err(BadLocation::Malformed { why }));
    }
}
