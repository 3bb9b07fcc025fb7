/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Control of a mounted xact volume, version 2.
 *
 * A transaction belongs to a control channel, which is a nameless file on the mount:
 *
 *     int ch = open("MNT/.xact", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
 *     struct xact_begin begin = {0};
 *     ioctl(ch, XACT_IOC_BEGIN, &begin);
 *     ... work in MNT/.xact/tx/<begin.id>/root, or bind it over MNT in a mount namespace ...
 *     struct xact_commit commit = {0};
 *     if (ioctl(ch, XACT_IOC_COMMIT, &commit) < 0) ... commit.reason, commit.path, commit.why ...
 *
 * When the last descriptor of the channel is closed (exit and death included), a transaction
 * that was not committed is aborted, unless it was kept (XACT_IOC_KEEP): then it stays open,
 * until somebody attaches it to a channel and commits or aborts it there, or its time runs out.
 * A channel has one transaction at a time, and may begin another when it has ended. Anybody may
 * begin one; only its owner and root may look at it or attach it.
 *
 * The numbers carry the structs' sizes: a struct that grows gets a new number, and the old one
 * stays. What is marked "in: 0" must be 0, else EINVAL.
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

#define XACT_BEGIN_SNAPSHOT 1	/* what was only read is not validated */
#define XACT_BEGIN_OWN_INODES 2	/* stat in the view returns inode numbers that no other view has: for programs that
				 * have several views open, and know files by st_dev and st_ino (SQLite) */

struct xact_begin {
	__u32 flags;		/* in: XACT_BEGIN_... */
	__u32 reserved;		/* in: 0 */
	__u64 id;		/* out: names the folder MNT/.xact/tx/ID */
};

enum xact_reason {		/* and the errno of the ioctl */
	XACT_REASON_NONE = 0,		/* it did not fail */
	XACT_REASON_CONFLICT = 1,	/* EAGAIN: others changed what it read or wrote, see path */
	XACT_REASON_NO_SPACE = 2,	/* ENOSPC */
	XACT_REASON_TOO_LARGE = 3,	/* EFBIG: more than the journal takes at once */
	XACT_REASON_READ_ONLY = 4,	/* EROFS */
	XACT_REASON_IO = 5,		/* EIO, EUCLEAN: the device failed, or the volume is damaged */
	XACT_REASON_OTHER = 6,
	XACT_REASON_TOO_OLD = 7,	/* ESTALE: others changed more since its begin than is remembered */
	XACT_REASON_NOT_APART = 8,	/* EINVAL: the selected changes are none, or need the rest */
};

#define XACT_PATH_MAX 4096
#define XACT_WHY_MAX 256

#define XACT_COMMIT_ORDERED 1	/* visible at once, durable together with what comes later */
#define XACT_COMMIT_RETAIN 2	/* a transaction whose commit is refused stays open */
#define XACT_COMMIT_ONLY 4	/* the selected changes; the transaction goes on with the rest */
#define XACT_COMMIT_CONSOLIDATE 8	/* as ORDERED; what later commits replace is never written */
#define XACT_COMMIT_FOLLOW 16	/* descriptors opened in the view refer to the committed files afterwards; without
				 * it they are stale (ESTALE). See libxact(3) on locks and mappings */

struct xact_commit {
	__u32 flags;		/* in: XACT_COMMIT_... */
	__u32 reason;		/* out: enum xact_reason */
	__u64 winner;		/* out: the transaction that came first; 0: a call outside of any */
	__u32 path_len;		/* out: bytes in path */
	__u32 why_len;		/* out: bytes in why */
	__u8 path[XACT_PATH_MAX];	/* out: from the volume's root, not terminated */
	__u8 why[XACT_WHY_MAX];	/* out: a sentence for people */
};

struct xact_status {
	__u32 active;		/* 1 while the channel has a transaction */
	__u32 doomed;		/* 1 if it can never commit: a write in it met what others have changed */
	__u64 id;		/* its number, else 0 */
};

/* A path is from the volume's root and not terminated; what is at and below it is meant. */
struct xact_select {
	__u32 len;
	__u32 reserved;		/* in: 0 */
	__u8 path[XACT_PATH_MAX];
};

#define XACT_LABEL_MAX 256

/*
 * It is kept on the volume too, and is open again, with its number and what is left of its time, when that is
 * mounted the next time, also after a crash. Where this cannot be (ENOSPC, EDQUOT), KEEP fails and the
 * transaction is open as without it.
 */
#define XACT_KEEP_PERSISTENT 1

struct xact_keep {
	__u32 timeout_s;	/* 0: never */
	__u16 label_len;
	__u16 flags;		/* 0 or XACT_KEEP_PERSISTENT */
	__u8 label[XACT_LABEL_MAX];	/* for people, such as the command that was run in it */
};

enum xact_standing {
	XACT_RUNNING = 1,	/* it belongs to an open channel and ends with it */
	XACT_KEPT = 2,		/* it stays open until somebody decides */
	XACT_COMMITTED = 3,	/* of those that have ended, kept ones are remembered for a while */
	XACT_DROPPED = 4,
	XACT_TIMED_OUT = 5,
};

#define XACT_INFO_NEXT 1	/* the next open transaction above id, of those one may look at */
#define XACT_INFO_PERSISTENT 2	/* it is kept on the volume */

struct xact_info {
	__u64 id;		/* in and out */
	__u32 flags;		/* in: 0 or XACT_INFO_NEXT; out: 0 or XACT_INFO_PERSISTENT */
	__u32 standing;		/* out: enum xact_standing */
	__u32 uid;		/* out: its owner */
	__u32 label_len;	/* out */
	__u64 age_ms;		/* out: since its begin */
	__u64 left_ms;		/* out: until its time runs out; 0: never */
	__u8 label[XACT_LABEL_MAX];
};

#define XACT_PAGE 15360

struct xact_diff {
	__u64 id;		/* in */
	__u64 index;		/* in: the first change wanted, 0 makes the list anew; out: the next */
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
	__u32 from_len;		/* bytes of where a renamed one was, which follows the path */
	__u32 reserved;
	struct xact_change_side old_side;	/* all 0: there was, or is, nothing */
	struct xact_change_side new_side;
};

struct xact_read {
	__u64 id;		/* in */
	__u64 ino;		/* in: of a side of a change */
	__u64 offset;		/* in */
	__u32 side;		/* in: 0 what was there, 1 what is there now */
	__u32 len;		/* out: bytes in data, 0 at the end */
	__u8 data[XACT_PAGE];
};

struct xact_savepoint {
	__u64 number;
};

struct xact_counters {		/* out, all: since the volume was mounted */
	__u64 commits;		/* of the journal */
	__u64 committed_blocks;
	__u64 journaled_data_blocks;	/* of those: file data */
	__u64 checkpoint_writes;	/* blocks that went from the journal to their place */
	__u64 checkpoint_writes_saved;	/* and that never had to: changed or freed before */
	__u64 new_blocks;	/* of file data, written to new places */
	__u64 overwritten_blocks;	/* of file data, written over old contents */
	__u64 device_reads;
	__u64 device_read_bytes;
	__u64 device_writes;
	__u64 device_written_bytes;
	__u64 device_flushes;
	__u64 device_empty_flushes;	/* of those: with nothing written since the one before */
	__u64 data_hits;	/* blocks of file data that reads found in the cache */
	__u64 data_misses;	/* and that they had to read */
	__u64 data_bytes;	/* cached */
	__u64 data_limit_bytes;
	__u64 metadata_hits;
	__u64 metadata_misses;
	__u64 tx_held_bytes;	/* now: contents that open transactions have on the volume before their commits */
	__u64 tx_held_inodes;	/* and inodes that they have reserved */
	__u64 tx_space_percent;	/* what those of one user may hold of what is free */
	__u64 tx_revoked;	/* transactions that lost what they held, as others needed it */
	__u64 reserved[1];
};

struct xact_pool {		/* out, all: in bytes; 0 on volumes without generations */
	__u64 size;
	__u64 used;
	__u64 snapshots;	/* of those in use: held by snapshots alone */
	__u64 log;		/* of those in use: the intent log's */
	__u64 waiting;		/* changed metadata that takes room with the next generation */
	__u64 needed;		/* what has to be free for anything to be added */
	__u64 reserved[2];
};

#define XACT_USER_UNLIMITED 1	/* the limits are not for this user */

struct xact_user_use {		/* what one user has of the daemon, or may have (all bits set: no limit) */
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

struct xact_users {		/* root and who mounted it are told of all users, others of themselves */
	__u32 from;		/* in: the uid from which on users are wanted; out: the next one */
	__u32 len;		/* out: users in `users` */
	__u32 done;		/* out: whether there are no more */
	__u32 reserved;
	struct xact_user_use limits;	/* out: of a user who is neither root nor has mounted it */
	struct xact_user_use users[XACT_USERS_MAX];
};

#define XACT_LATENCY_BUCKETS 416

struct xact_times {		/* out: how long something took, each time since the mount */
	__u64 sum_ns;
	__u64 worst_ns;
	__u32 buckets[XACT_LATENCY_BUCKETS];	/* by microseconds: 16 of one each, then 16 to each doubling */
};

struct xact_latencies {
	struct xact_times fsync;
	struct xact_times commit;
};

#define XACT_MODES_GET 1
#define XACT_MODES_SET 2	/* for root, and for who mounted the volume; EINVAL inside a transaction */
#define XACT_MODES_OPTIONS 3	/* stored: those that the mount's options say */

struct xact_modes {
	__u32 action;		/* in */
	__u32 why_len;		/* out */
	__u8 stored[8];		/* in or out: the volume's own, as numbers; docs/FORMAT.md */
	__u8 effective[8];	/* out: those that it is mounted with */
	__u8 why[XACT_WHY_MAX];	/* out, on errors: a sentence for people */
};

/* On any file or folder of the mount. */
#define XACT_SNAPSHOT_CREATE 1
#define XACT_SNAPSHOT_DELETE 2
#define XACT_SNAPSHOT_TELL 3	/* ENOENT: there are no more */

#define XACT_SNAPSHOT_NAME_MAX 100

/* Snapshots of a volume with generations; for root, and for who mounted it (else EPERM). CREATE and DELETE are
 * refused inside a transaction (EINVAL): they would happen at once. */
struct xact_snapshot {
	__u32 action;		/* in: XACT_SNAPSHOT_... */
	__u32 index;		/* in, to tell: which, 0 is the oldest */
	__u64 generation;	/* out: the one that is kept */
	__u64 time;		/* out: when it was made, seconds since 1970 */
	__u64 own_bytes;	/* out: of the pool, that deleting it alone would free */
	__u32 name_len;		/* in or out */
	__u32 why_len;		/* out */
	__u8 name[XACT_SNAPSHOT_NAME_MAX];		/* in or out: not terminated */
	__u32 paths_len;	/* out: what XACT_IOC_SNAPSHOT_PATHS tells; 0: it is of the volume */
	__u8 why[XACT_WHY_MAX];	/* out, on errors: a sentence for people */
};

/* A snapshot of chosen files and folders: CREATE it, or TELL the paths of the one with this name. */
#define XACT_SNAPSHOT_PATHS_MAX 8192
struct xact_snapshot_paths {
	__u32 action;		/* in: XACT_SNAPSHOT_... */
	__u32 name_len;		/* in */
	__u32 paths_len;	/* in or out */
	__u32 why_len;		/* out */
	__u8 name[XACT_SNAPSHOT_NAME_MAX];		/* in: not terminated */
	__u32 reserved;
	/* in or out: from the volume's root and without one, each with a NUL behind it */
	__u8 paths[XACT_SNAPSHOT_PATHS_MAX];
	__u8 why[XACT_WHY_MAX];	/* out, on errors: a sentence for people */
};

/* Compares two snapshots, or one and the volume as it is now, and makes that the channel's list of
 * changes: XACT_IOC_DIFF with the id 0 tells it. Who may is as above. */
struct xact_snapshot_diff {
	__u32 old_len;		/* in */
	__u32 new_len;		/* in: 0 for now */
	__u32 why_len;		/* out */
	__u32 reserved;
	__u8 old_name[XACT_SNAPSHOT_NAME_MAX];	/* in: not terminated */
	__u8 new_name[XACT_SNAPSHOT_NAME_MAX];
	__u8 why[XACT_WHY_MAX];	/* out, on errors: a sentence for people */
};

/* On any file or folder of the mount. */
#define XACT_IOC_SNAPSHOT _IOWR(0xea, 32, struct xact_snapshot)
#define XACT_IOC_SNAPSHOT_PATHS _IOWR(0xea, 38, struct xact_snapshot_paths)
#define XACT_IOC_VERSION _IOR(0xea, 0, struct xact_version)
#define XACT_IOC_SYNC _IO(0xea, 5)	/* returns when everything done so far is durable */
#define XACT_IOC_COUNTERS _IOR(0xea, 33, struct xact_counters)
#define XACT_IOC_MODES _IOWR(0xea, 34, struct xact_modes)
#define XACT_IOC_POOL _IOR(0xea, 37, struct xact_pool)
#define XACT_IOC_USERS _IOWR(0xea, 39, struct xact_users)
#define XACT_IOC_LATENCIES _IOR(0xea, 35, struct xact_latencies)

/* On a control channel. */
#define XACT_IOC_BEGIN _IOWR(0xea, 1, struct xact_begin)	/* EBUSY: it has a transaction */
/* The transaction ends, whatever the outcome, except with XACT_COMMIT_RETAIN (a refused one stays open) and
 * XACT_COMMIT_ONLY (the unselected changes stay open). ENOENT: the channel has none. */
#define XACT_IOC_COMMIT _IOWR(0xea, 2, struct xact_commit)
#define XACT_IOC_ABORT _IO(0xea, 3)				/* ENOENT: the channel has none */
#define XACT_IOC_STATUS _IOR(0xea, 4, struct xact_status)

/* Adds to what XACT_COMMIT_ONLY and XACT_IOC_DROP mean; both forget it. */
#define XACT_IOC_SELECT _IOW(0xea, 6, struct xact_select)
/* Drops the selected changes, and the transaction goes on; reason NOT_APART: see why. */
#define XACT_IOC_DROP _IOWR(0xea, 7, struct xact_commit)
/* The channel's transaction outlives the channel. What is open in its view goes stale: whoever
 * looks again finds it under MNT/.xact/tx/ID/root. */
#define XACT_IOC_KEEP _IOW(0xea, 8, struct xact_keep)
/* Makes the kept transaction begin.id the channel's. EBUSY: another channel has it. ENOENT, EPERM */
#define XACT_IOC_ATTACH _IOW(0xea, 9, struct xact_begin)
#define XACT_IOC_INFO _IOWR(0xea, 10, struct xact_info)	/* ENOENT: there is none */
/* What a transaction would change, for its owner and root. None of these counts as read in it. READ takes an inode
 * from the channel's last list (else ENOENT), and reads it as its caller may by the path there (else EACCES). A list by
 * file leaves out what is below a renamed folder that its caller may not list. EINVAL: a page of another list. */
#define XACT_IOC_DIFF _IOWR(0xea, 11, struct xact_diff)
#define XACT_IOC_READ _IOWR(0xea, 12, struct xact_read)
/* The same file by file, as for a patch: renamed folders as their files, each path once. */
#define XACT_IOC_DIFF_BY_FILE _IOWR(0xea, 16, struct xact_diff)
#define XACT_IOC_SNAPSHOT_DIFF _IOWR(0xea, 36, struct xact_snapshot_diff)

/*
 * Savepoints: a begin within a transaction. On a control channel, or on any file or folder in the
 * view, so that a program inside needs no channel. ROLLBACK undoes everything since the savepoint,
 * RELEASE makes it part of what is around it; both end the savepoint and all later ones.
 * EINVAL: there is none of that number. EPERM: a file or folder in the view of another user's transaction, unless
 * the caller is root. When the process that made it dies before, it is rolled back to.
 */
#define XACT_IOC_SAVEPOINT _IOR(0xea, 13, struct xact_savepoint)
#define XACT_IOC_ROLLBACK _IOW(0xea, 14, struct xact_savepoint)
#define XACT_IOC_RELEASE _IOW(0xea, 15, struct xact_savepoint)

#endif
