//! Names in a bucket.
//!
//! The library fails on a whole page if one name in it is none of its own, as with an empty part or a control
//! character. Anybody who can write can make one, and whatever begins with a listing would fail. Then lists
//! of S3 are read here, where names that are none of ours are passed over. (Azure has no such way.)

use std::time::SystemTime;

use futures_util::{StreamExt, TryStreamExt};
use holdfast_repo::store::{ObjectInfo, ObjectPath, RemoteCause, StoreError};
use jiff::Timestamp;
use object_store::{ObjectStoreExt, path::Path};
use serde::Deserialize;

use super::{
    Inner, TEMPORARY, attempts::Attempts, failure::Failure, info, requests::Request, service::Service,
    versions::CommonPrefix,
};
use crate::pause::Retries;

/// A page of names.
#[derive(Deserialize)]
#[serde(rename = "ListBucketResult", rename_all = "PascalCase")]
struct Page {
    #[serde(default)]
    contents: Vec<Listed>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
    #[serde(default)]
    is_truncated: bool,
    next_continuation_token: Option<String>,
    /// How names are encoded. Not every service does what was asked.
    encoding_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    size: u64,
    last_modified: Timestamp,
}

/// Reads a list of S3 page by page.
struct Pages<'a> {
    inner: &'a Inner,
    /// Names begin with this.
    above: String,
    delimiter: Option<&'static str>,
    /// The service's mark of where the next page begins; `None` at the beginning.
    token: Option<String>,
    is_over: bool,
}

impl<'a> Pages<'a> {
    fn new(inner: &'a Inner, prefix: &str, delimiter: Option<&'static str>) -> Self {
        let above = format!("{}{prefix}", inner.prefix);
        Self { inner, above, delimiter, token: None, is_over: false }
    }

    /// The next page; `None` after the last.
    async fn next(&mut self) -> Result<Option<Page>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let mut query = vec![
            ("list-type", "2".to_owned()),
            // Names can have characters that no document can.
            ("encoding-type", "url".to_owned()),
            ("max-keys", "1000".to_owned()),
            ("prefix", self.above.clone()),
        ];
        query.extend(self.delimiter.map(|delimiter| ("delimiter", delimiter.to_owned())));
        query.extend(self.token.iter().map(|token| ("continuation-token", token.clone())));
        let mut page: Page = self.inner.ask_for(&Request::of_bucket(query, self.above.as_str())).await?;
        if page.encoding_type.as_deref() == Some("url") {
            let prefixes = page.common_prefixes.iter_mut().map(|folder| &mut folder.prefix);
            let keys = page.contents.iter_mut().map(|object| &mut object.key);
            prefixes.chain(keys).for_each(|name| *name = decoded(name));
        }
        self.is_over = !page.is_truncated;
        let next = page.next_continuation_token.take();
        // A list that does not advance would never end.
        if !self.is_over && (next.is_none() || next == self.token) {
            let what = "its list of names breaks off, or repeats itself";
            return Err(self.inner.remote(&self.above, RemoteCause::Unfit, what));
        }
        self.token = next;
        Ok(Some(page))
    }
}

/// The objects of one list so far. They must come in the order of their names.
struct InOrder<'a> {
    inner: &'a Inner,
    last: Option<ObjectPath>,
}

/// How a list by the library ended.
enum Listing {
    /// With its last name, or because no more was wanted.
    Over,
    /// With a page that has a name that is none of the library's.
    OddName,
}

impl InOrder<'_> {
    /// The object of the next name; `None` if that is none of ours, or was listed before. This is allowed if the list
    /// `is_again` from its beginning.
    fn next(&self, key: &str, is_again: bool) -> Result<Option<ObjectPath>, StoreError> {
        let name = key.strip_prefix(&self.inner.prefix).filter(|name| !name.starts_with(TEMPORARY));
        // Some services replace what no document can have: where such a name belongs, cannot be told.
        let path = name.filter(|name| !name.contains(char::REPLACEMENT_CHARACTER)).and_then(ObjectPath::new);
        // Of a name that this client cannot send, nothing can be asked or deleted.
        let Some(path) = path.filter(|path| self.inner.key(path).is_ok()) else { return Ok(None) };
        match &self.last {
            Some(last) if *last >= path && is_again => Ok(None),
            Some(last) if *last >= path => {
                let what = "it does not list objects in the order of their names";
                Err(self.inner.remote(path, RemoteCause::Unfit, what))
            }
            _ => Ok(Some(path)),
        }
    }
}

impl Inner {
    /// Lists the objects below a prefix, in the order of their names.
    pub(super) fn list(
        &self,
        prefix: &str,
        retries: Retries,
        each: &mut dyn FnMut(ObjectInfo) -> bool,
    ) -> Result<(), StoreError> {
        let mut listed = InOrder { inner: self, last: None };
        match self.list_by_library(prefix, retries, &mut listed, each)? {
            Listing::Over => Ok(()),
            Listing::OddName => self.list_pages(prefix, &mut listed, each),
        }
    }

