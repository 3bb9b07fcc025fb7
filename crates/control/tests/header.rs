//! `include/xact_ioctl.h` and this crate declare the same interface: every constant, the size of
//! every struct, and the offset of every field. A C compiler evaluates the header; a name that only
//! one of the two has fails too.

use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;
use std::process::Command;

use xact_control::abi::{self, *};

const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");

/// Values by name: `XACT_PAGE`, `sizeof xact_diff`, `xact_diff.index`.
type Values = BTreeMap<String, u64>;

fn constants(values: &mut Values) {
    macro_rules! same_names {
        ($($name:ident)*) => {
            $(values.insert(concat!("XACT_", stringify!($name)).into(), abi::$name as u64);)*
        };
    }
    macro_rules! other_names {
        ($($c:ident = $value:expr;)*) => {
            $(values.insert(stringify!($c).into(), $value as u64);)*
        };
    }
    same_names! {
        PATH_MAX ERRMSG_MAX LABEL_MAX USERS_MAX FILES_MAX SNAPSHOT_NAME_MAX SNAPSHOT_PATHS_MAX LATENCY_BUCKETS
        SOCKET_MAX
        BEGIN_SNAPSHOT BEGIN_OWN_INODES BEGIN_EAGER
        COMMIT_ORDERED COMMIT_RETAIN COMMIT_ONLY COMMIT_CONSOLIDATE COMMIT_FOLLOW
        KEEP_PERSISTENT INFO_NEXT INFO_PERSISTENT USER_UNLIMITED
        MODES_GET MODES_SET MODES_OPTIONS
        FILE_MODE_GET FILE_MODE_SET FILE_MODE_CLEAR
        FILE_MODE_NONE FILE_MODE_ORDERED FILE_MODE_DATA FILE_MODE_SELECTIVE FILE_MODE_ADAPTIVE
        SNAPSHOT_CREATE SNAPSHOT_DELETE SNAPSHOT_GET
        IOC_VERSION IOC_BEGIN IOC_COMMIT IOC_ABORT IOC_STATUS IOC_SYNC IOC_SELECT IOC_DROP IOC_KEEP
        IOC_ATTACH IOC_INFO IOC_DIFF IOC_READ IOC_SAVEPOINT IOC_ROLLBACK IOC_RELEASE IOC_DIFF_BY_FILE
        IOC_SNAPSHOT IOC_SNAPSHOT_PATHS IOC_SNAPSHOT_DIFF IOC_COUNTERS IOC_MODES IOC_POOL IOC_USERS
        IOC_LATENCIES IOC_OUTCOME IOC_MOUNT IOC_FILES IOC_FILE_MODE
        WRITE_COMMIT WRITE_ORDERED WRITE_ABORT WRITE_MAX PART_BYTES PART_TRUNCATE
        IOC_CHANNEL_KEY IOC_WRITE_FILE
        MOUNT_SYNCS MOUNT_EXCLUSIVE MOUNT_READ_ONLY MOUNT_JOURNAL MOUNT_GENERATIONS MOUNT_UNJOURNALED
        MOUNT_OPTIONS_MAX
    }
    other_names! {
        XACT_ABI = ABI_VERSION;
        XACT_PAGE = PAGE_BYTES;
        XACT_REASON_NONE = Reason::None;
        XACT_REASON_CONFLICT = Reason::Conflict;
        XACT_REASON_NO_SPACE = Reason::NoSpace;
        XACT_REASON_TOO_LARGE = Reason::TooLarge;
        XACT_REASON_READ_ONLY = Reason::ReadOnly;
        XACT_REASON_IO = Reason::Io;
        XACT_REASON_OTHER = Reason::Other;
        XACT_REASON_TOO_OLD = Reason::TooOld;
        XACT_REASON_NOT_APART = Reason::NotApart;
        XACT_REASON_HOST_FULL = Reason::HostFull;
        XACT_RUNNING = TxStatus::Running;
        XACT_LEFT_OPEN = TxStatus::LeftOpen;
        XACT_COMMITTED = TxStatus::Committed;
        XACT_ABORTED = TxStatus::Aborted;
        XACT_TIMED_OUT = TxStatus::TimedOut;
        XACT_ADDED = ChangeKind::Added;
        XACT_DELETED = ChangeKind::Deleted;
        XACT_MODIFIED = ChangeKind::Modified;
        XACT_RENAMED = ChangeKind::Renamed;
        XACT_ATTRIBUTES = ChangeKind::Attributes;
    }
}

