//! Little-endian integers at byte offsets: ext4's byte order (jbd2's is big-endian).

pub fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get_u32(bytes, at)) | u64::from(get_u32(bytes, at + 4)) << 32
}

pub fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Accessors of plain little-endian fields on a type with `bytes`.
macro_rules! fields {
    ($($(#[$doc:meta])* $get:ident, $set:ident: $kind:ident @ $at:expr;)*) => {
        $(
            $(#[$doc])*
            pub fn $get(&self) -> fields!(@type $kind) {
                fields!(@get $kind, &self.bytes[..], $at)
            }
            pub fn $set(&mut self, value: fields!(@type $kind)) {
                fields!(@put $kind, &mut self.bytes[..], $at, value)
            }
        )*
    };
    (@type u8) => { u8 };
    (@type u16) => { u16 };
    (@type u32) => { u32 };
    (@type u64) => { u64 };
    (@get u8, $b:expr, $at:expr) => { $b[$at] };
    (@get u16, $b:expr, $at:expr) => { $crate::get_u16($b, $at) };
    (@get u32, $b:expr, $at:expr) => { $crate::get_u32($b, $at) };
    (@get u64, $b:expr, $at:expr) => { $crate::get_u64($b, $at) };
    (@put u8, $b:expr, $at:expr, $v:expr) => { $b[$at] = $v };
    (@put u16, $b:expr, $at:expr, $v:expr) => { $crate::put_u16($b, $at, $v) };
    (@put u32, $b:expr, $at:expr, $v:expr) => { $crate::put_u32($b, $at, $v) };
    (@put u64, $b:expr, $at:expr, $v:expr) => { $crate::put_u64($b, $at, $v) };
}
pub(crate) use fields;
