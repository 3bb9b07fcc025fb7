//! What is measured: a server, the volume it is given, and how it mounts it.

/// Who serves the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Xact,
    Kernel,
    Fuse2fs,
}

/// What the volume is formatted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// ext4 as mke2fs makes it.
    Ext4,
    /// The same without a journal.
    NoJournal,
    /// A generations volume of xact's own.
    Generations,
}

/// One of the systems that take turns in a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct System {
    /// For tables and charts.
    pub name: &'static str,
    pub server: Server,
    pub format: Format,
    /// Mount options, with commas between.
    pub options: &'static str,
    /// Memory that the file system may cache in, in bytes: xact's own limit, or that of the control
    /// group which the load runs in.
    pub memory: Option<u64>,
}

impl System {
    pub const XACT: System =
        System { name: "xact", server: Server::Xact, format: Format::Ext4, options: "", memory: None };
    pub const KERNEL: System =
        System { name: "kernel", server: Server::Kernel, format: Format::Ext4, options: "", memory: None };
    pub const FUSE2FS: System =
        System { name: "fuse2fs", server: Server::Fuse2fs, format: Format::Ext4, options: "", memory: None };

    pub const fn named(self, name: &'static str, options: &'static str) -> System {
        System { name, options, ..self }
    }

    pub const fn on(self, format: Format) -> System {
        System { format, ..self }
    }

    pub const fn within(self, memory: u64) -> System {
        System { memory: Some(memory), ..self }
    }
}