    /// The folders directly below a prefix, with those that only temporary objects have, in order.
    pub(super) fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let folder = self.folder(prefix)?;
        let list =
            self.again(async || match self.clients.repeating.list_with_delimiter(folder.as_ref()).await {
                Ok(listed) => Ok(Some(listed)),
                Err(error) if self.is_odd_name(&error) => Ok(None),
                Err(error) => Err(self.error(&error, prefix)),
            });
        let above = format!("{}{prefix}", self.prefix);
        let mut names = Vec::new();
        let mut add = |folder: &str| {
            let name = folder.strip_prefix(&above).map(|name| name.trim_end_matches('/'));
            names.extend(name.filter(|name| !name.is_empty()).map(str::to_owned));
        };
        if let Some(listed) = self.runtime.block_on(list)? {
            listed.common_prefixes.iter().for_each(|folder| add(folder.as_ref()));
        } else {
            let mut pages = Pages::new(self, prefix, Some("/"));
            while let Some(page) = self.runtime.block_on(pages.next())? {
                page.common_prefixes.iter().for_each(|folder| add(&folder.prefix));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Whether the library cannot list because of a name, and there is another way.
    fn is_odd_name(&self, error: &object_store::Error) -> bool {
        matches!(error, object_store::Error::InvalidPath { .. }) && self.service == Service::S3
    }

    fn list_pages(
        &self,
        prefix: &str,
        listed: &mut InOrder<'_>,
        each: &mut dyn FnMut(ObjectInfo) -> bool,
    ) -> Result<(), StoreError> {
        let mut is_again = listed.last.is_some();
        let mut pages = Pages::new(self, prefix, None);
        while let Some(page) = self.runtime.block_on(pages.next())? {
            for object in page.contents {
                let Some(path) = listed.next(&object.key, is_again)? else { continue };
                let created_at: SystemTime = object.last_modified.into();
                is_again = false;
                listed.last = Some(path.clone());
                if !each(ObjectInfo { path, size_bytes: object.size, created_at }) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Deletes temporary objects that are old enough.
    pub(super) async fn sweep_temporary(
        &self,
        is_old: impl Fn(SystemTime) -> bool,
    ) -> Result<(), StoreError> {
        let client = &self.clients.repeating;
        let failed = |error: object_store::Error| self.error(&error, TEMPORARY);
        let folder = self.folder(TEMPORARY)?;
        let swept = self.again(async || {
            let mut objects = client.list(folder.as_ref());
            loop {
                match objects.try_next().await {
                    Ok(Some(found)) if is_old(found.last_modified.into()) => {
                        client.delete(&found.location).await.map_err(failed)?;
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(Listing::Over),
                    Err(error) if self.is_odd_name(&error) => return Ok(Listing::OddName),
                    Err(error) => return Err(failed(error)),
                }
            }
        });
        let Listing::OddName = swept.await? else { return Ok(()) };
        let mut pages = Pages::new(self, TEMPORARY, None);
        while let Some(page) = pages.next().await? {
            let old = page.contents.into_iter().filter(|it| is_old(it.last_modified.into()));
            let temporary = old.filter(|it| it.key.starts_with(&pages.above));
            for key in temporary.filter_map(|it| Path::parse(it.key).ok()) {
                self.again(async || client.delete(&key).await.map_err(failed)).await?;
            }
        }
        Ok(())
    }

    fn list_by_library(
        &self,
        prefix: &str,
        retries: Retries,
        listed: &mut InOrder<'_>,
        each: &mut dyn FnMut(ObjectInfo) -> bool,
    ) -> Result<Listing, StoreError> {
        let client = &self.clients.repeating;
        let folder = self.folder(prefix)?;
        let mut attempts = Attempts::new(retries);
        loop {
            let mut objects = match &listed.last {
                Some(last) if self.service == Service::S3 => {
                    client.list_with_offset(folder.as_ref(), &self.key(last)?)
                }
                // To begin at a name, the library sends Azure a parameter newer than the API version that it names.
                _ => client.list(folder.as_ref()),
            };
            // A service that cannot begin at a name lists earlier objects again, which are skipped.
            let mut is_again = listed.last.is_some();
            // Outside the runtime between two objects, because `each` may call the store.
            let failed = loop {
                let meta = match self.runtime.block_on(objects.next()) {
                    None => return Ok(Listing::Over),
                    Some(Ok(meta)) => meta,
                    Some(Err(error)) => break error,
                };
                let Some(path) = listed.next(meta.location.as_ref(), is_again)? else { continue };
                if !each(info(&path, &meta)) {
                    return Ok(Listing::Over);
                }
                is_again = false;
                listed.last = Some(path);
                attempts = Attempts::new(retries);
            };
            if self.is_odd_name(&failed) {
                return Ok(Listing::OddName);
            }
            if !self.runtime.block_on(attempts.wait(Failure::of(&failed))) {
                return Err(self.error(&failed, format!("{}{prefix}", self.prefix)));
            }
        }
    }
}

/// A name without its encoding. (Spaces are none of ours, so it does not matter whether a `+` is one.)
fn decoded(name: &str) -> String {
    percent_encoding::percent_decode_str(name).decode_utf8_lossy().into_owned()
}