fn structs(values: &mut Values) {
    // A list that lacks a field does not compile.
    macro_rules! structs {
        ($($c:ident = $rust:ident { $($field:ident $(as $c_field:ident)?),* };)*) => {$(
            let _ = |$rust { $($field: _),* }: $rust| {};
            values.insert(concat!("sizeof ", stringify!($c)).into(), size_of::<$rust>() as u64);
            $(
                let name = structs!(@name $field $($c_field)?);
                let key = format!("{}.{name}", stringify!($c));
                values.insert(key, offset_of!($rust, $field) as u64);
            )*
        )*};
        (@name $field:ident) => { stringify!($field) };
        (@name $field:ident $c_field:ident) => { stringify!($c_field) };
    }
    structs! {
        xact_version = Version { abi, reserved };
        xact_begin = Begin { flags, reserved, id };
        xact_commit = Commit {
            flags, reason, conflicting_tx, path_len, errmsg_len, path, errmsg
        };
        xact_status = Status { active, doomed, id };
        xact_select = Select { len, reserved, path };
        xact_keep = Keep { timeout_s, label_len, flags, label };
        xact_info = Info {
            id, flags, status, uid, label_len, age_ms, left_ms, label
        };
        xact_diff = Diff { id, index, done, len, data };
        xact_change_side = ChangeSide { ino, size, mode, uid, gid, reserved };
        xact_change = Change {
            kind, path_len, from_len, reserved, old as old_side, new as new_side
        };
        xact_read = ReadSide { id, ino, offset, side, len, data };
        xact_savepoint = Savepoint { number };
        xact_counters = Counters {
            commits, committed_blocks, journaled_data_blocks, checkpoint_writes,
            checkpoint_writes_saved, new_blocks, overwritten_blocks, device_reads, device_read_bytes,
            device_writes, device_written_bytes, device_flushes, device_empty_flushes, data_hits,
            data_misses, data_bytes, data_limit_bytes, metadata_hits, metadata_misses, tx_held_bytes,
            tx_held_inodes, tx_space_percent, tx_revoked, errors_noted
        };
        xact_pool = Pool { size, used, snapshots, log, waiting, needed, reserved };
        xact_outcome = Outcome { len, reserved, socket };
        xact_user_use = UserUse {
            uid, flags, channels, transactions, persisted, savepoints, memory, descriptors, refused
        };
        xact_users = Users { from, len, done, reserved, limits, users };
        xact_file_use = FileUse { ino, new_blocks, overwritten_blocks };
        xact_files = FileUses { from, len, done, others, files };
        xact_times = Times { sum_ns, worst_ns, buckets };
        xact_latencies = Latencies { fsync, commit };
        xact_modes = Modes { action, errmsg_len, stored, effective, errmsg };
        xact_file_mode = FileMode { action, errmsg_len, own, effective, errmsg };
        xact_snapshot = Snapshot {
            action, index, generation, time, own_bytes, name_len, errmsg_len, name, paths_len, errmsg
        };
        xact_snapshot_paths = SnapshotPaths {
            action, name_len, paths_len, errmsg_len, name, reserved, paths, errmsg
        };
        xact_channel_key = ChannelKey { key };
        xact_write_file = WriteFile { key, flags, len, data };
        xact_write_part = WritePart { offset, len, kind };
        xact_mount = MountInfo { flags, options_len, errmsg_len, reserved, options, errmsg };
        xact_snapshot_diff = SnapshotDiff {
            old_len, new_len, errmsg_len, reserved, old as old_name, new as new_name, errmsg
        };
    }
}

