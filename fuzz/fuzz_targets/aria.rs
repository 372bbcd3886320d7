//! Aria headers and pages, control files.
#![no_main]

use holdfast_formats::PageNo;
use holdfast_formats::aria::{AriaTable, control_uuid, control_with_newest_log};
use libfuzzer_sys::fuzz_target;

/// Gives a control file the checksum of its second part.
fn seal_control(control: &mut [u8]) {
    let len = |at: usize| Some(usize::from(u16::from_le_bytes(*control.get(at..)?.first_chunk()?)));
    let Some((made, rest)) = len(20).zip(len(22)) else { return };
    let Some((crc, content)) = control.get_mut(made..made + rest).and_then(<[u8]>::split_first_chunk_mut::<4>) else {
        return;
    };
    *crc = crc32fast::hash(content).to_le_bytes();
}

fuzz_target!(|input: (u32, &[u8], &[u8])| {
    let (page_no, head, front) = input;
    control_uuid(head);
    let mut control = head.to_vec();
    seal_control(&mut control);
    for control in [head, &control] {
        if let Some(changed) = control_with_newest_log(control, |log| log == page_no) {
            assert!(changed.len() <= control.len());
            assert_eq!(control_uuid(&changed), control_uuid(control));
        }
    }
    if let Ok(table) = AriaTable::parse(head) {
        let mut page = front.to_vec();
        page.resize(table.block_size().bytes(), 0);
        table.check_data_page(PageNo(page_no), &page);
        table.check_index_page(PageNo(page_no), &page);
    }
});
