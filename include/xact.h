/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libxact: transactions on a mounted xact volume, and its snapshots. Link with -lxact (pkg-config
 * xact). The manual is libxact(3).
 *
 * There are two kinds of transactions. One is around the file calls of a thread:
 *
 *     if (xact_tx_thread_begin("/mnt", 0) < 0) ...
 *     ... any file calls, by any path, of this thread and of what it starts ...
 *     if (xact_tx_thread_commit(0) < 0)
 *         fprintf(stderr, "%s\n", xact_errmsg());
 *
 * The other has a handle and a folder. It needs no privilege, changes nothing in the process, and a
 * thread may have several:
 *
 *     xact_tx *tx = xact_tx_begin("/mnt/mail", 0);
 *     int fd = openat(xact_tx_dir(tx), "attachments/1", O_CREAT | O_WRONLY, 0644);
 *     ... any file calls below xact_tx_dir(tx) ...
 *     if (xact_tx_commit(tx, 0) < 0)
 *         fprintf(stderr, "%s\n", xact_tx_errmsg(tx));
 *     xact_tx_free(tx);
 *
 * xact_tx_thread_NAME acts on the transaction of the calling thread, xact_tx_NAME on a handle.
 *
 * Changes in a transaction are visible in it at once, and nowhere else. A commit makes all of them
 * visible and durable. An abort, or the end of the process, discards all of them.
 *
 * In a process that already runs in a transaction (xact run), a transaction is a part of that one:
 * its commit makes the changes part of the outer transaction, its abort undoes these alone.
 *
 * A function that fails returns -1, NULL or 0 and sets errno, and xact_errmsg explains the failure.
 */
#ifndef XACT_H
#define XACT_H

#include <stdint.h>

#include "xact_ioctl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- failures ------------------------------------------------------------------------------- */

/*
 * The last call of this thread that failed: a sentence for people, NULL if none has failed; of a
 * refused commit its enum xact_reason, else XACT_REASON_OTHER; in a conflict, the path from the
 * volume's root (else NULL) and the number of the transaction that committed first (0: the change
 * was made outside of any transaction). The strings are valid until the thread's next failure.
 */
const char *xact_errmsg(void);
int xact_reason(void);
const char *xact_conflict_path(void);
uint64_t xact_conflicting_tx(void);

/* --- the transaction of the calling thread -------------------------------------------------- */

/*
 * From here on the file calls of this thread, and of the threads and processes that it starts, are
 * part of a transaction on the volume that contains the path `at`. NULL is the volume of the
 * current folder, or else the only mounted one. Calls of other threads are not part of it.
 *
 * In a process with one thread, descriptors that were opened before on the volume join the
 * transaction: in it they refer to the same files. A writable shared mapping cannot join, and the
 * begin is refused.
 *
 * In a process with several threads no descriptor is moved. The begin is refused (EBUSY) while any
 * thread of the process has a descriptor or a writable shared mapping on the volume. It waits up to
 * two seconds for a descriptor that is closed in that time, so other threads may use files for
 * short times. Such a descriptor, and all that other threads open from then on, is outside of the
 * transaction. Descriptors of other open transactions do not count.
 *
 * A begin inside a transaction begins a part of it (a savepoint), which its own commit or abort
 * ends.
 *
 * flags: 0, or XACT_BEGIN_SNAPSHOT, XACT_BEGIN_EAGER, and
 *   XACT_BEGIN_LEAVE_OUTSIDE: descriptors and mappings that exist now stay outside of the
 *     transaction. Changes through them happen at once, and an abort does not undo them.
 *   XACT_BEGIN_USER_NAMESPACE: if the process has no right to make a mount namespace, it enters a
 *     user namespace for the rest of its life. In it other users appear as the overflow user,
 *     and setuid programs run without their rights. Only a process with one thread can enter one.
 *     xact_tx_begin needs no privilege.
 * errno: ENODEV: `at` is not on a mounted xact volume; EROFS; EBUSY: a descriptor or a writable
 * mapping on the volume cannot join; EPERM, EINVAL: the system refuses a mount namespace.
 */
#define XACT_BEGIN_LEAVE_OUTSIDE 0x10000
#define XACT_BEGIN_USER_NAMESPACE 0x20000

int xact_tx_thread_begin(const char *at, unsigned int flags);

