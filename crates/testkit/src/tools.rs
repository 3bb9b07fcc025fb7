//! e2fsprogs and the kernel as independent implementations: mke2fs, e2fsck, loop mounts.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;
use xact_layout::checksum::crc32c;
use xact_layout::feature::ro_compat::METADATA_CSUM;
use xact_layout::superblock::{STATE_ERRORS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use xact_layout::{get_u16, get_u32};

use crate::image::Image;

/// Runs a tool and returns its output. A missing tool is a clear panic, since a test that needs one
/// must not pass without it.
pub fn run(tool: &str, args: &[&str]) -> Output {
    Command::new(tool)
        .args(args)
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|e| panic!("cannot run {tool}: {e} (install e2fsprogs and util-linux)"))
}

/// As [`run`], and panics unless the tool exits with 0.
pub fn must_run(tool: &str, args: &[&str]) -> String {
    let output = run(tool, args);
    assert!(output.status.success(), "{tool} {}: {}", args.join(" "), text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn text_of(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).trim().to_owned()
}

/// A folder in memory if there is one, since e2fsck and loop devices flush.
pub fn scratch() -> TempDir {
    let shm = Path::new("/dev/shm");
    let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("xact-test-").tempdir_in(base).expect("a folder for tests")
}

/// A new volume made by mke2fs: `options` as on its command line, `size` as its size argument.
pub fn mke2fs(path: &Path, options: &[&str], size: &str) {
    File::create(path).expect("create an image");
    let path = path.to_str().expect("paths of tests are text");
    let mut args = vec!["-q", "-F", "-t", "ext4"];
    args.extend(options);
    args.extend([
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0,hash_seed=6d0b2a4a-6f1d-4c0b-8f53-1a2b3c4d5e6f",
    ]);
    args.extend(["-U", "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8f9", path, size]);
    must_run("mke2fs", &args);
}

/// FileOps and folders small enough for their inodes, under names that the workloads use.
fn small_files() -> TempDir {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    for below in ["d", "e"] {
        std::fs::create_dir(at(below)).expect("a folder in a new folder");
    }
    for (name, len) in [("a", 40), ("b", 100), ("d/a", 130), ("d/b", 0), ("e/f", 60)] {
        let contents: Vec<u8> = (0..len).map(|i| b'a' + (i % 26) as u8).collect();
        std::fs::write(at(name), contents).expect("a file in a new folder");
    }
    folder
}

/// The same as an [`Image`]; made once for the same options. With `inline_data` it has small files,
/// since xact puts no new files into their inodes.
pub fn formatted(options: &[&str], size: &str) -> Image {
    static MADE: OnceLock<Mutex<Vec<(String, Image)>>> = OnceLock::new();
    let key = format!("{} {size}", options.join(" "));
    let mut made = MADE.get_or_init(Mutex::default).lock();
    if let Some((_, image)) = made.iter().find(|(k, _)| *k == key) {
        return image.clone();
    }
    let dir = scratch();
    let path = dir.path().join("volume");
    if options.iter().any(|option| option.contains("inline_data")) {
        let files = small_files();
        let files = files.path().to_str().expect("paths of tests are text");
        mke2fs(&path, &[options, &["-d", files]].concat(), size);
    } else {
        mke2fs(&path, options, size);
    }
    let image = Image::from_file(&File::open(&path).expect("open the image")).expect("read the image");
    made.push((key, image.clone()));
    image
}

/// `e2fsck -fn`: `Ok` only if it has nothing to report, and no error is noted in the superblock
/// (`EXT4_ERROR_FS`), which a forced check does not mention. Its advice on extent trees with
/// half-empty nodes is off, since the kernel's have such nodes as well.
pub fn e2fsck(path: &Path) -> Result<(), String> {
    if let Some(noted) = noted_error(path) {
        return Err(format!("an error is noted in the superblock: {noted}"));
    }
    e2fsck_by(&["e2fsck"], path)
}

/// As [`e2fsck`], whatever is noted in the superblock. Errors also if it does not end: some values
/// of fields keep it busy for hours.
pub fn e2fsck_finds(path: &Path) -> Result<(), String> {
    const SECONDS: &str = "5";
    e2fsck_by(&["timeout", SECONDS, "e2fsck"], path)
}

fn e2fsck_by(command: &[&str], path: &Path) -> Result<(), String> {
    let path = path.to_str().expect("paths of tests are text");
    let once = || {
        let args = [&command[1..], &["-fn", "-E", "no_optimize_extents", path]].concat();
        let output = run(command[0], &args);
        let text = text_of(&output);
        (output, text)
    };
    let (mut output, mut text) = once();
    if text.contains("is in the future") {
        // time(2) is some milliseconds behind the clock of the volume's times.
        std::thread::sleep(Duration::from_millis(50));
        (output, text) = once();
    }
    // Exit status 0 still allows remarks; the only lines of a clean run are the passes and the
    // totals.
    let remark = text.lines().find(|line| {
        !(line.starts_with("e2fsck ")
            || line.starts_with("Pass ")
            || line.contains(" files (")
            || line.trim().is_empty())
    });
    match (output.status.code(), remark) {
        (Some(0), None) => Ok(()),
        (code, _) => Err(format!("e2fsck exits with {code:?}: {}", text.replace('\n', " | "))),
    }
}

/// `e2fsck -fy`, for volumes that need it after a crash. Errors: it cannot repair all of it.
pub fn e2fsck_mends(path: &Path) -> Result<(), String> {
    let output = run("e2fsck", &["-fy", path.to_str().expect("paths of tests are text")]);
    match output.status.code() {
        Some(0 | 1) => Ok(()),
        code => Err(format!("e2fsck -fy exits with {code:?}: {}", text_of(&output).replace('\n', " | "))),
    }
}

/// `s_last_error_func`, if `s_state` has `EXT4_ERROR_FS`.
fn noted_error(path: &Path) -> Option<String> {
    const STATE_AT: usize = 0x3A;
    const LAST_ERROR_TEXT: Range<usize> = 0x1E0..0x200;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    File::open(path).and_then(|file| file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)).ok()?;
    let text = || String::from_utf8_lossy(&bytes[LAST_ERROR_TEXT]).trim_end_matches('\0').to_owned();
    (get_u16(&bytes, STATE_AT) & STATE_ERRORS != 0).then(text)
}

