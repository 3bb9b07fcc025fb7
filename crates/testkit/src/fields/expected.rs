//! Differences between `xact check` and `e2fsck -fn` that are meant, each with its reason.

use std::fmt;

/// The program that reports a problem where the other one reports none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// e2fsck alone.
    Overlooked,
    /// `xact check` alone.
    FalseAlarm,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Overlooked => "overlooked",
            Direction::FalseAlarm => "false-alarm",
        })
    }
}

/// Cases that differ for a reason.
#[derive(Debug)]
pub struct Expected {
    /// Parts of the case's name (kind of volume, structure, field, value), each a whole word, the
    /// beginning of one (`inode:*`), or `*`.
    pub cases: [&'static str; 4],
    pub direction: Direction,
    /// Part of what the program says that reports a problem.
    pub says: &'static str,
    pub reason: &'static str,
}

impl Expected {
    pub fn covers(&self, name: &str, direction: Direction, what: &str) -> bool {
        let fits = |(pattern, part): (&&str, &str)| match pattern.strip_suffix('*') {
            Some(beginning) => part.starts_with(beginning),
            None => part == *pattern,
        };
        self.direction == direction
            && what.contains(self.says)
            && self.cases.iter().zip(name.split('/')).all(fits)
    }
}

const ANY: &str = "*";

pub const ALL: &[Expected] = &[
    Expected {
        cases: ["bigalloc", ANY, ANY, ANY],
        direction: Direction::FalseAlarm,
        says: "unsupported: bigalloc",
        reason: "xact check does not support volumes with bigalloc, and says so",
    },
    Expected {
        cases: [ANY, "superblock", "creator_os", ANY],
        direction: Direction::FalseAlarm,
        says: "Hurd",
        reason: "Linux refuses to mount it, and so does xact",
    },
    Expected {
        cases: [ANY, "superblock", "journal_dev", ANY],
        direction: Direction::FalseAlarm,
        says: "names a journal",
        reason: "Linux refuses to mount a volume with two journals; e2fsck looks at the UUID only",
    },
    Expected {
        cases: [ANY, "superblock", "last_orphan", ANY],
        direction: Direction::FalseAlarm,
        says: "waits for its deletion",
        reason: "e2fsck -n does not look at the orphan list, which the next mount or e2fsck -p acts on",
    },
    Expected {
        cases: [ANY, "superblock", "mtime", ANY],
        direction: Direction::Overlooked,
        says: "is in the future",
        reason: "a verdict on a volume does not depend on this machine's clock",
    },
    Expected {
        cases: [ANY, "block:journal-superblock", "+16", ANY],
        direction: Direction::FalseAlarm,
        says: "first log block outside",
        reason: "Linux refuses to mount a volume with a journal of this length",
    },
    Expected {
        cases: [ANY, "block:journal-superblock", "+20", ANY],
        direction: Direction::FalseAlarm,
        says: "first log block outside",
        reason: "Linux refuses to mount a volume with a journal that begins there",
    },
    Expected {
        cases: [ANY, "block:journal-superblock", "+40", ANY],
        direction: Direction::Overlooked,
        says: "unknown incompatible feature",
        reason: "the value has the bit of xact's own sub-block records, which e2fsck does not know",
    },
    Expected {
        cases: [ANY, "inode:journal", "size_hi", ANY],
        direction: Direction::FalseAlarm,
        says: "the journal has holes",
        reason: "e2fsck looks only as far as the journal's superblock says; xact's recovery maps the whole inode",
    },
    Expected {
        cases: [ANY, "inode:journal", "links_count", ANY],
        direction: Direction::FalseAlarm,
        says: "the journal's inode is not a file",
        reason: "e2fsck takes the copy of the inode in the superblock; Linux refuses to mount the volume",
    },
    Expected {
        cases: ["ext3", "inode:journal", "size", ANY],
        direction: Direction::FalseAlarm,
        says: "the journal's size is not possible",
        reason: "e2fsck takes the copy of the inode in the superblock",
    },
    Expected {
        cases: [ANY, "inode:resize", "size*", ANY],
        direction: Direction::Overlooked,
        says: "Inode 7, i_size is",
        reason: "neither Linux nor xact uses the size of this inode, only its list of blocks",
    },
    Expected {
        cases: [ANY, "inode:user-quota", "size_hi", ANY],
        direction: Direction::Overlooked,
        says: "Update quota info",
        reason: "Linux accepts a quota file that is longer than its tree",
    },
    Expected {
        cases: [ANY, "block:attributes", "+56", ANY],
        direction: Direction::Overlooked,
        says: "invalid value",
        reason: "Linux does not look at the place of an empty value",
    },
    Expected {
        cases: [ANY, "block:attributes", "+56", ANY],
        direction: Direction::FalseAlarm,
        says: "access control list is damaged",
        reason: "Linux refuses to open a file with such a list, which e2fsck does not read",
    },
];