/*
 * End the innermost begin. After a commit, descriptors that were opened before and in the
 * transaction, and the current folder, continue to work. After an abort, descriptors from before
 * and the current folder are as they were at the begin, and those opened in the transaction are
 * stale (ESTALE). Mappings made in the transaction must not be used after its end, in either case:
 * stores into them are lost, and msync fails.
 *
 * In a process with several threads a descriptor that was opened in the transaction keeps its
 * number, and refers to the committed file afterwards. It differs from one that is opened after the
 * commit in three ways: locks (fcntl, flock) on it do not conflict with locks on other descriptors
 * of the file; /proc/self/fd has no path for it; and a file that had no name at the commit is stale
 * (ESTALE). So close databases before the commit.
 *
 * Threads that were started in the transaction and still run stay in its namespace. After the
 * commit their paths lead to the committed volume (to ESTALE if the process has one thread at the
 * commit, and after an abort). If they run while a descriptor from before the begin has to be put
 * back, the end is refused (EBUSY). It is also refused if the thread has lost the right to leave
 * the namespace (EPERM). The transaction is open as before then.
 *
 * flags of the commit: 0, or
 *   XACT_COMMIT_ORDERED: return when the changes are visible; they become durable with later ones.
 *   XACT_COMMIT_CONSOLIDATE: as ORDERED, for contents that later commits replace. Only the contents
 *     of the last one are written.
 *   XACT_COMMIT_RETAIN: if the commit is refused, the transaction stays open.
 * errno: EAGAIN: a conflict; ENOSPC, EFBIG, EROFS, EIO; ESTALE: there is no transaction, or its
 * snapshot is too old; EPERM: it was begun by the process that forked this one; EBUSY, EPERM: the
 * namespace cannot be left, see above.
 */
int xact_tx_thread_commit(unsigned int flags);
int xact_tx_thread_abort(void);

/* The number of begins of this thread that are open, 0 outside of a transaction; and the number of
 * the transaction as in xact tx list, 0 under xact run. */
int xact_tx_thread_status(void);
uint64_t xact_tx_thread_id(void);

/* 1 if a call in the transaction failed because of others: a write was refused because of a
 * conflict (EAGAIN), or the snapshot is too old (ESTALE). Then all later changes and every commit
 * fail with the same error, and the commit reports it: what failed since may be a consequence, and
 * is worth another try if xact_reason is CONFLICT or TOO_OLD. Else 0. Always
 * 0 under xact run, which reports it itself. */
int xact_tx_thread_doomed(void);

/*
 * Savepoints, nested to any depth. A rollback undoes all changes since the savepoint, a release
 * keeps them as part of the transaction. Both end the savepoint and all later ones. errno EINVAL:
 * there is no savepoint of that number.
 */
int xact_tx_thread_savepoint(uint64_t *number);
int xact_tx_thread_rollback(uint64_t number);
int xact_tx_thread_release(uint64_t number);

/* --- transactions with a handle ------------------------------------------------------------- */

typedef struct xact_tx xact_tx;

/*
 * Begins a transaction on the volume of the folder `at`. flags: 0 or
 * XACT_BEGIN_SNAPSHOT, XACT_BEGIN_EAGER.
 * errno: ENOENT, ENOTDIR, EACCES: there is no such folder; ENODEV: it is on no mounted xact volume;
 * EROFS.
 * One thread at a time may use a handle; different threads may use different handles. stat returns
 * other inode numbers in it than outside, so that SQLite can tell the files of several transactions
 * apart.
 */
xact_tx *xact_tx_begin(const char *at, unsigned int flags);

/* The folder `at` as the transaction sees it, for openat(2) and its relatives. The end of the
 * transaction closes it; other descriptors in it are stale (ESTALE) from then on. */
int xact_tx_dir(xact_tx *tx);

/* As the functions for a thread. The status is 1 while the transaction is open, 0 when it has
 * ended. */
uint64_t xact_tx_id(xact_tx *tx);
int xact_tx_status(xact_tx *tx);
int xact_tx_doomed(xact_tx *tx);
int xact_tx_commit(xact_tx *tx, unsigned int flags);
int xact_tx_abort(xact_tx *tx);
int xact_tx_savepoint(xact_tx *tx, uint64_t *number);
int xact_tx_rollback(xact_tx *tx, uint64_t number);
int xact_tx_release(xact_tx *tx, uint64_t number);

/* The last refused commit of the handle: as xact_errmsg, xact_reason and so on, which describe the
 * calling thread's failures. The strings are valid until the next commit of the handle.
 * xact_tx_errmsg(NULL) is xact_errmsg(). */
const char *xact_tx_errmsg(xact_tx *tx);
int xact_tx_reason(xact_tx *tx);
const char *xact_tx_conflict_path(xact_tx *tx);
uint64_t xact_tx_conflicting_tx(xact_tx *tx);

/* Frees the handle, and aborts its transaction if that is open. NULL is allowed. */
void xact_tx_free(xact_tx *tx);

/* --- the open transactions of a volume ------------------------------------------------------ */

