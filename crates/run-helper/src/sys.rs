//! The system calls. All unsafe code but that of `main` is here. Errors are error numbers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr;

use crate::path::Path;
use crate::refusal::{Refusal, Result as Outcome};

type Result<T> = std::result::Result<T, c_int>;

fn last_error() -> c_int {
    // SAFETY: it returns a pointer to a variable of this thread.
    unsafe { *libc::__errno_location() }
}

/// The result of a call that returns -1 after an error.
fn checked(result: impl Into<i64>) -> Result<i64> {
    match result.into() {
        -1 => Err(last_error()),
        result => Ok(result),
    }
}

fn done(result: impl Into<i64>) -> Result<()> {
    checked(result).map(|_| ())
}

// --- descriptors ---------------------------------------------------------------------------------

/// A descriptor of this process, which the command does not inherit.
pub struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the number belongs to this value alone.
        unsafe { libc::close(self.0) };
    }
}

fn opened(result: impl Into<i64>) -> Result<Descriptor> {
    checked(result).map(|number| Descriptor(number as c_int))
}

/// The kernel's knowledge of an open file.
pub struct Status {
    pub device: (u32, u32),
    pub mount: u64,
    /// Type and permission bits.
    pub mode: u32,
    pub user: u32,
    /// Whether it is the root of its mount.
    pub is_mount_root: bool,
}

impl Status {
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

impl Descriptor {
    /// Without asking the server of the file.
    pub fn status(&self) -> Outcome<Status> {
        self.statx(libc::AT_STATX_DONT_SYNC)
    }

    /// As the server has it now.
    pub fn fresh_status(&self) -> Outcome<Status> {
        self.statx(libc::AT_STATX_FORCE_SYNC)
    }

    fn statx(&self, sync: c_int) -> Outcome<Status> {
        let flags = libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | sync;
        let wanted = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
        let mut found = MaybeUninit::<libc::statx>::zeroed();
        // SAFETY: the path is a string, and the kernel fills one struct, for which zeros are valid.
        let found = unsafe {
            done(libc::statx(self.0, c"".as_ptr(), flags, wanted, found.as_mut_ptr()))
                .map(|()| found.assume_init())
        };
        let found = found.map_err(|error| Refusal::system("look at a file", error))?;
        let root = libc::STATX_ATTR_MOUNT_ROOT as u64;
        if found.stx_mask & wanted != wanted || found.stx_attributes_mask & root == 0 {
            return Err(Refusal::new("this kernel does not tell mounts apart"));
        }
        Ok(Status {
            device: (found.stx_dev_major, found.stx_dev_minor),
            mount: found.stx_mnt_id,
            mode: found.stx_mode.into(),
            user: found.stx_uid,
            is_mount_root: found.stx_attributes & root != 0,
        })
    }

    fn statfs(&self) -> Outcome<libc::statfs> {
        let mut found = MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: the kernel fills one struct, for which zeros are valid.
        let result = unsafe { done(libc::fstatfs(self.0, found.as_mut_ptr())).map(|()| found.assume_init()) };
        result.map_err(|error| Refusal::system("look at a file system", error))
    }

    pub fn is_fuse(&self) -> Outcome<bool> {
        Ok(self.statfs()?.f_type == libc::FUSE_SUPER_MAGIC)
    }

    /// The flags `MOUNT_ATTR_*` of its mount that take something away.
    pub fn restrictions(&self) -> Outcome<u64> {
        // `ST_*` of statvfs(3).
        const TABLE: [(u64, u64); 5] = [
            (0x0001, libc::MOUNT_ATTR_RDONLY),
            (0x0002, libc::MOUNT_ATTR_NOSUID),
            (0x0004, libc::MOUNT_ATTR_NODEV),
            (0x0008, libc::MOUNT_ATTR_NOEXEC),
            (0x2000, libc::MOUNT_ATTR_NOSYMFOLLOW),
        ];
        let mut found = MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: libc fills one struct, for which zeros are valid.
        let result =
            unsafe { done(libc::fstatvfs(self.0, found.as_mut_ptr())).map(|()| found.assume_init()) };
        let flags = result.map_err(|error| Refusal::system("look at a mount", error))?.f_flag;
        Ok(TABLE.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |all, (_, attribute)| all | attribute))
    }

    /// The path of the file now, without links.
    pub fn real_path(&self) -> Outcome<Path> {
        const WRONG: Refusal = Refusal::new("a folder of the system has no path");
        let mut name = *b"self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        let mut at = "self/fd/".len();
        let mut divisor = 1_000_000_000;
        while divisor > 0 {
            if self.0 >= divisor || divisor == 1 {
                name[at] = b'0' + (self.0 / divisor % 10) as u8;
                at += 1;
            }
            divisor /= 10;
        }
        let proc = open_proc_folder()?;
        let mut text = [0u8; libc::PATH_MAX as usize];
        // SAFETY: the name ends with a zero byte, and the kernel writes at most the bytes of the
        // buffer.
        let length = unsafe {
            checked(
                libc::readlinkat(proc.0, name.as_ptr().cast(), text.as_mut_ptr().cast(), text.len()) as i64
            )
        };
        let length = length.map_err(|_| WRONG)? as usize;
        text.get(..length).and_then(Path::new).filter(Path::is_absolute).ok_or(WRONG)
    }
}