/// Whether the checksum of the superblock is right, if it has one.
pub fn superblock_is_whole(image: &Image) -> bool {
    const CHECKSUM_AT: usize = 0x3FC;
    const RO_COMPAT_AT: usize = 0x64;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read(&mut bytes, SUPERBLOCK_OFFSET);
    get_u32(&bytes, RO_COMPAT_AT) & METADATA_CSUM == 0
        || crc32c(!0, &bytes[..CHECKSUM_AT]) == get_u32(&bytes, CHECKSUM_AT)
}

/// A file for one image after the other, which writes only the differences.
pub struct ImageFile {
    _dir: TempDir,
    path: PathBuf,
    holds: Option<Image>,
}

impl Default for ImageFile {
    fn default() -> ImageFile {
        let dir = scratch();
        ImageFile { path: dir.path().join("image"), _dir: dir, holds: None }
    }
}

impl ImageFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn put(&mut self, image: &Image) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        match &self.holds {
            Some(held) if held.size_bytes() == image.size_bytes() => {
                let file = File::options().write(true).open(&self.path)?;
                for (offset, bytes) in image.changed_since(held) {
                    file.write_all_at(bytes, offset)?;
                }
            }
            _ => image.write_to(&File::create(&self.path)?)?,
        }
        self.holds = Some(image.clone());
        Ok(())
    }

    /// The contents of the file after another program wrote to it.
    pub fn take(&mut self) -> io::Result<Image> {
        let held = self.holds.take().unwrap_or_else(|| Image::new(0));
        let file = File::open(&self.path)?;
        let image = if held.size_bytes() == file.metadata()?.len() {
            held.as_changed_in(&file)?
        } else {
            Image::from_file(&file)?
        };
        self.holds = Some(image.clone());
        Ok(image)
    }

    /// Another program wrote to the file: the next `put` starts over.
    pub fn spoilt(&mut self) {
        self.holds = None;
    }
}

