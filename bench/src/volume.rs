//! The device on which all systems are measured, and the three ways to mount it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::counts::{Counts, statistics};
use crate::system::{Format, Server, Source, System};

pub type Result<T> = std::result::Result<T, String>;

/// Runs a command to its end; the output is for the error message if it fails.
pub fn run(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{shown}: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{shown}: {}: {}", output.status, text.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An image, as a rule on a loop device; formatting fills it.
pub struct Device {
    /// `loop3`; none for an image that is used directly.
    name: Option<String>,
    image: PathBuf,
}

impl Device {
    pub fn new(image: &Path, size_bytes: u64, source: Source) -> Result<Device> {
        // Existing contents need not be filled again.
        let file = File::options().write(true).create(true).truncate(false).open(image);
        file.and_then(|file| file.set_len(size_bytes)).map_err(|e| format!("{}: {e}", image.display()))?;
        let name = match source {
            Source::Loop => Some(attach(image)?),
            Source::Image => None,
        };
        Ok(Device { name, image: image.to_owned() })
    }

    /// The path that file systems get.
    pub fn path(&self) -> PathBuf {
        self.name.as_ref().map_or_else(|| self.image.clone(), |name| Path::new("/dev").join(name))
    }

    pub fn image(&self) -> &Path {
        &self.image
    }

    /// # Errors
    /// If there is no loop device: the kernel counts nothing else.
    pub fn counts(&self) -> Result<Counts> {
        Counts::of(self.loop_name()?).map_err(|e| e.to_string())
    }

    /// The file with the kernel's counts.
    ///
    /// # Errors
    /// As [`Device::counts`].
    pub fn statistics(&self) -> Result<String> {
        self.loop_name().map(statistics)
    }

    fn loop_name(&self) -> Result<&str> {
        self.name.as_deref().ok_or_else(|| format!("{} is on no loop device", self.image.display()))
    }

    /// Makes the volume for a system. `xact` is the program.
    pub fn format(&self, format: Format, xact: &Path) -> Result<()> {
        let mut command = Command::new("mke2fs");
        // Discarded space would have to be filled again.
        command.args(["-q", "-F", "-t", "ext4", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]);
        match format {
            Format::Ext4 => {}
            Format::NoJournal => drop(command.args(["-O", "^has_journal"])),
            Format::Generations => {
                command = Command::new(xact);
                command.args(["mkfs", "--force", "--engine", "generations"]);
            }
        }
        run(command.arg(self.path()))?;
        self.fill()
    }

    /// Writes zeros to holes of the image, and to unwritten extents, as formatting leaves them.
    /// Otherwise the first system that writes there would pay for the allocation, with each flush,
    /// and that is the one with a journal.
    pub fn fill(&self) -> Result<()> {
        self.fill_image().map_err(|e| format!("{}: {e}", self.image.display()))
    }

    fn fill_image(&self) -> io::Result<()> {
        let image = File::options().read(true).write(true).open(&self.image)?;
        let zeros = vec![0; 1 << 20];
        let size = image.metadata()?.len();
        // After the end there is neither.
        let next = |what| match seek(&image, what) {
            Err(Errno::NXIO) => Ok(size),
            found => found,
        };
        let mut at = next(SeekFrom::Hole(0))?;
        while at < size {
            let end = next(SeekFrom::Data(at))?;
            while at < end {
                let part = zeros.len().min((end - at) as usize);
                image.write_all_at(&zeros[..part], at)?;
                at += part as u64;
            }
            at = next(SeekFrom::Hole(at))?;
        }
        image.sync_all()
    }

    /// `Err` if a check finds anything: a fast file system that loses data is not a peer.
    pub fn check(&self, format: Format, xact: &Path) -> Result<()> {
        let mut command = match format {
            Format::Ext4 | Format::NoJournal => Command::new("e2fsck"),
            Format::Generations => Command::new(xact),
        };
        let how = if format == Format::Generations { "check" } else { "-fn" };
        run(command.arg(how).arg(self.path())).map(drop)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.name.is_some() {
            let _ = run(Command::new("losetup").arg("-d").arg(self.path()));
        }
    }
}

fn attach(image: &Path) -> Result<String> {
    let device = run(Command::new("losetup").args(["-f", "--show", "--direct-io=on"]).arg(image))?;
    Ok(device.trim().trim_start_matches("/dev/").to_owned())
}

/// A mounted volume; unmounts when dropped.
pub struct Mount<'a> {
    device: &'a Device,
    system: System,
    dir: PathBuf,
    /// The server of a FUSE mount, which runs in the foreground.
    process: Option<Child>,
    xact: PathBuf,
}

const TIMEOUT: Duration = Duration::from_secs(60);

