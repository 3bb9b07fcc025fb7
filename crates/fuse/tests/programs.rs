//! Real programs and system calls on a mount. Needs root, /dev/fuse, and the named programs; a
//! missing one fails the test.

#[allow(dead_code)]
#[macro_use]
mod common;

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::test_device::{PANIC, SLOW, page};
use common::{Mounted, sh};
use xact::PathExt;
use xact_types::settings::{Id, Value};

on_both! {
    copies_of_a_tree_are_equal
    git_works
    sqlite_works_in_both_journal_modes
    mappings_reach_the_view
    unnamed_files_get_names_and_unlinked_ones_live
    renames_of_all_kinds
    attributes_extended_and_not
    acls_are_enforced_and_inherited
    holes_and_allocation
    appends_do_not_overwrite_each_other
    permissions_are_checked_by_the_kernel
    large_folders_are_listed_once_each
    unmounting_waits_for_who_is_still_there
    open_files_outlive_their_replacement
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn copies_of_a_tree_are_equal(mount: Mounted) {
    let script = r#"
        mkdir -p src/a/b src/empty
        for i in $(seq 300); do echo "file $i" > src/a/f$i; done
        head -c 3000000 /dev/urandom > src/large
        truncate -s 1M src/sparse
        ln -s ../large src/a/link
        ln src/large src/hard
        mkfifo src/fifo; mknod src/device c 1 3
        chmod 4751 src/large; chown 12:34 src/a/f1
        touch -d 2001-02-03T04:05:06 src/a/f2
    "#;
    let outside = mount.outside("work");
    fs::create_dir(&outside).unwrap();
    sh(&outside, script);
    sh(
        &outside,
        &format!(
            "cp -a src {0}/in && cp -a {0}/in {0}/again && cp -a {0}/again back",
            mount.path().display()
        ),
    );
    sh(
        &outside,
        "diff -r --no-dereference src/a back/a && cmp src/large back/large && cmp src/sparse back/sparse",
    );
    let list = "find . -printf '%p %y %m %n %U %G %l\\n' | sort";
    assert_eq!(sh(&outside.join("src"), list), sh(&outside.join("back"), list));
    assert_eq!(sh(&outside, "stat -c %Y back/a/f2; stat -c '%t %T' back/device"), "981173106\n1 3\n");
    assert_eq!(
        sh(&mount.path(), "ls in/a | wc -l; rm -rf in again; ls -A -I lost+found | wc -l"),
        "302\n0\n"
    );
}

fn git_works(mount: Mounted) {
    let said = sh(
        &mount.path(),
        "git init -q r; cd r; git config user.email a@b; git config user.name n
         for i in 1 2 3 4 5; do echo $i > f$i; git add .; git commit -qm $i; done
         git checkout -qb x HEAD~2; git mv f1 g1; git commit -qam moved; git rebase -q master
         git gc -q; git fsck --strict; git status --porcelain; git log --format=%s",
    );
    assert_eq!(said, "moved\n5\n4\n3\n2\n1\n");
}

fn sqlite_works_in_both_journal_modes(mount: Mounted) {
    for mode in ["delete", "wal"] {
        let said = sh(
            &mount.path(),
            &format!(
                "rm -f db*; sqlite3 db 'pragma journal_mode={mode}; create table t(a);
                   with recursive n(i) as (select 1 union all select i+1 from n where i<1000)
                   insert into t select i from n; begin; delete from t where a%2; rollback;'
                 for i in $(seq 20); do sqlite3 -cmd '.timeout 20000' db \"insert into t values($i)\" & done; wait
                 sqlite3 db 'pragma integrity_check; select count(*), sum(a) from t'"
            ),
        );
        assert_eq!(said, format!("{mode}\nok\n1020|500710\n"));
    }
}

fn mappings_reach_the_view(mount: Mounted) {
    let file = File::options().read(true).write(true).create_new(true).open(mount.at("m")).unwrap();
    file.set_len(3 * 4096).unwrap();
    // SAFETY: a fresh shared mapping of an open file, used within its length and unmapped below.
    unsafe {
        let (protection, len) = (libc::PROT_READ | libc::PROT_WRITE, 3 * 4096);
        let at = libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().add(5000).write(7);
        assert_eq!(libc::msync(at, len, libc::MS_SYNC), 0);
        libc::munmap(at, len);
    }
    // Another open is served from the cache. O_DIRECT reads the view's contents past the cache.
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(mount.at("m")).unwrap();
    let mut block = vec![0_u64; 512];
    // SAFETY: any bytes are valid in a Vec<u64>.
    let bytes = unsafe { std::slice::from_raw_parts_mut(block.as_mut_ptr().cast::<u8>(), 4096) };
    direct.read_exact_at(bytes, 4096).unwrap();
    assert_eq!(bytes[904], 7);
    sh(&mount.path(), "cp /bin/true t; chmod +x t; ./t");
}

fn unnamed_files_get_names_and_unlinked_ones_live(mount: Mounted) {
    let options = |f: i32| File::options().read(true).write(true).mode(0o640).custom_flags(f).clone();
    let mut file = options(libc::O_TMPFILE).open(mount.path()).unwrap();
    file.write_all(b"nameless").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    sh(&mount.path(), &format!("ln -L /proc/{}/fd/{} named", std::process::id(), file.as_raw_fd()));
    assert_eq!(fs::read(mount.at("named")).unwrap(), b"nameless");
    fs::remove_file(mount.at("named")).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    file.write_all(b" and still there").unwrap();
    assert_eq!((text.as_str(), file.metadata().unwrap().len()), ("nameless", 24));
    // An open directory that was removed lists nothing, and nothing can be created in it.
    fs::create_dir(mount.at("d")).unwrap();
    let dir = File::open(mount.at("d")).unwrap();
    fs::remove_dir(mount.at("d")).unwrap();
    let name = c"x";
    // SAFETY: a valid descriptor and C string; no one else would own a returned descriptor.
    let made = unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600) };
    assert_eq!(made, -1);
}

