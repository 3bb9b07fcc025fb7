//! Volumes and their mounts: on a device in memory, and in an image that mke2fs has created.

pub mod model_view;
pub mod test_device;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use test_device::TestDevice;
use xact::mkfs::{MkfsOptions, mkfs, mkfs_generations};
use xact::{Volume, VolumeOptions};
use xact_fuse::{MountOptions, Session, Unmounter, serve};

/// Makes tests for two kinds of volumes: one made by our own mkfs, in memory, and one by mke2fs.
#[allow(unused_macros)] // a test program may have tests of one kind only
macro_rules! on_both {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[test] fn $name() { super::$name(super::Mounted::in_memory()) })*
        }
        mod on_a_volume {
            $(#[test] fn $name() { super::$name(super::Mounted::on_a_volume()) })*
        }
    };
}

/// The device of a volume.
enum On {
    Memory(Arc<TestDevice>),
    Image(PathBuf),
}

/// A mount in a folder of its own. It is unmounted when the test ends, also by a panic. Then the
/// volume must be sound: our own check judges one in memory, e2fsck an image.
pub struct Mounted {
    volume: Arc<Volume>,
    on: On,
    session: Option<Session>,
    unmounter: Unmounter,
    dir: tempfile::TempDir,
    /// Whether the volume must be sound in the end.
    is_sound: bool,
}

impl Mounted {
    pub fn in_memory() -> Mounted {
        Mounted::in_memory_with(|_| {}, |_| {})
    }

    /// `prepare` changes the volume before it is opened for the mount. So the mount has nothing
    /// cached.
    pub fn in_memory_with(change: impl FnOnce(&mut MountOptions), prepare: impl FnOnce(&Volume)) -> Mounted {
        let mut options = MountOptions::new(Path::new("/images/a test.img"));
        change(&mut options);
        let device = TestDevice::new(256 << 20);
        mkfs(&*device, &MkfsOptions::default()).unwrap();
        let open = || Volume::open(device.clone(), &VolumeOptions::default()).unwrap();
        let volume = open();
        prepare(&volume);
        volume.close().unwrap();
        Mounted::mount(Mounted::dir(), open(), On::Memory(device.clone()), &options)
    }

    /// A volume with generations, in memory.
    #[allow(dead_code)] // one test program has snapshots
    pub fn with_generations() -> Mounted {
        let device = TestDevice::new(256 << 20);
        let whole: Arc<dyn xact::BlockDevice> = device.clone();
        mkfs_generations(&whole, &MkfsOptions::default(), None).unwrap();
        let volume = Volume::open(device.clone(), &VolumeOptions::default()).unwrap();
        let options = MountOptions::new(Path::new("/images/a test.img"));
        Mounted::mount(Mounted::dir(), volume, On::Memory(device), &options)
    }

    /// A volume of 1 GiB as mke2fs makes it.
    pub fn on_a_volume() -> Mounted {
        let dir = Mounted::dir();
        let image = dir.path().join("volume.img");
        sh(dir.path(), "truncate -s 1G volume.img && mke2fs -q -t ext4 volume.img");
        let volume = Volume::open_path(&image, &VolumeOptions::default()).unwrap();
        let options = MountOptions::new(&image);
        Mounted::mount(dir, volume, On::Image(image), &options)
    }

    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        // Other users must be able to reach it.
        set_mode(dir.path(), 0o755);
        dir
    }

    fn mount(dir: tempfile::TempDir, volume: Arc<Volume>, on: On, options: &MountOptions) -> Mounted {
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        let session = serve(volume.clone(), &dir.path().join("mnt"), options).unwrap();
        let unmounter = session.unmounter();
        Mounted { volume, on, session: Some(session), unmounter, dir, is_sound: true }
    }

    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The device of a volume in memory.
    pub fn device(&self) -> &Arc<TestDevice> {
        match &self.on {
            On::Memory(device) => device,
            On::Image(image) => panic!("the volume is on {}", image.display()),
        }
    }

    /// Notes that the test breaks the volume.
    pub fn is_broken(&mut self) {
        self.is_sound = false;
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// A folder beside the mount.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    pub fn session(&mut self) -> &mut Session {
        self.session.as_mut().unwrap()
    }

    /// Returns when the session has ended.
    pub fn wait(&mut self) {
        self.session.take().unwrap().wait();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let On::Memory(device) = &self.on {
            device.set_stuck(false);
        }
        let _ = self.unmounter.unmount();
        if std::thread::panicking() {
            return;
        }
        if let Some(session) = self.session.take() {
            session.wait();
        }
        if !self.is_sound {
            return;
        }
        self.volume.health().unwrap();
        self.volume.close().unwrap();
        match &self.on {
            On::Memory(device) => {
                let report = xact_check::check(device.clone(), &mut |_, _| ()).unwrap();
                assert!(report.is_sound(), "{:?}", report.problems);
            }
            On::Image(image) => {
                let check = format!("e2fsck -fn {0} > out 2>&1 || {{ cat out; exit 1; }}", image.display());
                sh(self.dir.path(), &check);
            }
        }
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a shell script in `dir`; panics with its output unless it succeeds. Returns its output.
pub fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("bash")
        .args(["-euc", script])
        .current_dir(dir)
        .env("HOME", dir)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .expect("bash is needed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{}: {said}{errors}", output.status);
    said
}
