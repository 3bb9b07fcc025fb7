//! A measured system: a server, its volume, and its mount options.

/// The server of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Xact,
    Kernel,
    Fuse2fs,
}

/// The format of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// ext4 as mke2fs makes it.
    Ext4,
    /// The same without a journal.
    NoJournal,
    /// A generations volume of xact's own.
    Generations,
}

/// The source of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Loop,
    /// The image file itself, without the loop device that only the kernel's own file systems need.
    Image,
}

/// One of the systems that take turns in a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct System {
    /// For tables and charts.
    pub name: &'static str,
    pub server: Server,
    pub format: Format,
    pub source: Source,
    /// Mount options, with commas between.
    pub options: &'static str,
    /// Memory that the file system may cache in, in bytes: xact's own limit, or that of the control
    /// group which the load runs in.
    pub memory: Option<u64>,
}

impl System {
    pub const XACT: System = System::of("xact", Server::Xact);
    pub const KERNEL: System = System::of("kernel", Server::Kernel);
    /// Another version of xact, beside the measured one.
    pub const BEFORE: System = System::of("before", Server::Xact);
    pub const FUSE2FS: System = System::of("fuse2fs", Server::Fuse2fs);

    const fn of(name: &'static str, server: Server) -> System {
        System { name, server, format: Format::Ext4, source: Source::Loop, options: "", memory: None }
    }

    pub const fn named(self, name: &'static str, options: &'static str) -> System {
        System { name, options, ..self }
    }

    pub const fn on(self, format: Format) -> System {
        System { format, ..self }
    }

    pub const fn given(self, source: Source) -> System {
        System { source, ..self }
    }

    pub const fn within(self, memory: u64) -> System {
        System { memory: Some(memory), ..self }
    }
}