/// Former names of the header, which stay valid: each equals the present name.
fn former_names(values: &mut Values) {
    let mut alias = |former: String, present: String| {
        let value = values[&present];
        assert!(values.insert(former, value).is_none());
    };
    for (former, present) in [
        ("XACT_WHY_MAX", "XACT_ERRMSG_MAX"),
        ("XACT_KEPT", "XACT_LEFT_OPEN"),
        ("XACT_DROPPED", "XACT_ABORTED"),
        ("XACT_SNAPSHOT_TELL", "XACT_SNAPSHOT_GET"),
        ("xact_commit.winner", "xact_commit.conflicting_tx"),
        ("xact_info.standing", "xact_info.status"),
    ] {
        alias(former.into(), present.into());
    }
    for with_message in
        ["xact_commit", "xact_modes", "xact_snapshot", "xact_snapshot_paths", "xact_snapshot_diff"]
    {
        alias(format!("{with_message}.why"), format!("{with_message}.errmsg"));
        alias(format!("{with_message}.why_len"), format!("{with_message}.errmsg_len"));
    }
}

/// Names of the constants, structs and fields that the header declares, as C expressions of their
/// values.
fn declared(header: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut inside: Option<&str> = None;
    for line in header.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["#define", name, ..] if name == name.to_lowercase() => {}
            ["#define", name, _, ..] => found.push((name.to_owned(), name.to_owned())),
            [name, "=", ..] if name.starts_with("XACT_") => found.push((name.to_owned(), name.to_owned())),
            ["struct", name, "{", ..] => {
                inside = Some(name);
                found.push((format!("sizeof {name}"), format!("sizeof(struct {name})")));
            }
            ["__extension__", "union", "{", _, ..] => {
                let Some(name) = inside else { continue };
                // A field and its former name.
                found.extend(words[4..6].iter().map(|field| offset_of_field(name, field)));
            }
            ["};", ..] => inside = None,
            ["struct", _, field, ..] | ["__u8" | "__u16" | "__u32" | "__u64", field, ..] => {
                let Some(name) = inside else { continue };
                found.push(offset_of_field(name, field));
            }
            _ => {}
        }
    }
    found
}

fn offset_of_field(name: &str, field: &str) -> (String, String) {
    let field = field.split(['[', ';', ',']).next().unwrap();
    (format!("{name}.{field}"), format!("offsetof(struct {name}, {field})"))
}

#[test]
fn the_c_header_declares_the_same() {
    let mut ours = Values::new();
    constants(&mut ours);
    structs(&mut ours);
    former_names(&mut ours);

    let header = fs::read_to_string(format!("{INCLUDE}/xact_ioctl.h")).unwrap();
    let prints: String = declared(&header)
        .iter()
        .map(|(name, value)| format!("printf(\"{name}=%llu\\n\", (unsigned long long)({value}));\n"))
        .collect();
    let program = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"xact_ioctl.h\"\nint main(void) {{\n{prints}return 0;\n}}\n"
    );
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("p.c"), program).unwrap();
    let compile = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I", INCLUDE, "p.c", "-o", "p"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(compile.status.success(), "{}", String::from_utf8_lossy(&compile.stderr));
    let said = Command::new(dir.path().join("p")).output().unwrap();
    let theirs: Values = String::from_utf8(said.stdout)
        .unwrap()
        .lines()
        .map(|line| line.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect();

    let differ: Vec<_> = ours
        .keys()
        .chain(theirs.keys())
        .filter(|name| ours.get(*name) != theirs.get(*name))
        .map(|name| format!("{name}: {:?} here, {:?} in the header", ours.get(name), theirs.get(name)))
        .collect();
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(ours.len() > 200, "only {} values are compared", ours.len());
}