impl<'a> Mount<'a> {
    pub fn new(device: &'a Device, system: System, dir: &Path, xact: &Path) -> Result<Mount<'a>> {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let mut mount = Mount { device, system, dir: dir.to_owned(), process: None, xact: xact.to_owned() };
        mount.start()?;
        Ok(mount)
    }

    fn start(&mut self) -> Result<()> {
        let mut command = match self.system.server {
            Server::Kernel => Command::new("mount"),
            Server::Fuse2fs => Command::new("fuse2fs"),
            Server::Xact => Command::new(&self.xact),
        };
        let mut options = match self.system.server {
            Server::Kernel => "rw".to_owned(),
            Server::Fuse2fs => "rw,fakeroot,allow_other".to_owned(),
            Server::Xact => "allow_other".to_owned(),
        };
        if !self.system.options.is_empty() {
            options = format!("{options},{}", self.system.options);
        }
        match self.system.server {
            Server::Kernel => drop(command.args(["-t", "ext4"])),
            Server::Fuse2fs => drop(command.arg("-f")),
            Server::Xact => drop(command.args(["mount", "--foreground"])),
        }
        if let (Server::Xact, Some(bytes)) = (self.system.server, self.system.memory) {
            command.args(["--cache-size", &bytes.to_string()]);
        }
        command.args(["-o", &options]).arg(self.device.path()).arg(&self.dir);
        if self.system.server == Server::Kernel {
            run(&mut command)?;
        } else {
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
            self.process = Some(child.map_err(|e| format!("{command:?}: {e}"))?);
        }
        self.wait_until_there()
    }

    /// All requests to the mounted device: by the kernel's counts, or xact's if there is no device.
    pub fn counts(&self) -> Result<Counts> {
        match self.system.source {
            Source::Loop => self.device.counts(),
            Source::Image => {
                let text = run(Command::new(&self.xact).args(["stat", "--json"]).arg(&self.dir))?;
                Counts::of_xact(&text).map_err(|e| format!("xact stat: {e}"))
            }
        }
    }

    fn wait_until_there(&mut self) -> Result<()> {
        let started = Instant::now();
        while !is_mounted(&self.dir) {
            if let Some(status) = self.process.as_mut().and_then(|s| s.try_wait().ok().flatten()) {
                return Err(format!("{} ended instead of mounting: {status}", self.system.name));
            }
            if started.elapsed() > TIMEOUT {
                return Err(format!("{} does not mount", self.system.name));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // The first call waits for the server's handshake.
        fs::metadata(&self.dir).map_err(|e| format!("{}: {e}", self.dir.display()))?;
        Ok(())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn system(&self) -> System {
        self.system
    }

    pub fn xact(&self) -> &Path {
        &self.xact
    }

    /// Writes all deferred work, so that the counts of a load are complete.
    pub fn settle(&self) -> Result<()> {
        match self.system.server {
            Server::Kernel => run(Command::new("sync").arg("-f").arg(&self.dir)).map(drop),
            Server::Xact => run(Command::new(&self.xact).arg("sync").arg(&self.dir)).map(drop),
            // sync(2) does not reach a FUSE server; an fsync makes fuse2fs flush everything.
            Server::Fuse2fs => {
                let file = fs::File::create(self.dir.join(".settle"));
                file.and_then(|f| f.sync_all()).map_err(|e| e.to_string())
            }
        }
    }

    /// Unmounts, empties the kernel's caches, mounts again: the next reads come from the device.
    pub fn cool(&mut self) -> Result<()> {
        self.end()?;
        fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("drop_caches: {e}"))?;
        self.start()
    }

    /// Unmounts, opens the volume in this process with the system's modes, and mounts it again
    /// after `work`.
    pub fn in_process<T>(&mut self, work: impl FnOnce(&xact::Volume) -> Result<T>) -> Result<T> {
        self.end()?;
        let mut options = xact::VolumeOptions::default();
        for option in self.system.options.split(',').filter(|option| !option.is_empty()) {
            // The other options are those of a mount.
            if let Some((setting, value)) = option.split_once('=') {
                options.modes.set(setting, value)?;
            }
        }
        let failed = |e: xact::Error| format!("{}: {e}", self.device.path().display());
        let volume = xact::Volume::open_path(&self.device.path(), &options).map_err(failed)?;
        let result = work(&volume);
        volume.close().map_err(failed)?;
        drop(volume);
        self.start()?;
        result
    }

    pub fn unmount(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let started = Instant::now();
        while is_mounted(&self.dir) {
            let result = run(Command::new("umount").arg(&self.dir));
            if result.is_err() && started.elapsed() > TIMEOUT {
                return result.map(drop);
            }
            if result.is_err() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        if let Some(mut process) = self.process.take() {
            // The server does its last writes after the unmount.
            let status = process.wait().map_err(|e| e.to_string())?;
            if !status.success() {
                return Err(format!("{} ended with {status}", self.system.name));
            }
        }
        Ok(())
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if let Err(why) = self.end() {
            eprintln!("{why}");
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == dir))
}
