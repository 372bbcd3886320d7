//! Pages of every geometry. The input fills the front of the page, so that a short one reaches the body, too.
#![no_main]

use holdfast_formats::page::{check_page, doublewrite_ranges, page_compressed_with, page_no};
use holdfast_formats::{Flavor, Geometry, SpaceId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, u32, &[u8])| {
    let (mysql, flags, head) = input;
    let flavor = if mysql { Flavor::MySql } else { Flavor::MariaDb };
    let Ok(geometry) = Geometry::new(flavor, SpaceId(1), flags) else { return };
    let mut page = vec![0; geometry.page_size().bytes()];
    let bytes = head.len().min(page.len());
    page[..bytes].copy_from_slice(&head[..bytes]);
    if let Some(number) = page_no(&page) {
        check_page(&geometry, number, &page);
        check_page(&geometry, number, head);
    }
    page_compressed_with(&geometry, head);
    doublewrite_ranges(&page, geometry.page_size());
});