/// Lends out one of the files that this thread keeps for images.
pub fn with_file<T>(
    image: &Image,
    work: impl FnOnce(&mut ImageFile) -> Result<T, String>,
) -> Result<T, String> {
    thread_local! {
        static FILE: std::cell::RefCell<ImageFile> = std::cell::RefCell::default();
    }
    FILE.with_borrow_mut(|file| {
        file.put(image).map_err(|e| format!("writing the image: {e}"))?;
        work(file)
    })
}

/// Makes the mounts of this process private. Without that, a mount namespace that another program
/// creates would copy them and keep a volume in use that is unmounted here. To be called before the
/// first thread. Errors: without the right to mount.
pub fn mount_for_ourselves() -> std::io::Result<()> {
    use rustix::mount::{MountPropagationFlags as Flags, mount_change};
    // SAFETY: of the state that threads share, it changes the mounts, the working folder and the
    // umask, and there are no other threads.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }?;
    Ok(mount_change("/", Flags::PRIVATE | Flags::REC)?)
}

/// A volume mounted by the kernel over a loop device. Unmounts and detaches when dropped.
pub struct KernelMount {
    image: PathBuf,
    dir: TempDir,
    /// Whether the kernel still has it.
    mounted: bool,
}

impl KernelMount {
    /// `options` as for `mount -o`, without `loop`.
    pub fn new(image: &Path, options: &str) -> Result<KernelMount, String> {
        let dir = scratch();
        let all = if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
        let source = image.to_str().expect("paths of tests are text");
        let target = dir.path().to_str().expect("paths of tests are text");
        let output = run("mount", &["-t", "ext4", "-o", &all, source, target]);
        if !output.status.success() {
            return Err(format!("mount: {}", text_of(&output)));
        }
        Ok(KernelMount { image: image.to_owned(), dir, mounted: true })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts and waits for it, so that the image is whole.
    pub fn unmount(mut self) {
        self.end();
    }

    fn end(&mut self) {
        const TRIES: usize = 50;
        let target = self.dir.path().to_str().expect("paths of tests are text").to_owned();
        for _ in 0..TRIES {
            if !self.mounted {
                return;
            }
            if run("umount", &[&target]).status.success() {
                self.mounted = false;
                self.wait_for_detachment();
            } else {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        assert!(!self.mounted || std::thread::panicking(), "cannot unmount {target}");
    }
}

impl KernelMount {
    /// A mount namespace that another program created in between keeps the volume mounted, and the
    /// kernel's last writes unwritten.
    fn wait_for_detachment(&self) {
        const TRIES: usize = 2000;
        for _ in 0..TRIES {
            if !is_attached(&self.image) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(std::thread::panicking(), "a loop device keeps {}", self.image.display());
    }
}

/// Whether a loop device has the file.
fn is_attached(image: &Path) -> bool {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok())
        .any(|file| Path::new(file.trim_end()) == image)
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2fsck_is_silent_on_a_new_volume_and_not_on_a_damaged_one() {
        let mut file = ImageFile::default();
        let mut image = formatted(&["-b", "1024"], "8M");
        file.put(&image).unwrap();
        e2fsck(file.path()).unwrap();
        // The block bitmap of group 0 is in the first blocks after the descriptors.
        image.write(&[0xff; 1024], 1024 * 3);
        file.put(&image).unwrap();
        e2fsck(file.path()).unwrap_err();
        file.put(&formatted(&["-b", "1024"], "8M")).unwrap();
        e2fsck(file.path()).unwrap();
    }

    #[test]
    fn the_kernel_mounts_what_mke2fs_made() {
        let mut file = ImageFile::default();
        file.put(&formatted(&["-b", "1024"], "8M")).unwrap();
        let mount = KernelMount::new(file.path(), "").unwrap();
        std::fs::write(mount.path().join("a"), "b").unwrap();
        mount.unmount();
        file.spoilt();
        e2fsck(file.path()).unwrap();
    }
}