fn renames_of_all_kinds(mount: Mounted) {
    let (a, b) = (mount.at("a"), mount.at("b"));
    let rename = |flags: u32| {
        let (a, b) = (c(&a), c(&b));
        // SAFETY: valid C strings.
        let done = unsafe { libc::renameat2(libc::AT_FDCWD, a.as_ptr(), libc::AT_FDCWD, b.as_ptr(), flags) };
        if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    fs::write(&a, "A").unwrap();
    fs::write(&b, "B").unwrap();
    assert_eq!(errno(rename(libc::RENAME_NOREPLACE)), libc::EEXIST);
    rename(libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"B".to_vec(), b"A".to_vec()));
    rename(libc::RENAME_WHITEOUT).unwrap();
    let left = fs::symlink_metadata(&a).unwrap();
    assert_eq!((left.mode() & libc::S_IFMT, left.rdev()), (libc::S_IFCHR, 0));
    assert_eq!(fs::read(&b).unwrap(), b"B");
    sh(&mount.path(), "rm a; mv b a; mkdir -p d/e; ! mv d d/e 2>/dev/null; mv a d/e; cat d/e/a");
}

fn attributes_extended_and_not(mount: Mounted) {
    let said = sh(
        &mount.path(),
        "umask 027; echo x > f; mkdir d; stat -c %a f d
         setfattr -n user.k -v v f; setfattr -n trusted.t -v w f; getfattr -d -m - f; setfattr -x user.k f
         getfattr -n user.k f 2>&1 || true
         chattr +a f; ! echo y > f 2>/dev/null; echo z >> f; lsattr f | cut -c1-13; chattr -a f
         stat -c %W f | grep -qv '^[0-]*$'; touch -d @1.5 f; stat -c %.9Y f
         chmod 6777 f; setpriv --reuid 5 --regid 5 --clear-groups bash -c 'echo q >> f'; stat -c %a f",
    );
    let expected = "640\n750\n# file: f\ntrusted.t=\"w\"\nuser.k=\"v\"\n\nf: user.k: No such attribute\n\
                    -----a-------\n1.500000000\n777\n";
    assert_eq!(said, expected);
}

fn acls_are_enforced_and_inherited(mount: Mounted) {
    sh(&mount.path(), "mkdir d; setfacl -d -m u:77:rw d; umask 077; echo x > d/f; echo y > g; chmod 600 g");
    let as_77 = |what: &str| {
        sh(&mount.path(), &format!("setpriv --reuid 77 --regid 77 --clear-groups cat {what} 2>&1 || true"))
    };
    assert_eq!(as_77("d/f"), "x\n");
    assert_eq!(as_77("g"), "cat: g: Permission denied\n");
    sh(&mount.path(), "setfacl -m u:77:r g");
    assert_eq!(as_77("g"), "y\n");
    sh(&mount.path(), "chmod 600 g");
    assert_eq!(as_77("g"), "cat: g: Permission denied\n");
    // The default list replaces the umask.
    let list = "user::rw-\nuser:77:rw-\ngroup::r-x\t#effective:r--\nmask::rw-\nother::r--\n\n";
    assert_eq!(sh(&mount.path(), "getfacl -cn d/f"), list);
}

