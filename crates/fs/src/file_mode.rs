//! The data mode of one file, chosen by its owner (JOJ-4).
//!
//! The choice is an extended attribute, [`FILE_MODE`], so that it is kept with the file and copied
//! by the programs that copy attributes (`cp -a`, `rsync -X`, `tar --xattrs`). On a folder it is
//! the choice of the files and folders that are made in it from then on. Linux ignores it.
//!
//! The flag `+j` of chattr is ext4's way to say `data`. Both are kept in agreement: setting one
//! sets or clears the other (`posix::set_xattr`, `posix::set_attr`). Linux may have changed one
//! alone; then the flag counts, and without it the attribute.
//!
//! Only the file's owner and root may change the choice. It takes nothing from other users: a mode
//! that is weaker than the volume's does not show what they have deleted. Whether a commit waits
//! for new data is the volume's decision; a file can only ask for more
//! (`live::data::effective_mode`).

use xact_consistency::DataInLog;
use xact_layout::inode::flag;
use xact_types::{Errno, Error, Ino, Result};

use crate::api::{Attr, Caller, SetAttr, View, XattrHow};
use crate::journal_modes::DataMode;

/// The extended attribute that holds a file's choice.
pub const FILE_MODE: &[u8] = b"user.xact.data";

/// The values of the attribute: the names that the paper on JOJ gives the modes of a file.
const WORDS: [(DataMode, &str); 5] = [
    (DataMode::Writeback, "none"),
    (DataMode::Ordered, "ordered"),
    (DataMode::Journal, "data"),
    (DataMode::Selective, "selective"),
    (DataMode::Adaptive, "adaptive"),
];

impl DataMode {
    /// The name of the mode as a file's choice.
    pub fn file_word(self) -> &'static str {
        WORDS.iter().find(|(mode, _)| *mode == self).expect("each mode has a word").1
    }

    /// The mode with this name as a file's choice.
    pub fn from_file_word(word: &[u8]) -> Option<DataMode> {
        WORDS.iter().find(|(_, known)| known.as_bytes() == word).map(|(mode, _)| *mode)
    }

    /// All modes, with their names as a file's choice.
    pub fn file_words() -> impl Iterator<Item = (DataMode, &'static str)> {
        WORDS.into_iter()
    }

    /// Whether a file can have this mode on a volume that logs data as `log` says.
    pub(crate) fn works_with(self, log: DataInLog) -> bool {
        match self {
            DataMode::Writeback | DataMode::Ordered => true,
            DataMode::Adaptive => log != DataInLog::None,
            DataMode::Journal | DataMode::Selective => log == DataInLog::All,
        }
    }
}

/// Gives a file a data mode of its own, or with `None` the volume's again; also without `+j`.
///
/// # Errors
/// `EPERM` if the caller is neither root nor the owner, `EOPNOTSUPP` for a mode that the volume
/// cannot have, and those of [`View::set_xattr`].
pub fn choose_file_mode(view: &dyn View, caller: &Caller, ino: Ino, mode: Option<DataMode>) -> Result<()> {
    if let Some(mode) = mode {
        return view.set_xattr(caller, ino, FILE_MODE, mode.file_word().as_bytes(), XattrHow::Set);
    }
    match view.remove_xattr(caller, ino, FILE_MODE) {
        Err(Error::Posix(Errno::ENODATA)) => {
            let Attr { flags, uid, .. } = view.attr(ino)?;
            if caller.uid != 0 && caller.uid != uid {
                return Err(Errno::EPERM.into());
            }
            let without = flags_with(flags, None);
            if without != flags {
                view.set_attr(caller, ino, &SetAttr { flags: Some(without), ..SetAttr::default() })?;
            }
            Ok(())
        }
        removed => removed,
    }
}

/// The mode that an attribute's value chooses.
///
/// # Errors
/// `EINVAL` for another value than those of [`DataMode::file_words`].
pub(crate) fn parse(value: &[u8]) -> Result<DataMode> {
    DataMode::from_file_word(value).ok_or(Error::Posix(Errno::EINVAL))
}

/// These `i_flags` with `+j` as the choice says.
pub(crate) fn flags_with(flags: u32, choice: Option<DataMode>) -> u32 {
    match choice {
        Some(DataMode::Journal) => flags | flag::JOURNAL_DATA,
        _ => flags & !flag::JOURNAL_DATA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_a_word() {
        for (mode, word) in DataMode::file_words() {
            assert_eq!((mode.file_word(), DataMode::from_file_word(word.as_bytes())), (word, Some(mode)));
            assert!(mode.works_with(DataInLog::All));
        }
        for bad in [&b""[..], b"fast", b"data\n", b"DATA"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
