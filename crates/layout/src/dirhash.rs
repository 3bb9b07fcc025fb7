//! Hashes of names, by which directories are indexed: legacy, half MD4 and TEA, each over signed or
//! unsigned characters (`ext4fs_dirhash`).
//!
//! A directory's index root names its hash version. The superblock has the version for new indexes,
//! the seed, and the signedness.

use crate::superblock::Superblock;

/// `s_flags`: the volume was made where `char` is signed (`EXT2_FLAGS_SIGNED_HASH`).
pub const SIGNED_HASH: u32 = 1;
/// `s_flags`: the volume was made where `char` is unsigned (`EXT2_FLAGS_UNSIGNED_HASH`).
pub const UNSIGNED_HASH: u32 = 2;

/// The seed if `s_hash_seed` is all zeros: the initial state of MD4.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// The largest hash marks the end of a directory for the kernel, so no name has it
/// (`EXT4_HTREE_EOF_32BIT << 1`).
const END_OF_DIRECTORY: u32 = 0xFFFF_FFFE;

/// `hash_version` in an index root and `s_def_hash_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashVersion {
    Legacy,
    HalfMd4,
    Tea,
}

impl HashVersion {
    /// `None` for versions that do not occur on the volumes that xact reads (casefolded and
    /// encrypted directories have a version of their own).
    pub fn from_disk(version: u8) -> Option<HashVersion> {
        match version {
            0 => Some(HashVersion::Legacy),
            1 => Some(HashVersion::HalfMd4),
            2 => Some(HashVersion::Tea),
            _ => None,
        }
    }

    pub fn to_disk(self) -> u8 {
        match self {
            HashVersion::Legacy => 0,
            HashVersion::HalfMd4 => 1,
            HashVersion::Tea => 2,
        }
    }
}

/// Hash of a name. `major` orders the index; its lowest bit is 0. `minor` distinguishes names with
/// the same `major` in listings and is not on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameHash {
    pub major: u32,
    pub minor: u32,
}

/// The hash function of one directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirHasher {
    version: HashVersion,
    unsigned: bool,
    seed: [u32; 4],
}

impl DirHasher {
    pub fn new(sb: &Superblock, version: HashVersion) -> DirHasher {
        // With neither flag set, the kernel uses its own `char`, which is unsigned on every
        // architecture since Linux 6.2, and sets the flag.
        let unsigned = sb.flags() & UNSIGNED_HASH != 0 || sb.flags() & SIGNED_HASH == 0;
        DirHasher::from_parts(version, unsigned, sb.hash_seed())
    }

    /// The hasher of new indexes. No volume with an unknown version is mounted.
    pub fn default_of(sb: &Superblock) -> DirHasher {
        let version = HashVersion::from_disk(sb.def_hash_version()).unwrap_or(HashVersion::HalfMd4);
        DirHasher::new(sb, version)
    }

    /// A seed of zeros stands for the default seed.
    pub fn from_parts(version: HashVersion, unsigned: bool, seed: [u32; 4]) -> DirHasher {
        let seed = if seed == [0; 4] { DEFAULT_SEED } else { seed };
        DirHasher { version, unsigned, seed }
    }

    pub fn version(&self) -> HashVersion {
        self.version
    }

    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (major, minor) = match self.version {
            HashVersion::Legacy => (self.legacy(name), 0),
            HashVersion::HalfMd4 => self.half_md4(name),
            HashVersion::Tea => self.tea(name),
        };
        let major = match major & !1 {
            END_OF_DIRECTORY => END_OF_DIRECTORY - 2,
            even => even,
        };
        NameHash { major, minor }
    }

    /// As `hash`, with a minor hash for every version: the legacy version has none, and its 31 bits
    /// collide in any large directory.
    pub fn hash_for_listing(&self, name: &[u8]) -> NameHash {
        let hash = self.hash(name);
        match self.version {
            HashVersion::Legacy => NameHash { minor: self.half_md4(name).1, ..hash },
            _ => hash,
        }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut hash0, mut hash1) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
        for &byte in name {
            let product = self.widen(byte).wrapping_mul(7_152_373);
            let mut hash = hash1.wrapping_add(hash0 ^ product);
            if hash & 0x8000_0000 != 0 {
                hash = hash.wrapping_sub(0x7FFF_FFFF);
            }
            hash1 = hash0;
            hash0 = hash;
        }
        hash0 << 1
    }

    fn half_md4(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.seed;
        let mut rest = name;
        while !rest.is_empty() {
            half_md4_transform(&mut state, &self.words::<8>(rest));
            rest = &rest[rest.len().min(32)..];
        }
        (state[1], state[2])
    }

    fn tea(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.seed;
        let mut rest = name;
        while !rest.is_empty() {
            tea_transform(&mut state, &self.words::<4>(rest));
            rest = &rest[rest.len().min(16)..];
        }
        (state[0], state[1])
    }

    /// The first `4 * N` bytes as words, first byte highest, padded with the length of all
    /// remaining bytes (`str2hashbuf`).
    fn words<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let pad = (rest.len() as u32 & 0xFF) * 0x0101_0101;
        let mut words = [pad; N];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            *word = bytes.iter().fold(pad, |word, &byte| self.widen(byte).wrapping_add(word << 8));
        }
        words
    }

    fn widen(&self, byte: u8) -> u32 {
        if self.unsigned { u32::from(byte) } else { byte as i8 as u32 }
    }
}