fn holes_and_allocation(mount: Mounted) {
    let said = sh(
        &mount.path(),
        "fallocate -l 100000 f; stat -c %s f; fallocate -n -l 200000 f; stat -c %s f
         head -c 100000 /dev/zero | tr '\\0' x > f; fallocate -p -o 4096 -l 8192 f
         tr -d x < f | wc -c; fallocate -z -o 20000 -l 100 f; tr -d x < f | wc -c; stat -c %s f
         ! fallocate -c -o 0 -l 4096 f 2>/dev/null",
    );
    assert_eq!(said, "100000\n100000\n8192\n8292\n100000\n");
    let mut file = File::open(mount.at("f")).unwrap();
    // SAFETY: a valid descriptor.
    let hole = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) };
    // SAFETY: a valid descriptor.
    let data = unsafe { libc::lseek(file.as_raw_fd(), hole, libc::SEEK_DATA) };
    assert_eq!((hole, data), (4096, 12288));
    let mut to = File::create(mount.at("copy")).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    // std copies with copy_file_range.
    assert_eq!(std::io::copy(&mut file, &mut to).unwrap(), 100000);
    sh(&mount.path(), "cmp f copy");
}

fn appends_do_not_overwrite_each_other(mount: Mounted) {
    let said = sh(
        &mount.path(),
        "for p in 1 2 3 4; do (for i in $(seq 500); do echo $p$i >> log; done) & done; wait
         sort -u log | wc -l; wc -l < log",
    );
    assert_eq!(said, "2000\n2000\n");
}

#[test]
fn a_mount_shows_its_source_size_and_options() {
    let mount =
        Mounted::in_memory_with(|options| assert!(options.set(Id::NoSuid, Some(Value::Flag(true)))), |_| {});
    let said = sh(&mount.path(), "df --output=source,fstype,size,used,avail,itotal . | tail -1");
    let fields: Vec<&str> = said.split_whitespace().collect();
    let space = mount.volume().base().space().unwrap();
    let kib = |blocks: u64| (blocks * u64::from(space.block_size) / 1024).to_string();
    let (size, used) = (kib(space.blocks), kib(space.blocks - space.free_blocks));
    let (available, inodes) = (kib(space.available_blocks), space.inodes.to_string());
    assert_eq!(fields, ["/images/a", "test.img", "fuse.xact", &size, &used, &available, &inodes]);
    let options = sh(&mount.path(), "findmnt -no OPTIONS -T .");
    for expected in ["nosuid", "default_permissions", "allow_other"] {
        assert!(options.contains(expected), "{options}");
    }
    assert_eq!(sh(&mount.path(), "stat -c %i .; ls -A -I lost+found"), "2\n");
}

fn permissions_are_checked_by_the_kernel(mount: Mounted) {
    fs::write(mount.at("secret"), "s").unwrap();
    fs::set_permissions(mount.at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let refused = sh(
        &mount.path(),
        "! setpriv --reuid 99 --regid 99 --clear-groups cat secret 2>&1; ! setpriv --reuid 99 --regid 99 --clear-groups touch x 2>&1",
    );
    assert_eq!(refused, "cat: secret: Permission denied\ntouch: cannot touch 'x': Permission denied\n");
}

#[test]
fn a_read_only_mount_refuses_changes_and_syncs() {
    let mount = Mounted::in_memory_with(
        |options| assert!(options.set(Id::ReadOnly, Some(Value::Flag(true)))),
        |_| {},
    );
    assert_eq!(errno(fs::write(mount.at("f"), "x")), libc::EROFS);
    xact_control::client::sync(&mount.path()).unwrap();
}

fn large_folders_are_listed_once_each(mount: Mounted) {
    let said = sh(
        &mount.path(),
        "mkdir d; cd d; seq -f 'a_rather_long_name_for_a_file_%05g' 5000 | xargs touch
         ls -f | sort | uniq | wc -l; ls -l | wc -l; find . -type f | wc -l; rm -r ../d; ls -A -I lost+found .. | wc -l",
    );
    assert_eq!(said, "5002\n5001\n5000\n0\n");
}

#[test]
fn a_stuck_read_blocks_no_other_call() {
    let mount =
        Mounted::in_memory_with(|_| {}, |volume| volume.write("/slow", page(SLOW, 4096).repeat(25)).unwrap());
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(mount.at("slow")).unwrap();
    mount.device().set_stuck(true);
    thread::scope(|scope| {
        let mut readers = Vec::new();
        for _ in 0..20 {
            let file = &file;
            readers.push(scope.spawn(move || {
                // SAFETY: a page-aligned allocation, freed below.
                let page =
                    unsafe { std::alloc::alloc(std::alloc::Layout::from_size_align(4096, 4096).unwrap()) };
                // SAFETY: the kernel writes within it.
                let n = unsafe { libc::pread(file.as_raw_fd(), page.cast(), 4096, 0) };
                // SAFETY: allocated above with the same layout.
                unsafe {
                    std::alloc::dealloc(page, std::alloc::Layout::from_size_align(4096, 4096).unwrap())
                };
                n
            }));
        }
        for i in 0..200 {
            fs::write(mount.at(&format!("f{i}")), "x").unwrap();
        }
        assert!(readers.iter().all(|r| !r.is_finished()));
        mount.device().set_stuck(false);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 4096);
        }
    });
}

