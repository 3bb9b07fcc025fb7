//! The reason why the helper did not run the command.

use std::ffi::c_int;

pub type Result<T> = std::result::Result<T, Refusal>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// A sentence, or what completes "cannot …" if there is an error number.
    what: &'static str,
    /// The folder that the sentence is about.
    folder: &'static str,
    error: Option<c_int>,
}

impl Refusal {
    pub const fn new(what: &'static str) -> Refusal {
        Refusal { what, folder: "", error: None }
    }

    /// A sentence that ends with the name of a folder.
    pub const fn about(what: &'static str, folder: &'static str) -> Refusal {
        Refusal { what, folder, error: None }
    }

    /// A system call that failed.
    pub const fn system(doing: &'static str, error: c_int) -> Refusal {
        Refusal { what: doing, folder: "", error: Some(error) }
    }

    /// Writes one line to a descriptor of the caller. The process has no right of its own then, so
    /// this is no more than what the caller could write there.
    pub fn report(&self, to: c_int) {
        let mut line = Line { bytes: [0; 512], len: 0 };
        if self.error.is_some() {
            line.add(b"cannot ");
        }
        line.add(self.what.as_bytes());
        line.add(self.folder.as_bytes());
        if let Some(error) = self.error {
            line.add(b": error ");
            line.add_number(error.unsigned_abs());
        }
        line.add(b"\n");
        // SAFETY: the kernel reads the bytes that the line has. If it fails, there is no other
        // place for a report.
        unsafe { _ = libc::write(to, line.bytes.as_ptr().cast(), line.len) };
    }
}

/// A line that is put together without an allocation. What is too long is cut off.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    fn add(&mut self, text: &[u8]) {
        for &byte in text {
            if self.len < self.bytes.len() {
                self.bytes[self.len] = byte;
                self.len += 1;
            }
        }
    }

    fn add_number(&mut self, number: u32) {
        if number >= 10 {
            self.add_number(number / 10);
        }
        self.add(&[b'0' + (number % 10) as u8]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    fn line(refusal: Refusal) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        refusal.report(writer.as_raw_fd());
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn reports_are_lines() {
        assert_eq!(line(Refusal::new("it is not set up")), "it is not set up\n");
        assert_eq!(line(Refusal::about("the volume holds ", "/etc")), "the volume holds /etc\n");
        assert_eq!(line(Refusal::system("open x", 113)), "cannot open x: error 113\n");
        assert_eq!(line(Refusal::system("open x", 0)), "cannot open x: error 0\n");
    }
}
