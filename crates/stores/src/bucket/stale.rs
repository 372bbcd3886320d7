//! Sweeps what interrupted uploads left: parts that no listing of objects shows, and objects that were to be
//! deleted at once.

use std::time::{Duration, SystemTime};

use holdfast_repo::store::{RemoteCause, StoreError};
use jiff::Timestamp;
use object_store::path::Path;
use serde::Deserialize;

use super::{Inner, failure::Failure, requests::Request, service::Service};

/// A page of the list of uploads.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    #[serde(default, rename = "Upload")]
    uploads: Vec<Listed>,
    #[serde(default)]
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    upload_id: String,
    initiated: Timestamp,
}

fn is_old(at: SystemTime, now: SystemTime, min_age: Duration) -> bool {
    now.duration_since(at).unwrap_or_default() >= min_age
}

impl Inner {
    /// Aborts uploads, and deletes temporary objects, of at least that age.
    pub(super) async fn sweep(&self, now: SystemTime, min_age: Duration) -> Result<(), StoreError> {
        match self.service {
            Service::S3 => self.sweep_parts(now, min_age).await?,
            // Azure forgets blocks by itself, and lists none.
            Service::Azure => {}
        }
        // Where deletion only hides objects, their versions are deleted as well.
        match self.locks.get() {
            Some(_) => self.sweep_temporary_versions(now, min_age).await,
            None => self.sweep_temporary(|at| is_old(at, now, min_age)).await,
        }
    }

    async fn sweep_parts(&self, now: SystemTime, min_age: Duration) -> Result<(), StoreError> {
        let mut after: Vec<(&'static str, String)> = Vec::new();
        loop {
            let page = self.uploads(&after).await?;
            for upload in &page.uploads {
                let (true, Ok(key)) =
                    (is_old(upload.initiated.into(), now, min_age), Path::parse(&upload.key))
                else {
                    continue;
                };
                let given_up = self.again(async || {
                    let done = self.clients.giving_up.abort_multipart(&key, &upload.upload_id).await;
                    done.map_err(|error| self.error(&error, &upload.key))
                });
                match given_up.await {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
            let next = match (page.is_truncated, page.next_key_marker, page.next_upload_id_marker) {
                (true, Some(key), id) => {
                    vec![("key-marker", key), ("upload-id-marker", id.unwrap_or_default())]
                }
                _ => break,
            };
            // A list that does not advance would never end.
            if next <= after {
                return Err(self.remote(
                    &self.prefix,
                    RemoteCause::Other,
                    "its list of uploads repeats itself",
                ));
            }
            after = next;
        }
        Ok(())
    }

    /// One page of the uploads below the prefix.
    async fn uploads(&self, after: &[(&'static str, String)]) -> Result<Page, StoreError> {
        let mut query = vec![("uploads", String::new()), ("prefix", self.prefix.clone())];
        query.extend(after.iter().cloned());
        match self.ask_for(&Request::of_bucket(query, format!("{}(uploads)", self.prefix))).await {
            // The service has no such list: its owner has to clear what is left (docs/guide/stores.md).
            Err(refused) if refused.failure == Failure::Remote(RemoteCause::Unfit) => Ok(Page {
                uploads: Vec::new(),
                is_truncated: false,
                next_key_marker: None,
                next_upload_id_marker: None,
            }),
            page => Ok(page?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_uploads_is_read() {
        let text = "<?xml version=\"1.0\"?><ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Bucket>b</Bucket><KeyMarker/><NextKeyMarker>k2</NextKeyMarker><IsTruncated>true</IsTruncated>\
            <Upload><Key>k1</Key><UploadId>a</UploadId><Initiated>2026-11-21T12:00:00.000Z</Initiated></Upload>\
            <Upload><Key>k2</Key><UploadId>b</UploadId><Initiated>2026-11-21T12:00:01Z</Initiated></Upload>\
            </ListMultipartUploadsResult>";
        let page: Page = quick_xml::de::from_str(text).unwrap();
        assert_eq!((page.uploads.len(), page.is_truncated), (2, true));
        assert_eq!(page.next_key_marker.as_deref(), Some("k2"));
        let none: Page = quick_xml::de::from_str(
            "<ListMultipartUploadsResult><Bucket>b</Bucket></ListMultipartUploadsResult>",
        )
        .unwrap();
        assert!(none.uploads.is_empty() && !none.is_truncated);
    }
}
