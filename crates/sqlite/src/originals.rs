//! The pages in a rollback journal, which are those of the database before the transaction.
//!
//! ```text
//!   segment: header, padded to a sector │ record │ record │ …   the next segment at a sector
//!   header:  magic 8, records 4, checksum's start 4, pages of the database 4, sector 4, page 4
//!   record:  page number 4, page, checksum 4
//! ```
//! See "The Rollback Journal" in SQLite's description of its file format. A record counts if its
//! checksum is right, as in SQLite's own rollback.

const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
const HEADER: usize = 28;

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The first byte of each page in the database file, and the page. Stops where the journal is not
/// well formed.
pub fn pages(journal: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = segment(journal, at, &mut found) {
        at = next;
    }
    found
}

/// Adds the pages of the segment at this place; returns the place of the next one.
fn segment<'a>(journal: &'a [u8], at: usize, found: &mut Vec<(u64, &'a [u8])>) -> Option<usize> {
    let header = journal.get(at..at + HEADER)?;
    let is_complete = header[..8] == MAGIC;
    // Before the first sync, the header has neither magic nor number, and one segment follows.
    if !is_complete && header[..12] != [0; 12] {
        return None;
    }
    let records = if is_complete { number(header, 8)? } else { u32::MAX };
    let (start, sector, page) =
        (number(header, 12)?, number(header, 20)? as usize, number(header, 24)? as usize);
    let is_size = |size: usize, from: usize| size.is_power_of_two() && (from..=65536).contains(&size);
    if !is_size(sector, 32) || !is_size(page, 512) {
        return None;
    }
    let mut at = at + sector;
    for _ in 0..records {
        let Some(record) = journal.get(at..at + page + 8) else { break };
        let (nr, contents) = (number(record, 0)?, &record[4..page + 4]);
        if nr == 0 || number(record, page + 4)? != checksum(contents, start) {
            break;
        }
        found.push((u64::from(nr - 1) * page as u64, contents));
        at += page + 8;
    }
    Some(at.next_multiple_of(sector))
}

/// Every 200th byte counts, from the end.
fn checksum(page: &[u8], start: u32) -> u32 {
    let places = (1..page.len().saturating_sub(200) + 1).rev().step_by(200);
    places.fold(start, |sum, at| sum.wrapping_add(page[at].into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(records: u32, start: u32) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        [records, start, 9, 512, 1024].iter().for_each(|n| header.extend(n.to_be_bytes()));
        header.resize(512, 0);
        header
    }

    fn record(nr: u32, fill: u8, start: u32) -> Vec<u8> {
        let page = [fill; 1024];
        // The bytes at 824, 624, 424, 224, 24.
        let sum = start.wrapping_add(5 * u32::from(fill));
        [&nr.to_be_bytes()[..], &page, &sum.to_be_bytes()].concat()
    }

    #[test]
    fn pages_of_all_segments_are_found() {
        let mut journal = [header(2, 7), record(3, 1, 7), record(1, 2, 7)].concat();
        journal.resize(journal.len().next_multiple_of(512), 0);
        journal.extend([header(u32::MAX, 9), record(8, 3, 9), record(4, 3, 7)].concat());
        let found: Vec<_> = pages(&journal).iter().map(|(at, page)| (at / 1024 + 1, page[0])).collect();
        // The last one has the checksum of another transaction.
        assert_eq!(found, [(3, 1), (1, 2), (8, 3)]);
    }

    #[test]
    fn what_is_no_journal_has_no_pages() {
        let mut unsynced = [header(0, 7), record(3, 1, 7)].concat();
        unsynced[..12].fill(0);
        assert_eq!(pages(&unsynced).len(), 1);
        assert_eq!(pages(&unsynced[..600]).len(), 0);
        assert_eq!(pages(&[0; 28]).len(), 0);
        assert_eq!(pages(&[0xff; 4000]).len(), 0);
        let mut odd = header(1, 7);
        odd[24..28].copy_from_slice(&1000_u32.to_be_bytes());
        assert_eq!(pages(&odd).len(), 0);
    }
}