/// Opens the standard descriptors that are closed, so that no other file gets their numbers. They
/// can be neither read nor written, and are closed again for the command.
pub fn fill_standard_descriptors() -> Outcome<()> {
    loop {
        let file = open_path(c"/").map_err(|error| Refusal::system("open /", error))?;
        if file.0 > libc::STDERR_FILENO {
            return Ok(());
        }
        std::mem::forget(file);
    }
}

fn open_at(folder: c_int, path: &CStr, flags: c_int) -> Result<Descriptor> {
    // SAFETY: the path is a string.
    opened(unsafe { libc::openat(folder, path.as_ptr(), flags | libc::O_CLOEXEC) })
}

/// Opens a file for its place and attributes only. Links are followed.
pub fn open_path(path: &CStr) -> Result<Descriptor> {
    open_at(libc::AT_FDCWD, path, libc::O_PATH)
}

/// Opens a file for reading, which does not wait for a FIFO's writer.
pub fn open_file(path: &CStr) -> Result<Descriptor> {
    open_at(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)
}

/// Opens the place that an absolute path without links leads to.
pub fn open_resolved(path: &Path) -> Result<Descriptor> {
    open_how(libc::AT_FDCWD, path, libc::RESOLVE_NO_SYMLINKS)
}

/// Opens the place of a path below a folder, on the same mount and without links.
pub fn open_below(folder: &Descriptor, path: &Path) -> Result<Descriptor> {
    open_how(folder.0, path, libc::RESOLVE_BENEATH | libc::RESOLVE_NO_XDEV | libc::RESOLVE_NO_SYMLINKS)
}

fn open_how(folder: c_int, path: &Path, resolve: u64) -> Result<Descriptor> {
    // SAFETY: zeros are valid for the struct.
    let mut how: libc::open_how = unsafe { zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64;
    how.resolve = resolve | libc::RESOLVE_NO_MAGICLINKS;
    let path = path.as_c_str().as_ptr();
    // SAFETY: the path is a string, and the size is that of the struct.
    opened(unsafe { libc::syscall(libc::SYS_openat2, folder, path, &how, size_of_val(&how)) })
}

fn open_proc_folder() -> Outcome<Descriptor> {
    let proc = open_path(c"/proc").map_err(|error| Refusal::system("open /proc", error))?;
    match proc.statfs()?.f_type == libc::PROC_SUPER_MAGIC {
        true => Ok(proc),
        false => Err(Refusal::new("/proc is not what it must be")),
    }
}

/// Opens a file of /proc for reading.
pub fn open_proc(path: &CStr) -> Outcome<Descriptor> {
    open_at(open_proc_folder()?.0, path, libc::O_RDONLY)
        .map_err(|error| Refusal::system("open a file of /proc", error))
}

/// Reads again if a signal interrupts it. 0: the end.
pub fn read(file: &Descriptor, buffer: &mut [u8]) -> Result<usize> {
    loop {
        // SAFETY: the kernel writes at most the bytes of the buffer.
        match checked(unsafe { libc::read(file.0, buffer.as_mut_ptr().cast(), buffer.len()) } as i64) {
            Err(libc::EINTR) => {}
            result => return result.map(|length| length as usize),
        }
    }
}

// --- ids and capabilities ------------------------------------------------------------------------

/// The real user and group.
pub fn real_ids() -> (u32, u32) {
    // SAFETY: they take nothing and always succeed.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// The real, effective and saved user.
pub fn user_ids() -> [u32; 3] {
    let [mut real, mut effective, mut saved] = [0; 3];
    // SAFETY: the kernel fills three variables; it fails for wrong pointers only.
    unsafe { libc::getresuid(&mut real, &mut effective, &mut saved) };
    [real, effective, saved]
}

/// The real, effective and saved group.
pub fn group_ids() -> [u32; 3] {
    let [mut real, mut effective, mut saved] = [0; 3];
    // SAFETY: as above.
    unsafe { libc::getresgid(&mut real, &mut effective, &mut saved) };
    [real, effective, saved]
}

/// Sets the real, effective and saved user; the one for files follows.
pub fn set_user_ids(user: u32) -> Result<()> {
    // SAFETY: it takes numbers.
    done(unsafe { libc::setresuid(user, user, user) })
}

pub fn set_effective_user_id(user: u32) -> Result<()> {
    // SAFETY: it takes numbers; the first and last one mean no change.
    done(unsafe { libc::setresuid(u32::MAX, user, u32::MAX) })
}

/// Sets the real, effective and saved group; the one for files follows.
pub fn set_group_ids(group: u32) -> Result<()> {
    // SAFETY: it takes numbers.
    done(unsafe { libc::setresgid(group, group, group) })
}

/// Whether permitted capabilities outlive the change of the user. An exec ends that.
pub fn keep_capabilities(keep: bool) -> Result<()> {
    // SAFETY: it takes numbers.
    done(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, libc::c_ulong::from(keep), 0, 0, 0) })
}

