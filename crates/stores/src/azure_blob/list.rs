//! Reading many blobs at once.
//!
//! Azure has no such request, but a list shows the ETag and the lease of up to 5,000 blobs, and a
//! blob's content changes with its ETag only. So the contents of attached records are remembered,
//! which hardly ever change, and one request proves a thousand of them. What is not remembered, or
//! has another ETag, is read. So is everything, one by one, where listing is not allowed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_lease::LeaseName;
use tenure_lease::backend::StoreError;

use super::api::{Api, Blob, LeaseState};
use crate::date::parse_date;

/// What a list says of a blob.
pub(super) struct Listed {
    /// Of the lease.
    name: String,
    /// Without the quotes that it has everywhere else.
    etag: String,
    state: LeaseState,
    modified: u64,
}

impl Listed {
    /// The name of the lease, if it is one.
    pub(super) fn lease(&self) -> Option<LeaseName> {
        LeaseName::new(&self.name).ok()
    }
}

/// One answer of a list.
pub(super) struct Page {
    pub(super) listed: Vec<Listed>,
    /// When it was given, by Azure's clock.
    pub(super) date: u64,
    /// Where the next one goes on.
    pub(super) next: Option<String>,
}

/// The blobs that have been seen, as they were.
#[derive(Default)]
pub(super) struct Memory {
    blobs: Mutex<HashMap<LeaseName, Blob>>,
    /// A list was refused once: it will be again.
    one_by_one: AtomicBool,
}

impl Memory {
    pub(super) fn keep(&self, name: &LeaseName, blob: &Blob) {
        if blob.body.len() > BODY_MAX {
            return;
        }
        let mut blobs = self.blobs();
        if blobs.len() >= BLOBS_MAX && !blobs.contains_key(name) {
            // They are read again, once.
            blobs.clear();
        }
        blobs.insert(name.clone(), blob.clone());
    }

    /// Those of these blobs that a list shows to be what they were.
    pub(super) async fn proved(
        &self,
        api: &Api,
        names: &[LeaseName],
    ) -> Result<HashMap<LeaseName, Blob>, StoreError> {
        let mut proved = HashMap::new();
        let known = {
            let blobs = self.blobs();
            names.iter().filter(|name| blobs.contains_key(*name)).count()
        };
        if known <= FEW || self.one_by_one.load(Ordering::Relaxed) {
            return Ok(proved);
        }
        let stem = crate::common_stem(names);
        let mut marker = None;
        // There may be a million others.
        for _ in 0..names.len().div_ceil(PER_PAGE) {
            let Some(page) = api.list(stem, marker.as_deref()).await? else {
                self.one_by_one.store(true, Ordering::Relaxed);
                break;
            };
            let mut blobs = self.blobs();
            for listed in page.listed {
                let Some(name) = listed.lease() else { continue };
                let Some(blob) = blobs.get_mut(&name) else { continue };
                if blob.etag.trim_matches('"') == listed.etag {
                    let Listed { state, modified, .. } = listed;
                    let blob = Blob { state, modified, date: page.date, ..blob.clone() };
                    proved.insert(name, blob);
                }
            }
            marker = page.next;
            if marker.is_none() {
                break;
            }
        }
        Ok(proved)
    }

    fn blobs(&self) -> MutexGuard<'_, HashMap<LeaseName, Blob>> {
        // Blobs are put in whole.
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// Reads the XML of a list; `prefix` is what all names begin with.
    pub(super) fn parse(text: &str, prefix: &str, date: u64) -> Option<Self> {
        let (mut listed, mut rest) = (Vec::new(), text);
        while let Some((blob, after)) = element(rest, "Blob") {
            rest = after;
            // Of a name that is no XML it says that it is encoded; ours are.
            let Some(name) = inner(blob, "Name").and_then(|name| name.strip_prefix(prefix)) else {
                continue;
            };
            listed.push(Listed {
                name: name.to_owned(),
                etag: inner(blob, "Etag")?.trim_matches('"').to_owned(),
                state: LeaseState::named(inner(blob, "LeaseState")?),
                modified: parse_date(inner(blob, "Last-Modified")?)?,
            });
        }
        // What would have to be unescaped is not a marker that can be sent back.
        let next = inner(text, "NextMarker").filter(|next| !next.is_empty());
        let next = next.filter(|next| !next.contains('&')).map(str::to_owned);
        text.contains("<EnumerationResults").then_some(Self { listed, date, next })
    }
}

/// What is in the first such element, and what comes after it. They are not nested.
fn element<'a>(text: &'a str, tag: &str) -> Option<(&'a str, &'a str)> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let begin = text.find(&open)? + open.len();
    let end = begin + text[begin..].find(&close)?;
    Some((&text[begin..end], &text[end + close.len()..]))
}

fn inner<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    element(text, tag).map(|(inner, _)| inner)
}

/// So few are read one by one.
pub(super) const FEW: usize = 8;
/// At least so many names are wanted for each page that is asked for.
const PER_PAGE: usize = 100;
/// A record without a note is a few hundred bytes.
const BODY_MAX: usize = 1024;
const BLOBS_MAX: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let text = "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults \
            ServiceEndpoint=\"https://a/\" ContainerName=\"c\"><Prefix>leases/</Prefix><Blobs>\
            <Blob><Name>leases/a.b</Name><Properties><Creation-Time>Sun, 06 Nov 1994 08:49:36 GMT\
            </Creation-Time><Last-Modified>Sun, 06 Nov 1994 08:49:37 GMT</Last-Modified>\
            <Etag>0x8D1</Etag><LeaseStatus>locked</LeaseStatus><LeaseState>leased</LeaseState>\
            </Properties></Blob>\
            <Blob><Name Encoded=\"true\">leases/%00</Name><Properties /></Blob>\
            <Blob><Name>leases/c</Name><Properties><Last-Modified>Sun, 06 Nov 1994 08:49:38 GMT\
            </Last-Modified><Etag>\"0x8D2\"</Etag><LeaseState>expired</LeaseState></Properties>\
            </Blob></Blobs><NextMarker>2!8!x--</NextMarker></EnumerationResults>";
        let page = Page::parse(text, "leases/", 7).unwrap();
        let seen: Vec<_> = page
            .listed
            .iter()
            .map(|listed| (&*listed.name, &*listed.etag, listed.state, listed.modified))
            .collect();
        assert_eq!(
            seen,
            [
                ("a.b", "0x8D1", LeaseState::Leased, 784_111_777),
                ("c", "0x8D2", LeaseState::Expired, 784_111_778)
            ]
        );
        assert_eq!((page.date, page.next.as_deref()), (7, Some("2!8!x--")));
        let empty = "<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>";
        let page = Page::parse(empty, "", 7).unwrap();
        assert!(page.listed.is_empty() && page.next.is_none());
        for damaged in ["", "<html>", "<EnumerationResults><Blob><Name>a</Name></Blob>"] {
            assert!(Page::parse(damaged, "", 7).is_none(), "{damaged}");
        }
    }
}
