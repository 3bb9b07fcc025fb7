//! A begin within a transaction, from inside its view.

use std::fs::File;
use std::io;
use std::path::Path;

use zerocopy::IntoBytes;

use super::ioctl;
use crate::abi::{self, Savepoint};

/// A begin within a transaction, from inside its view.
#[derive(Debug)]
pub struct SavepointHandle {
    folder: File,
    number: u64,
}

impl SavepointHandle {
    /// Makes a savepoint in the transaction whose view contains `folder`. `ENOTTY`: the folder is
    /// in no view.
    pub fn begin(folder: &Path) -> io::Result<SavepointHandle> {
        SavepointHandle::of(&File::open(folder)?)
    }

    /// As [`SavepointHandle::begin`], with an open file or folder of the view.
    pub fn of(folder: &File) -> io::Result<SavepointHandle> {
        let folder = folder.try_clone()?;
        let mut savepoint = Savepoint::default();
        ioctl(&folder, abi::IOC_SAVEPOINT, savepoint.as_mut_bytes())?;
        Ok(SavepointHandle { folder, number: savepoint.number })
    }

    /// A savepoint that exists already, by its number.
    pub fn with_number(folder: &File, number: u64) -> io::Result<SavepointHandle> {
        Ok(SavepointHandle { folder: folder.try_clone()?, number })
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Makes the changes since the savepoint part of the transaction around it.
    pub fn release(self) -> io::Result<()> {
        ioctl(&self.folder, abi::IOC_RELEASE, Savepoint { number: self.number }.as_mut_bytes())
    }

    /// Undoes the changes since the savepoint.
    pub fn roll_back(self) -> io::Result<()> {
        ioctl(&self.folder, abi::IOC_ROLLBACK, Savepoint { number: self.number }.as_mut_bytes())
    }
}
