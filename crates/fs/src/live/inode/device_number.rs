//! The encoding of device numbers in `i_block` (`old_encode_dev`, `new_encode_dev`).

use xact_layout::inode::BLOCK_AREA_BYTES;
use xact_layout::{get_u32, put_u32};

/// `rdev` as `makedev` packs it for userland.
pub(in crate::live) fn encode(rdev: u64) -> [u8; BLOCK_AREA_BYTES] {
    let (major, minor) = split(rdev);
    let mut area = [0; BLOCK_AREA_BYTES];
    if major < 256 && minor < 256 {
        put_u32(&mut area, 0, major << 8 | minor);
    } else {
        put_u32(&mut area, 4, minor & 0xFF | major << 8 | (minor & !0xFF) << 12);
    }
    area
}

pub(in crate::live) fn decode(area: &[u8; BLOCK_AREA_BYTES]) -> u64 {
    let old = get_u32(area, 0);
    if old != 0 {
        return join(old >> 8 & 0xFF, old & 0xFF);
    }
    let new = get_u32(area, 4);
    join(new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xFFF00)
}

/// As the C library's `gnu_dev_major` and `gnu_dev_minor`.
fn split(rdev: u64) -> (u32, u32) {
    let major = (rdev >> 8 & 0xFFF | rdev >> 32 & 0xFFFF_F000) as u32;
    let minor = (rdev & 0xFF | rdev >> 12 & 0xFFFF_FF00) as u32;
    (major, minor)
}

fn join(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    minor & 0xFF | (major & 0xFFF) << 8 | (minor & !0xFF) << 12 | (major & !0xFFF) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 1), (255, 255), (259, 5), (8, 300), (4095, 1_048_575)] {
            let rdev = join(major, minor);
            assert_eq!(split(rdev), (major, minor));
            assert_eq!(decode(&encode(rdev)), rdev);
        }
    }
}