/// After many requests of a single thread, one worker waits for all requests (`single_caller`).
/// That worker is then held up by a write that is not known in advance to wait. Other calls must
/// continue.
#[test]
fn a_write_that_waits_after_a_single_caller_blocks_no_other_call() {
    // A write of a part of a page reads the rest of it. Each round has a page that is not in
    // memory.
    let pages = page(SLOW, 4096).repeat(64);
    let mount = Mounted::in_memory_with(|_| {}, |volume| volume.write("/slow", &pages).unwrap());
    let slow = File::options().write(true).open(mount.at("slow")).unwrap();
    for round in 0..3 {
        thread::scope(|scope| {
            let (stuck, is_stuck) = mpsc::channel();
            let (done, is_done) = mpsc::channel();
            let (mount, slow) = (&mount, &slow);
            let writer = scope.spawn(move || {
                for i in 0..300 {
                    fs::set_permissions(mount.at("slow"), fs::Permissions::from_mode(0o600 + i % 8)).unwrap();
                }
                mount.device().set_stuck(true);
                stuck.send(()).unwrap();
                slow.write_at(b"x", round * 20 * 4096 + 100).unwrap();
            });
            is_stuck.recv().unwrap();
            scope.spawn(move || {
                for i in 0..20 {
                    fs::write(mount.at(&format!("other-{round}-{i}")), "x").unwrap();
                }
                done.send(()).unwrap();
            });
            let done = is_done.recv_timeout(Duration::from_secs(20));
            let waits = !writer.is_finished();
            mount.device().set_stuck(false);
            assert!(done.is_ok(), "others waited with the writer");
            assert!(waits, "the writer did not wait");
        });
    }
}

#[test]
fn a_panic_is_an_io_error_and_poisons_the_volume() {
    let mut mount =
        Mounted::in_memory_with(|_| {}, |volume| volume.write("/panic", page(PANIC, 4096)).unwrap());
    mount.is_broken();
    assert_eq!(errno(fs::read(mount.at("panic"))), libc::EIO);
    let why = mount.volume().health().unwrap_err().to_string();
    assert!(why.contains("a panic in READ of 4096 bytes at 0"), "{why}");
    // The server still answers.
    assert!(fs::metadata(mount.path()).is_ok());
}

fn unmounting_waits_for_who_is_still_there(mut mount: Mounted) {
    let mut file = File::options().read(true).write(true).create_new(true).open(mount.at("f")).unwrap();
    let unmounter = mount.unmounter();
    assert!(!unmounter.unmount().unwrap(), "it was in use");
    assert!(!mount.at("f").exists());
    file.write_all(b"still served").unwrap();
    drop(file);
    mount.wait();
    // A second unmount finds nothing to do.
    assert!(unmounter.unmount().unwrap());
}

fn open_files_outlive_their_replacement(mount: Mounted) {
    fs::write(mount.at("f"), "old").unwrap();
    let name = c(&mount.at("f"));
    // SAFETY: a valid C string; the descriptor is owned by the File alone.
    let mut old = unsafe { File::from_raw_fd(libc::open(name.as_ptr(), libc::O_RDONLY)) };
    fs::write(mount.at("g"), "new").unwrap();
    fs::rename(mount.at("g"), mount.at("f")).unwrap();
    let mut text = String::new();
    old.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), fs::read_to_string(mount.at("f")).unwrap().as_str()), ("old", "new"));
}
