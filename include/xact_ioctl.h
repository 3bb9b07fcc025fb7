/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Control of a mounted xact volume, version 2. libxact (xact.h) is the simpler interface.
 *
 * A transaction belongs to a control channel, which is a nameless file on the mount:
 *
 *     int ch = open("MNT/.xact", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
 *     struct xact_begin begin = {0};
 *     ioctl(ch, XACT_IOC_BEGIN, &begin);
 *     ... work in MNT/.xact/tx/<begin.id>/root, or bind it over MNT in a mount namespace ...
 *     struct xact_commit commit = {0};
 *     if (ioctl(ch, XACT_IOC_COMMIT, &commit) < 0) ... commit.reason, commit.errmsg ...
 *
 * When the last descriptor of the channel is closed (also by the end of the process), a transaction
 * that was not committed is aborted, unless it was left open (XACT_IOC_KEEP). Such a transaction
 * stays open until a process attaches it to a channel and commits or aborts it there, or until its
 * time has passed. A channel has one transaction at a time, and may begin another after its end.
 * Any user may begin a transaction; only its owner and root may look at it or attach it.
 *
 * The numbers of the ioctls contain the sizes of the structs: a struct that grows gets a new
 * number, and the old one stays. Fields marked "in: 0" must be 0, else EINVAL. Where a field has
 * two names, the second one is its former name.
 */
#ifndef XACT_IOCTL_H
#define XACT_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define XACT_ABI 2

struct xact_version {
	__u32 abi;		/* XACT_ABI of the daemon */
	__u32 reserved;
};

#define XACT_BEGIN_SNAPSHOT 1	/* files that were only read are not validated */
/* stat in the view returns inode numbers that no other view has: for programs that have several
 * views open and identify files by st_dev and st_ino (SQLite) */
#define XACT_BEGIN_OWN_INODES 2
/* a change that another open transaction has made before fails at once (EAGAIN), instead of at the
 * commit of the later one */
#define XACT_BEGIN_EAGER 4

struct xact_begin {
	__u32 flags;		/* in: XACT_BEGIN_... */
	__u32 reserved;		/* in: 0 */
	__u64 id;		/* out: the number in the folder's name, MNT/.xact/tx/ID */
};

enum xact_reason {		/* and the errno of the ioctl */
	XACT_REASON_NONE = 0,		/* it did not fail */
	XACT_REASON_CONFLICT = 1,	/* EAGAIN: others changed files that it read or wrote, see path */
	XACT_REASON_NO_SPACE = 2,	/* ENOSPC */
	XACT_REASON_TOO_LARGE = 3,	/* EFBIG: too large for the journal */
	XACT_REASON_READ_ONLY = 4,	/* EROFS */
	XACT_REASON_IO = 5,		/* EIO, EUCLEAN: the device failed, or the volume is damaged */
	XACT_REASON_OTHER = 6,
	XACT_REASON_TOO_OLD = 7,	/* ESTALE: versions that it needs were evicted */
	XACT_REASON_NOT_APART = 8,	/* EINVAL: the selection is empty, or needs other changes */
	XACT_REASON_HOST_FULL = 9,	/* ENOSPC: the file system that the sparse image lies on is full */
};

#define XACT_PATH_MAX 4096
#define XACT_ERRMSG_MAX 256
#define XACT_WHY_MAX XACT_ERRMSG_MAX	/* former name */

#define XACT_COMMIT_ORDERED 1	/* visible at once, durable together with what comes later */
#define XACT_COMMIT_RETAIN 2	/* if the commit is refused, the transaction stays open */
#define XACT_COMMIT_ONLY 4	/* the selected changes; the rest stays open */
#define XACT_COMMIT_CONSOLIDATE 8	/* as ORDERED; contents that later commits replace are not written */
/* Descriptors opened in the view refer to the committed files afterwards; without this flag they
 * are stale (ESTALE). See libxact(3) on locks and mappings. */
#define XACT_COMMIT_FOLLOW 16

struct xact_commit {
	__u32 flags;		/* in: XACT_COMMIT_... */
	__u32 reason;		/* out: enum xact_reason */
	/* out: in a conflict, the transaction that committed first; 0: a call outside of any */
	__extension__ union { __u64 conflicting_tx, winner; };
	__u32 path_len;		/* out: bytes in path */
	__extension__ union { __u32 errmsg_len, why_len; };	/* out: bytes in errmsg */
	/* out: of a conflict, from the volume's root; not terminated. A successful commit with ONLY may
	 * report a conflict of the changes that were left out, with XACT_REASON_NONE. */
	__u8 path[XACT_PATH_MAX];
	/* out: a sentence for people, not terminated */
	__extension__ union { __u8 errmsg[XACT_ERRMSG_MAX], why[XACT_ERRMSG_MAX]; };
};

struct xact_status {
	__u32 active;		/* 1 while the channel has a transaction */
	__u32 doomed;		/* 1 if it can never commit, because a call in it failed due to others */
	__u64 id;		/* its number, else 0 */
};

/* Selects the changes at and below a path from the volume's root; the path is not terminated. */
struct xact_select {
	__u32 len;
	__u32 reserved;		/* in: 0 */
	__u8 path[XACT_PATH_MAX];
};

#define XACT_LABEL_MAX 256

/*
 * The transaction is also stored on the volume. It is open again, with its number and the rest of
 * its time, after the next mount, also after a crash. If it cannot be stored (ENOSPC, EDQUOT), KEEP
 * fails and the transaction is left open as without this flag.
 */
#define XACT_KEEP_PERSISTENT 1

struct xact_keep {
	__u32 timeout_s;	/* 0: never */
	__u16 label_len;
	__u16 flags;		/* 0 or XACT_KEEP_PERSISTENT */
	__u8 label[XACT_LABEL_MAX];	/* for people, such as the command that ran in it */
};

enum xact_tx_status {
	XACT_RUNNING = 1,	/* it belongs to an open channel and ends with it */
	XACT_LEFT_OPEN = 2,	/* it stays open until it is committed or aborted */
	/* A transaction that was left open is remembered for a while after its end. */
	XACT_COMMITTED = 3,
	XACT_ABORTED = 4,
	XACT_TIMED_OUT = 5,	/* aborted because its time had passed */
};

/* Former names. */
#define xact_standing xact_tx_status
#define XACT_KEPT XACT_LEFT_OPEN
#define XACT_DROPPED XACT_ABORTED

#define XACT_INFO_NEXT 1	/* the next open transaction above id that the caller may see */
#define XACT_INFO_PERSISTENT 2	/* it is stored on the volume */

struct xact_info {
	__u64 id;		/* in and out */
	__u32 flags;		/* in: 0 or XACT_INFO_NEXT; out: 0 or XACT_INFO_PERSISTENT */
	__extension__ union { __u32 status, standing; };	/* out: enum xact_tx_status */
	__u32 uid;		/* out: its owner */
	__u32 label_len;	/* out */
	__u64 age_ms;		/* out: since its begin */
	__u64 left_ms;		/* out: until its time has passed; 0: never */
	__u8 label[XACT_LABEL_MAX];
};

#define XACT_PAGE 15360

struct xact_diff {
	__u64 id;		/* in */
	__u64 index;		/* in: the first change wanted, 0 makes a new list; out: the next */
	__u32 done;		/* out: that was the last one */
	__u32 len;		/* out: bytes in data: struct xact_change and its paths, repeatedly */
	__u8 data[XACT_PAGE];
};

enum xact_change_kind {
	XACT_ADDED = 1,
	XACT_DELETED = 2,
	XACT_MODIFIED = 3,
	XACT_RENAMED = 4,
	XACT_ATTRIBUTES = 5,
};

struct xact_change_side {
	__u64 ino;
	__u64 size;
	__u32 mode;		/* as st_mode */
	__u32 uid;
	__u32 gid;
	__u32 reserved;
};

struct xact_change {
	__u32 kind;		/* enum xact_change_kind */
	__u32 path_len;		/* bytes of the path, which follows the struct */
	__u32 from_len;		/* bytes of the former path of a renamed file, which follows the path */
	__u32 reserved;
	struct xact_change_side old_side;	/* a side is all 0 if no file exists there */
	struct xact_change_side new_side;
};

struct xact_read {
	__u64 id;		/* in */
	__u64 ino;		/* in: of a side of a change */
	__u64 offset;		/* in */
	__u32 side;		/* in: 0: before the change, 1: after it */
	__u32 len;		/* out: bytes in data, 0 at the end */
	__u8 data[XACT_PAGE];
};

struct xact_savepoint {
	__u64 number;
};

struct xact_counters {		/* out, all: since the volume was mounted */
	__u64 commits;		/* of the journal */
	__u64 committed_blocks;
	__u64 journaled_data_blocks;	/* committed blocks of file data */
	__u64 checkpoint_writes;	/* blocks that were copied from the journal to their homes */
	__u64 checkpoint_writes_saved;	/* blocks that were changed or freed before their copy */
	__u64 new_blocks;	/* of file data, written to new blocks */
	__u64 overwritten_blocks;	/* of file data, written over old contents */
	__u64 device_reads;
	__u64 device_read_bytes;
	__u64 device_writes;
	__u64 device_written_bytes;
	__u64 device_flushes;
	__u64 device_empty_flushes;	/* flushes without a write since the previous flush */
	__u64 data_hits;	/* blocks of file data that reads found in the cache */
	__u64 data_misses;	/* blocks of file data that reads had to fetch from the device */
	__u64 data_bytes;	/* cached */
	__u64 data_limit_bytes;
	__u64 metadata_hits;
	__u64 metadata_misses;
	__u64 tx_held_bytes;	/* now: contents of open transactions on the volume before their commits */
	__u64 tx_held_inodes;	/* now: inodes that open transactions have reserved */
	__u64 tx_space_percent;	/* the share of the free space that one user's transactions may hold */
	__u64 tx_revoked;	/* transactions that lost their space, because other calls needed it */
	__u64 errors_noted;	/* damage that the superblock notes */
};

struct xact_pool {		/* out, all: in bytes; 0 on volumes without generations */
	__u64 size;
	__u64 used;
	__u64 snapshots;	/* used by snapshots alone */
	__u64 log;		/* used by the intent log */
	__u64 waiting;		/* changed metadata that the next generation will write */
	__u64 needed;		/* the free space that is needed to add anything */
	__u64 reserved[2];
};

#define XACT_USER_UNLIMITED 1	/* the limits are not for this user */

struct xact_user_use {		/* what a user holds in the daemon, or may hold (all bits set: no limit) */
	__u32 uid;
	__u32 flags;		/* XACT_USER_... */
	__u64 channels;
	__u64 transactions;
	__u64 persisted;
	__u64 savepoints;
	__u64 memory;		/* bytes */
	__u64 descriptors;
	__u64 refused;		/* calls that were refused for a limit, since the mount */
};

#define XACT_USERS_MAX 64

/* Root and the user who mounted the volume see all users, other users see themselves. */
struct xact_users {
	__u32 from;		/* in: the lowest uid wanted; out: the next one */
	__u32 len;		/* out: users in `users` */
	__u32 done;		/* out: whether there are no more */
	__u32 reserved;
	struct xact_user_use limits;	/* out: of all users but root and the owner of the mount */
	struct xact_user_use users[XACT_USERS_MAX];
};

/* Blocks of a file's data that were written back since the volume was mounted. */
struct xact_file_use {
	__u64 ino;
	__u64 new_blocks;		/* to places that held no contents of the file */
	__u64 overwritten_blocks;
};

#define XACT_FILES_MAX 256

/* EPERM: the caller is neither root nor has mounted the volume. */
struct xact_files {
	__u64 from;		/* in: the lowest inode number wanted; out: the next one */
	__u32 len;		/* out: files in `files` */
	__u32 done;		/* out: whether there are no more */
	struct xact_file_use others;	/* out: deleted files and those not counted separately */
	struct xact_file_use files[XACT_FILES_MAX];
};

#define XACT_LATENCY_BUCKETS 416

struct xact_times {		/* out: durations of one kind of event since the mount */
	__u64 sum_ns;
	__u64 worst_ns;
	__u32 buckets[XACT_LATENCY_BUCKETS];	/* in microseconds: 16 of width 1, then 16 per doubling */
};

struct xact_latencies {
	struct xact_times fsync;
	struct xact_times commit;
};

#define XACT_MODES_GET 1
/* for root and the user who mounted the volume; EINVAL inside a transaction */
#define XACT_MODES_SET 2
#define XACT_MODES_OPTIONS 3	/* returns the modes of the mount's options in `stored` */

struct xact_modes {
	__u32 action;		/* in */
	__extension__ union { __u32 errmsg_len, why_len; };	/* out */
	__u8 stored[8];		/* in or out: the volume's own modes, as numbers; see docs/FORMAT.md */
	__u8 effective[8];	/* out: the modes that it is mounted with */
	/* out, on errors: a sentence for people, not terminated */
	__extension__ union { __u8 errmsg[XACT_ERRMSG_MAX], why[XACT_ERRMSG_MAX]; };
};

#define XACT_FILE_MODE_GET 1
#define XACT_FILE_MODE_SET 2	/* EINVAL, with a sentence: the volume cannot have this mode */
#define XACT_FILE_MODE_CLEAR 3	/* the file follows the volume again */

/* Data modes of a file; 0: none of its own */
#define XACT_FILE_MODE_NONE 1
#define XACT_FILE_MODE_ORDERED 2
#define XACT_FILE_MODE_DATA 3
#define XACT_FILE_MODE_SELECTIVE 4
#define XACT_FILE_MODE_ADAPTIVE 5

/* The data mode of the file on which the call is made, which is its attribute user.xact.data; on a
 * folder, the mode of the files that are made in it from then on. Only root and the owner may
 * change it (EPERM). */
struct xact_file_mode {
	__u32 action;		/* in */
	__u32 errmsg_len;	/* out */
	__u32 own;		/* in or out: XACT_FILE_MODE_..., or 0 */
	__u32 effective;	/* out: the mode in which its data is written */
	__u8 errmsg[XACT_ERRMSG_MAX];	/* out, on errors: a sentence for people, not terminated */
};

#define XACT_SNAPSHOT_CREATE 1
#define XACT_SNAPSHOT_DELETE 2
#define XACT_SNAPSHOT_GET 3	/* ENOENT: the index is past the last snapshot */
#define XACT_SNAPSHOT_TELL XACT_SNAPSHOT_GET	/* former name */

#define XACT_SNAPSHOT_NAME_MAX 100

/* Snapshots of a volume with generations; for root and the user who mounted it (else EPERM). CREATE
 * and DELETE are refused inside a transaction (EINVAL), because they take effect at once. */
struct xact_snapshot {
	__u32 action;		/* in: XACT_SNAPSHOT_... */
	__u32 index;		/* in, for GET: 0 is the oldest */
	__u64 generation;	/* out: the generation that it keeps */
	__u64 time;		/* out: when it was made, seconds since 1970 */
	__u64 own_bytes;	/* out: the bytes of the pool that deleting it alone would free */
	__u32 name_len;		/* in or out */
	__extension__ union { __u32 errmsg_len, why_len; };	/* out */
	__u8 name[XACT_SNAPSHOT_NAME_MAX];		/* in or out: not terminated */
	__u32 paths_len;	/* out: bytes that XACT_IOC_SNAPSHOT_PATHS returns; 0: the whole volume */
	/* out, on errors: a sentence for people, not terminated */
	__extension__ union { __u8 errmsg[XACT_ERRMSG_MAX], why[XACT_ERRMSG_MAX]; };
};

/* A snapshot of chosen files and folders: CREATE it, or GET the paths of the one with this name. */
#define XACT_SNAPSHOT_PATHS_MAX 8192
struct xact_snapshot_paths {
	__u32 action;		/* in: XACT_SNAPSHOT_... */
	__u32 name_len;		/* in */
	__u32 paths_len;	/* in or out */
	__extension__ union { __u32 errmsg_len, why_len; };	/* out */
	__u8 name[XACT_SNAPSHOT_NAME_MAX];		/* in: not terminated */
	__u32 reserved;
	/* in or out: relative to the volume's root, each followed by a NUL */
	__u8 paths[XACT_SNAPSHOT_PATHS_MAX];
	/* out, on errors: a sentence for people, not terminated */
	__extension__ union { __u8 errmsg[XACT_ERRMSG_MAX], why[XACT_ERRMSG_MAX]; };
};

/* Compares two snapshots, or a snapshot and the present volume, and makes the result the channel's
 * list of changes, which XACT_IOC_DIFF with the id 0 returns. The permissions are those of
 * struct xact_snapshot. */
struct xact_snapshot_diff {
	__u32 old_len;		/* in */
	__u32 new_len;		/* in: 0 for the present volume */
	__extension__ union { __u32 errmsg_len, why_len; };	/* out */
	__u32 reserved;
	__u8 old_name[XACT_SNAPSHOT_NAME_MAX];	/* in: not terminated */
	__u8 new_name[XACT_SNAPSHOT_NAME_MAX];
	/* out, on errors: a sentence for people, not terminated */
	__extension__ union { __u8 errmsg[XACT_ERRMSG_MAX], why[XACT_ERRMSG_MAX]; };
};

#define XACT_MOUNT_SYNCS 1	/* sync(2) and syncfs(2) reach the daemon */
#define XACT_MOUNT_EXCLUSIVE 2	/* the daemon denies other programs to open the image for writing */
#define XACT_MOUNT_READ_ONLY 4	/* the daemon has opened the volume read-only */
/* the engine; a daemon of an older version sets none of them */
#define XACT_MOUNT_JOURNAL 8
#define XACT_MOUNT_GENERATIONS 16
#define XACT_MOUNT_UNJOURNALED 32

#define XACT_MOUNT_OPTIONS_MAX 1024

/* How the volume is mounted. EINVAL: one of the listed options differs from the mount's, and cannot
 * be changed while the volume is mounted. */
struct xact_mount {
	__u32 flags;		/* out: XACT_MOUNT_... */
	__u32 options_len;	/* in: may be 0 */
	__u32 errmsg_len;	/* out */
	__u32 reserved;
	__u8 options[XACT_MOUNT_OPTIONS_MAX];	/* in: as of xact mount -o, separated by commas */
	__u8 errmsg[XACT_ERRMSG_MAX];	/* out, on errors: a sentence for people, not terminated */
};

/* The place at which the daemon reports how it ended: whether all changes were saved. Root and the
 * user who mounted may ask. */
#define XACT_SOCKET_MAX 64
struct xact_outcome {
	__u32 len;		/* out: bytes in socket; 0 if there is none */
	__u32 reserved;
	/* out: the name of a Unix socket in the abstract namespace, without the leading zero byte. A
	 * program that connects to it before the volume is unmounted reads the report after that: a
	 * JSON object, whose "lost" is null if all changes were saved. The end of the stream without a
	 * report: the daemon died. */
	__u8 socket[XACT_SOCKET_MAX];
};

/*
 * Atomic writes of several files, without a view. A batch is a transaction of a control channel
 * that consists of writes and truncations of open files only. Each call is made on a descriptor of
 * a file, and adds changes of this file; the last one has XACT_WRITE_COMMIT. No program sees the
 * changes before the commit, all of them are visible at once after it, and a crash leaves all or
 * none. A call that fails discards the batch, as does the end of the channel. A batch with one call
 * is a commit in one request.
 *
 * EPERM: no open channel of the caller's user has this key. EACCES: the caller is neither root nor
 * the owner of the file. ENOENT: the file was deleted. ENOTTY: it is in a transaction's view.
 * EINVAL: the changes are not as below. EAGAIN: others have changed the same blocks since the first
 * call of the batch.
 */
#define XACT_WRITE_COMMIT 1	/* visible at once and durable; the batch ends */
#define XACT_WRITE_ORDERED 2	/* with COMMIT: as XACT_COMMIT_ORDERED */
#define XACT_WRITE_ABORT 4	/* what the batch has so far is discarded first */
#define XACT_WRITE_MAX 16352

struct xact_channel_key {
	__u64 key;		/* out: a process needs the channel to ask for it */
};

struct xact_write_file {
	__u64 key;		/* in: of a channel of the same user */
	__u32 flags;		/* in: XACT_WRITE_... */
	__u32 len;		/* in: bytes in data: struct xact_write_part and its bytes, repeatedly */
	__u8 data[XACT_WRITE_MAX];	/* in: the bytes of each part are padded to a multiple of 8 */
};

#define XACT_PART_BYTES 0
#define XACT_PART_TRUNCATE 1	/* the file ends at the offset; len is 0 */

struct xact_write_part {
	__u64 offset;
	__u32 len;		/* bytes, which follow the struct */
	__u32 kind;		/* XACT_PART_... */
};

/* The following are made on any file or folder of the mount. */
#define XACT_IOC_SNAPSHOT _IOWR(0xea, 32, struct xact_snapshot)
#define XACT_IOC_SNAPSHOT_PATHS _IOWR(0xea, 38, struct xact_snapshot_paths)
#define XACT_IOC_VERSION _IOR(0xea, 0, struct xact_version)
#define XACT_IOC_SYNC _IO(0xea, 5)	/* returns when all changes so far are durable */
#define XACT_IOC_COUNTERS _IOR(0xea, 33, struct xact_counters)
#define XACT_IOC_MODES _IOWR(0xea, 34, struct xact_modes)
#define XACT_IOC_FILE_MODE _IOWR(0xea, 45, struct xact_file_mode)
#define XACT_IOC_POOL _IOR(0xea, 37, struct xact_pool)
#define XACT_IOC_USERS _IOWR(0xea, 39, struct xact_users)
#define XACT_IOC_FILES _IOWR(0xea, 48, struct xact_files)
#define XACT_IOC_MOUNT _IOWR(0xea, 44, struct xact_mount)
#define XACT_IOC_LATENCIES _IOR(0xea, 35, struct xact_latencies)
#define XACT_IOC_OUTCOME _IOR(0xea, 40, struct xact_outcome)

#define XACT_IOC_WRITE_FILE _IOW(0xea, 57, struct xact_write_file)

/* The following are made on a control channel. */
#define XACT_IOC_CHANNEL_KEY _IOR(0xea, 56, struct xact_channel_key)
#define XACT_IOC_BEGIN _IOWR(0xea, 1, struct xact_begin)	/* EBUSY: it has a transaction */
/*
 * A commit ends the transaction, also if it is refused (then as an abort), except:
 * - with XACT_COMMIT_RETAIN a transaction whose commit is refused stays open;
 * - with XACT_COMMIT_ONLY the selected changes are committed, and the others stay open.
 * ENOENT: the channel has no transaction.
 */
#define XACT_IOC_COMMIT _IOWR(0xea, 2, struct xact_commit)
#define XACT_IOC_ABORT _IO(0xea, 3)				/* ENOENT: it has no transaction */
#define XACT_IOC_STATUS _IOR(0xea, 4, struct xact_status)

/* Adds a path to the selection of XACT_COMMIT_ONLY and XACT_IOC_DROP. Both clear the selection. */
#define XACT_IOC_SELECT _IOW(0xea, 6, struct xact_select)
/* Discards the selected changes; the transaction stays open. Reason NOT_APART: see errmsg. */
#define XACT_IOC_DROP _IOWR(0xea, 7, struct xact_commit)
/* Leaves the channel's transaction open after the end of the channel. Descriptors in its view
 * become stale then; a process that attaches it finds the view under MNT/.xact/tx/ID/root. */
#define XACT_IOC_KEEP _IOW(0xea, 8, struct xact_keep)
/* Attaches the transaction begin.id, which was left open, to the channel. EBUSY: another channel
 * has it. ENOENT, EPERM */
#define XACT_IOC_ATTACH _IOW(0xea, 9, struct xact_begin)
#define XACT_IOC_INFO _IOWR(0xea, 10, struct xact_info)	/* ENOENT: there is no such transaction */
/*
 * The changes of a transaction, for its owner and root. These calls do not count as reads of the
 * transaction. READ takes an inode from the channel's last list (else ENOENT), and reads it with
 * the caller's permissions on the path in that list (else EACCES). A list by file leaves out the
 * contents of a renamed folder that the caller may not list. EINVAL: the page belongs to another
 * list.
 */
#define XACT_IOC_DIFF _IOWR(0xea, 11, struct xact_diff)
#define XACT_IOC_READ _IOWR(0xea, 12, struct xact_read)
/* The same file by file, as for a patch: renamed folders as their files, each path once. */
#define XACT_IOC_DIFF_BY_FILE _IOWR(0xea, 16, struct xact_diff)
#define XACT_IOC_SNAPSHOT_DIFF _IOWR(0xea, 36, struct xact_snapshot_diff)

/*
 * Savepoints: a begin inside a transaction. They are made on a control channel, or on any file or
 * folder in the view, so that a program inside needs no channel. ROLLBACK undoes all changes since
 * the savepoint, RELEASE makes them part of the transaction around it; both end the savepoint and
 * all later ones. When the process that made a savepoint dies before its end, the transaction is
 * rolled back to it. EINVAL: there is no savepoint of that number. EPERM: the file or folder is in
 * the view of another user's transaction, and the caller is not root.
 */
#define XACT_IOC_SAVEPOINT _IOR(0xea, 13, struct xact_savepoint)
#define XACT_IOC_ROLLBACK _IOW(0xea, 14, struct xact_savepoint)
#define XACT_IOC_RELEASE _IOW(0xea, 15, struct xact_savepoint)

#endif
