//! Aria headers and pages.
#![no_main]

use holdfast_formats::PageNo;
use holdfast_formats::aria::{AriaTable, control_uuid, is_log};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u32, &[u8], &[u8])| {
    let (page_no, head, front) = input;
    control_uuid(head);
    is_log(head);
    if let Ok(table) = AriaTable::parse(head) {
        let mut page = front.to_vec();
        page.resize(table.block_size().bytes(), 0);
        table.check_data_page(PageNo(page_no), &page);
        table.check_index_page(PageNo(page_no), &page);
    }
});