/* An open transaction. Later versions of the library may append fields. */
struct xact_tx_info {
	uint64_t id;		/* its number, as in xact tx list */
	const char *label;	/* such as the command that ran in it; "" if it has none */
	uint64_t age_ms;	/* since its begin */
	uint64_t left_ms;	/* until it is aborted; 0: never */
	uint32_t status;	/* enum xact_tx_status: XACT_RUNNING or XACT_LEFT_OPEN */
	uint32_t uid;		/* its owner */
	int persistent;		/* 1 if it is also stored on the volume */
};

/*
 * The open transactions of the volume that contains the path `at` (NULL: as xact_tx_thread_begin),
 * by number: those of the caller, and all of them for root.
 *
 *     xact_tx_list *list = xact_tx_list_new("/mnt");
 *     for (const struct xact_tx_info *tx; list && (tx = xact_tx_list_next(list));)
 *         printf("%llu %s\n", (unsigned long long)tx->id, tx->label);
 *     xact_tx_list_free(list);
 *
 * xact_tx_list_new returns NULL if it fails. errno: ENODEV; EINVAL: the caller is in a transaction,
 * from which others cannot be reached; EMFILE, ENFILE. The list is of the time of that call.
 * xact_tx_list_next returns NULL after the last one. What it returns is valid until the list is
 * freed. One thread at a time may use a list. xact_tx_list_free allows NULL.
 */
typedef struct xact_tx_list xact_tx_list;

xact_tx_list *xact_tx_list_new(const char *at);
const struct xact_tx_info *xact_tx_list_next(xact_tx_list *list);
void xact_tx_list_free(xact_tx_list *list);

/* --- snapshots of a volume ------------------------------------------------------------------ */

/*
 * Snapshots of the volume with generations that contains the path `at` (NULL: as
 * xact_tx_thread_begin); for root and the user who mounted the volume.
 *
 * create: paths is NULL for the whole volume. Otherwise it is an array of paths from the volume's
 * root, with NULL after the last one: the snapshot keeps these files and folders alone.
 * name: UTF-8, at most XACT_SNAPSHOT_NAME_MAX bytes.
 *
 * errno: ENODEV; EPERM: the caller may not; ENOSPC; EROFS; EIO; EINVAL: the name is invalid or used
 * already, there is no snapshot of that name, a path does not exist, the volume has no generations,
 * or the caller is in a transaction (a snapshot takes effect at once). xact_errmsg says which.
 */
int xact_snapshot_create(const char *at, const char *name, const char *const *paths);
int xact_snapshot_delete(const char *at, const char *name);

/* A snapshot. Later versions of the library may append fields. */
struct xact_snapshot_info {
	const char *name;
	uint64_t generation;	/* the generation that it keeps */
	uint64_t time;		/* when it was made, seconds since 1970 */
	uint64_t own_bytes;	/* what deleting it alone would free */
	const char *const *paths;	/* relative to the root, NULL after the last; NULL: whole volume */
};

/* The snapshots, from the oldest on. Errors as above; the rest is as for xact_tx_list. */
typedef struct xact_snapshot_list xact_snapshot_list;

xact_snapshot_list *xact_snapshot_list_new(const char *at);
const struct xact_snapshot_info *xact_snapshot_list_next(xact_snapshot_list *list);
void xact_snapshot_list_free(xact_snapshot_list *list);

/* --- compatible names ----------------------------------------------------------------------- */

/*
 * The names of the TxFS paper (Hu et al., USENIX ATC 2018), in the form that this library had
 * first. Each does the same as the function after it, and stays.
 */
int fs_tx_begin(unsigned int flags);			/* xact_tx_thread_begin(NULL, flags) */
int fs_tx_begin_at(const char *at, unsigned int flags);	/* xact_tx_thread_begin; EINVAL for NULL */
int fs_tx_commit(unsigned int flags);			/* xact_tx_thread_commit */
int fs_tx_abort(void);					/* xact_tx_thread_abort */
int fs_tx_status(void);					/* xact_tx_thread_status */
uint64_t fs_tx_id(void);				/* xact_tx_thread_id */
int fs_tx_doomed(void);					/* xact_tx_thread_doomed */
int fs_tx_savepoint(uint64_t *number);			/* xact_tx_thread_savepoint */
int fs_tx_rollback(uint64_t number);			/* xact_tx_thread_rollback */
int fs_tx_release(uint64_t number);			/* xact_tx_thread_release */
int fs_tx_reason(void);					/* xact_reason */
const char *fs_tx_conflict_path(void);			/* xact_conflict_path */
uint64_t fs_tx_winner(void);				/* xact_conflicting_tx */
const char *fs_tx_why(void);				/* xact_errmsg */

/* Former names of functions with a handle. */
uint64_t xact_tx_winner(xact_tx *tx);			/* xact_tx_conflicting_tx */
const char *xact_tx_why(xact_tx *tx);			/* xact_tx_errmsg */

#ifdef __cplusplus
}
#endif

#endif
