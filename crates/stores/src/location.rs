//! Parses locations of repositories.

use std::path::PathBuf;

use thiserror::Error;

use crate::{bucket::Service, sftp::Place};

/// A location that names no place.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BadLocation {
    /// Refused, since a typo would create a directory in whatever the current directory is.
    #[error("\"{path}\" is not a repository: the path of a directory must begin with /")]
    Relative {
        /// The relative path.
        path: String,
    },
    /// Anything else. The error does not repeat the location, which may hold a password.
    #[error(
        "this is not a repository: {why}; use /directory, s3://bucket/prefix, az://container/prefix or sftp://user@host/directory"
    )]
    Malformed {
        /// What is wrong with it.
        why: &'static str,
    },
}

/// A place for a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory of this host.
    Directory(PathBuf),
    /// A bucket of object storage.
    Bucket {
        /// The service that has it.
        service: Service,
        /// Its name.
        bucket: String,
        /// The beginning of all names: empty, or ends in `/`.
        prefix: String,
    },
    /// A directory of another host.
    Sftp(Place),
}

impl Location {
    /// Reads `/directory`, `file:///directory`, `s3://bucket/prefix`, `az://container/prefix` or
    /// `sftp://[user@]host[:port]/directory`.
    pub fn parse(location: &str) -> Result<Self, BadLocation> {
        let bad = |why| Err(BadLocation::Malformed { why });
        let Some((scheme, rest)) = location.split_once("://") else {
            return match location.split_once(':') {
                Some(("s3" | "az" | "sftp" | "file", _)) => bad("\"://\" must follow the scheme"),
                _ => directory(location),
            };
        };
        match scheme {
            "file" => directory(rest),
            "s3" => bucket(Service::S3, rest),
            "az" => bucket(Service::Azure, rest),
            "azure" | "abfs" | "abfss" | "wasb" | "wasbs" => {
                bad("Azure Blob Storage is az://container/prefix")
            }
            "gs" | "gcs" => bad("Google Cloud Storage is not supported"),
            "sftp" => Place::parse(rest).map(Self::Sftp),
            _ => bad("its scheme is unknown"),
        }
    }
}

fn directory(path: &str) -> Result<Location, BadLocation> {
    if path.starts_with('/') {
        Ok(Location::Directory(PathBuf::from(path)))
    } else if path.is_empty() || path.contains([':', '@']) {
        Err(BadLocation::Malformed { why: "the path of a directory must begin with /" })
    } else {
        // Without these characters, it holds no password.
        Err(BadLocation::Relative { path: path.to_owned() })
    }
}

fn bucket(service: Service, rest: &str) -> Result<Location, BadLocation> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_name = |part: &str| {
        !part.is_empty()
            && !matches!(part, "." | "..")
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':'))
    };
    if rest.contains('@') {
        return Err(BadLocation::Malformed { why: "it must not contain credentials" });
    }
    if !is_name(bucket) || bucket.contains(':') {
        return Err(BadLocation::Malformed { why: "the bucket name has characters that are not allowed" });
    }
    let prefix = prefix.trim_end_matches('/');
    if prefix.is_empty() {
        return Ok(Location::Bucket { service, bucket: bucket.to_owned(), prefix: String::new() });
    }
    if prefix.len() > 256 || !prefix.split('/').all(is_name) {
        return Err(BadLocation::Malformed {
            why: "the prefix may have at most 256 characters: A-Z a-z 0-9 . _ - : and single slashes",
        });
    }
    Ok(Location::Bucket { service, bucket: bucket.to_owned(), prefix: format!("{prefix}/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_understood_or_refused() {
        let parse = |location: &str| Location::parse(location);
        assert_eq!(parse("file:///a/b"), Ok(Location::Directory("/a/b".into())));
        assert_eq!(parse("/a/b"), Ok(Location::Directory("/a/b".into())));
        for (location, bucket, prefix) in
            [("s3://b", "b", ""), ("s3://b/", "b", ""), ("s3://my.b-1/x/y/", "my.b-1", "x/y/")]
        {
            let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
            let expected = Location::Bucket { service: Service::S3, bucket, prefix };
            assert_eq!(parse(location), Ok(expected));
        }
        let (bucket, prefix) = ("c-1".to_owned(), "x/".to_owned());
        assert_eq!(parse("az://c-1/x"), Ok(Location::Bucket { service: Service::Azure, bucket, prefix }));
        for bad in [
            "",
            "relative",
            "http://host/",
            "file://relative",
            "s3:bucket",
            "s3://",
            "s3:///x",
            "s3://b//x",
            "s3://b/../x",
            "s3://key:secret@b/x",
            "s3://b/x y",
            "s3://b/%2e",
            "az:c",
            "az://account:secret@c/x",
            "azure://c/x",
            "gs://b/x",
            "sftp://",
            "sftp://host",
            "sftp://-oProxyCommand=x/d",
            "sftp://user:secret@host/dir",
            "sftp://host:0/dir",
            "sftp://host:99999/d",
            "sftp://us er@host/d",
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        for relative in ["relative", "./a/b", "~/a"] {
            let expected = BadLocation::Relative { path: relative.to_owned() };
            assert_eq!(parse(relative).as_ref(), Err(&expected));
            assert_eq!(parse(&format!("file://{relative}")), Err(expected));
        }
        for bad in ["", "user:secret@host/dir", "file://secret@host/dir"] {
            assert!(matches!(parse(bad), Err(BadLocation::Malformed { .. })), "{bad}");
        }
    }
}