/// MD4's compression function with 8 words of input and 8 steps a round.
fn half_md4_transform(state: &mut [u32; 4], input: &[u32; 8]) {
    const K2: u32 = 0x5A82_7999;
    const K3: u32 = 0x6ED9_EBA1;
    fn choose(x: u32, y: u32, z: u32) -> u32 {
        z ^ (x & (y ^ z))
    }
    fn majority(x: u32, y: u32, z: u32) -> u32 {
        (x & y).wrapping_add((x ^ y) & z)
    }
    fn parity(x: u32, y: u32, z: u32) -> u32 {
        x ^ y ^ z
    }
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (choose, 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (majority, K2, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13]),
        (parity, K3, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]),
    ];

    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in ROUNDS {
        for (step, word) in order.into_iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[word]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (old, new) in state.iter_mut().zip([a, b, c, d]) {
        *old = old.wrapping_add(new);
    }
}

/// The Tiny Encryption Algorithm, 16 rounds, the input as its key.
fn tea_transform(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let (mut left, mut right) = (state[0], state[1]);
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(
            (right << 4).wrapping_add(key[0]) ^ right.wrapping_add(sum) ^ (right >> 5).wrapping_add(key[1]),
        );
        right = right.wrapping_add(
            (left << 4).wrapping_add(key[2]) ^ left.wrapping_add(sum) ^ (left >> 5).wrapping_add(key[3]),
        );
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const UMLAUTS: &str = "Grüße-eine-etwas-längere-Datei-mit-Umlauten-äöüß.txt";
    /// The UUID b33a50ca-b0c2-4a2e-9b57-6a3e0b14e1d5 as the little-endian words of `s_hash_seed`.
    const SEED: [u32; 4] = [0xCA50_3AB3, 0x2E4A_C2B0, 0x3E6A_579B, 0xD5E1_140B];

    fn hash(version: HashVersion, unsigned: bool, seed: [u32; 4], name: &str) -> (u32, u32) {
        let hash = DirHasher::from_parts(version, unsigned, seed).hash(name.as_bytes());
        (hash.major, hash.minor)
    }

    /// Printed by `debugfs -R 'dx_hash -h … -s … NAME'` of e2fsprogs 1.47.
    #[test]
    fn known_hashes() {
        use HashVersion::*;
        assert_eq!(hash(Legacy, false, SEED, "hello"), (0x3225_2546, 0));
        assert_eq!(hash(HalfMd4, false, SEED, "hello"), (0x2167_E9F8, 0xE53D_015D));
        assert_eq!(hash(Tea, false, SEED, "hello"), (0x6F9C_5FAE, 0x3E5D_9300));
        assert_eq!(hash(Legacy, false, SEED, UMLAUTS), (0x2166_A3E8, 0));
        assert_eq!(hash(HalfMd4, false, SEED, UMLAUTS), (0xCCB1_6C36, 0xFE1F_234A));
        assert_eq!(hash(Tea, false, SEED, UMLAUTS), (0x232B_402C, 0xA460_6254));
        assert_eq!(hash(Legacy, true, SEED, UMLAUTS), (0x555B_ABA8, 0));
        assert_eq!(hash(HalfMd4, true, SEED, UMLAUTS), (0xAFDF_F2C4, 0xCEDC_E819));
        assert_eq!(hash(Tea, true, SEED, UMLAUTS), (0xF091_2CC0, 0x7C41_6876));
        assert_eq!(hash(HalfMd4, false, [0; 4], "hello"), (0x1746_DA32, 0x4200_13B5));
        assert_eq!(hash(Tea, false, [0; 4], UMLAUTS), (0x983F_7D72, 0x9E02_60FD));
    }

    /// Every length from 1 to 255 in every version, against debugfs itself.
    #[test]
    fn agrees_with_debugfs() {
        let name: String = (0..255u32).map(|i| char::from(b'!' + (i * 7 % 90) as u8)).collect();
        let name = name.replace(['"', '\\'], "_");
        let (mut requests, mut expected) = (String::new(), Vec::new());
        for version in 0..6u8 {
            for len in (1..=40).chain([63, 64, 65, 127, 128, 254, 255]) {
                // The 200th character on is replaced so that signedness matters.
                let mut text = name[..len].to_string();
                if len > 2 {
                    text.replace_range(len - 2.., "ü");
                }
                requests +=
                    &format!("dx_hash -h {version} -s b33a50ca-b0c2-4a2e-9b57-6a3e0b14e1d5 \"{text}\"\n");
                let base = HashVersion::from_disk(version % 3).expect("versions 0 to 2");
                let (major, minor) = hash(base, version >= 3, SEED, &text);
                expected.push(format!("Hash of {text} is {major:#x} (minor {minor:#x})"));
            }
        }
        let dir = std::env::temp_dir().join(format!("xact-dirhash-{}", std::process::id()));
        std::fs::write(&dir, requests).expect("temporary file");
        let output = Command::new("debugfs").arg("-f").arg(&dir).output().expect("debugfs runs");
        std::fs::remove_file(&dir).expect("temporary file");
        let text = String::from_utf8(output.stdout).expect("debugfs prints UTF-8");
        let answers: Vec<&str> = text.lines().filter(|line| line.starts_with("Hash of")).collect();
        assert_eq!(answers, expected);
    }

    #[test]
    fn listing_tells_legacy_collisions_apart() {
        let hasher = DirHasher::from_parts(HashVersion::Legacy, true, SEED);
        assert_eq!(hasher.hash(b"one").minor, 0);
        assert_eq!(hasher.hash_for_listing(b"one").major, hasher.hash(b"one").major);
        assert_ne!(hasher.hash_for_listing(b"one").minor, hasher.hash_for_listing(b"two").minor);
    }
}