pub fn clear_ambient_capabilities() -> Result<()> {
    // SAFETY: it takes numbers.
    done(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) })
}

/// As a bit of [`Capabilities`].
pub const CAP_SYS_ADMIN: u64 = 1 << 21;

#[derive(Clone, Copy)]
pub struct Capabilities {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
}

/// `struct __user_cap_header_struct` of linux/capability.h.
#[repr(C)]
struct Header {
    version: u32,
    pid: c_int,
}

/// `struct __user_cap_data_struct`: one half of the bits.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`, for this process.
const HEADER: Header = Header { version: 0x2008_0522, pid: 0 };

pub fn capabilities() -> Result<Capabilities> {
    let mut header = HEADER;
    let mut halves = [Half::default(); 2];
    // SAFETY: the kernel reads a header, and fills two halves for its version.
    done(unsafe { libc::syscall(libc::SYS_capget, &mut header, halves.as_mut_ptr()) })?;
    let join = |part: fn(&Half) -> u32| u64::from(part(&halves[1])) << 32 | u64::from(part(&halves[0]));
    Ok(Capabilities {
        effective: join(|half| half.effective),
        permitted: join(|half| half.permitted),
        inheritable: join(|half| half.inheritable),
    })
}

pub fn set_capabilities(new: &Capabilities) -> Result<()> {
    let half = |shift: u32| Half {
        effective: (new.effective >> shift) as u32,
        permitted: (new.permitted >> shift) as u32,
        inheritable: (new.inheritable >> shift) as u32,
    };
    let mut header = HEADER;
    let halves = [half(0), half(32)];
    // SAFETY: the kernel reads a header, and two halves for its version.
    done(unsafe { libc::syscall(libc::SYS_capset, &mut header, halves.as_ptr()) })
}

// --- mounts --------------------------------------------------------------------------------------

/// Moves the process into a copy of its mount namespace. Mounts made in it are not seen outside;
/// what is mounted and unmounted outside later is seen in it.
pub fn enter_mount_namespace() -> Outcome<()> {
    // SAFETY: the process has one thread, so nothing is shared that this could separate.
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })
        .map_err(|error| Refusal::system("make a mount namespace", error))?;
    let flags = libc::MS_SLAVE | libc::MS_REC;
    // SAFETY: the path is a string; the call ignores the null pointers.
    done(unsafe { libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), flags, ptr::null::<c_void>()) })
        .map_err(|error| Refusal::system("separate the mount namespace from others", error))
}

/// A new mount, in no namespace yet, that shows the folder of a descriptor.
pub fn copy_mount(folder: &Descriptor) -> Outcome<Descriptor> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as c_uint;
    // SAFETY: the path is a string.
    opened(unsafe { libc::syscall(libc::SYS_open_tree, folder.0, c"".as_ptr(), flags) })
        .map_err(|error| Refusal::system("make a mount of the view", error))
}

/// Gives a new mount restrictions, in addition to those that it has, and lets no mount spread.
pub fn restrict_mount(mount: &Descriptor, restrictions: u64) -> Outcome<()> {
    // SAFETY: zeros are valid for the struct.
    let mut attributes: libc::mount_attr = unsafe { zeroed() };
    attributes.attr_set = restrictions;
    attributes.propagation = libc::MS_PRIVATE;
    let size = size_of_val(&attributes);
    // SAFETY: the path is a string, and the size is that of the struct.
    done(unsafe {
        libc::syscall(libc::SYS_mount_setattr, mount.0, c"".as_ptr(), libc::AT_EMPTY_PATH, &attributes, size)
    })
    .map_err(|error| Refusal::system("restrict the mount of the view", error))
}

/// Puts a new mount over the folder or file of a descriptor.
pub fn move_mount(mount: &Descriptor, over: &Descriptor) -> Outcome<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: the paths are strings.
    done(unsafe { libc::syscall(libc::SYS_move_mount, mount.0, c"".as_ptr(), over.0, c"".as_ptr(), flags) })
        .map_err(|error| Refusal::system("put the view over the mount point", error))
}

// --- the command ---------------------------------------------------------------------------------

/// Executes a command, and returns the error if that fails.
///
/// # Safety
/// `words` is not empty, and both are arrays of strings that end with a null pointer.
pub unsafe fn execute(words: *const *const c_char, environment: *const *const c_char) -> c_int {
    // SAFETY: as the caller states.
    unsafe { libc::execve(*words, words, environment) };
    last_error()
}
