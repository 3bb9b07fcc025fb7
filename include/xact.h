/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libxact: transactions on a mounted xact volume. Link with -lxact (pkg-config xact). See libxact(3).
 *
 * Two ways. Around a thread's own calls:
 *
 *     fs_tx_begin_at("/mnt", 0);
 *     ... any file calls, by any path, in this thread and in what it starts ...
 *     if (fs_tx_commit(0) < 0)
 *         fprintf(stderr, "%s: %s\n", fs_tx_conflict_path(), fs_tx_why());
 *
 * Or in a folder of its own, which needs no rights, changes nothing in the process, and lets one thread have
 * several transactions:
 *
 *     xact_tx *tx = xact_tx_begin("/mnt/mail", 0);
 *     int fd = openat(xact_tx_dir(tx), "attachments/1", O_CREAT | O_WRONLY, 0644);
 *     ... any calls below xact_tx_dir(tx) ...
 *     if (xact_tx_commit(tx, 0) < 0)
 *         fprintf(stderr, "%s: %s\n", xact_tx_conflict_path(tx), xact_tx_why(tx));
 *     xact_tx_free(tx);
 *
 * What is done in a transaction is seen there at once and nowhere else, until the commit makes all of it
 * happen, or an abort or the end of the process makes none of it happen.
 *
 * In a process that runs in a transaction already (xact run), a transaction is a part of that one: commit
 * makes it part of what is around it, abort undoes it alone.
 *
 * Functions return -1, NULL or 0 and set errno where they fail.
 */
#ifndef XACT_H
#define XACT_H

#include <stdint.h>

#include "xact_ioctl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- around the calls of a thread ------------------------------------------------------------------- */

/*
 * From here on the file calls of this thread, and of the threads and processes that it starts, are part of a
 * transaction on the volume that `at` lies on (fs_tx_begin: the current folder, or else the only volume that
 * is mounted). Calls of other threads are not.
 *
 * In a process with one thread, descriptors that were opened before on the volume join it: they refer to the same
 * files in the transaction. A writable shared mapping cannot, and is refused.
 *
 * In a process with several threads no descriptor is moved. The begin is refused (EBUSY) while the process holds a
 * descriptor or a writable shared mapping on the volume, whichever thread has made it. One that is closed within two
 * seconds is waited for: that is how other threads may go on to use files for a short time. It, and all that
 * others open from then on, is outside of the transaction. Descriptors of other open transactions do not count.
 *
 * Within a transaction it begins a part of it (a savepoint), which its own commit or abort ends.
 *
 * flags: 0, or XACT_BEGIN_SNAPSHOT, and
 *   XACT_BEGIN_LEAVE_OUTSIDE: descriptors and mappings that are there now stay outside of the transaction: what is
 *     done with them happens at once, and stays if it is aborted.
 *   XACT_BEGIN_USER_NAMESPACE: where the process has no right to make a mount namespace, it enters a user namespace
 *     for the rest of its life (in which other users show as nobody, and suid programs run without their
 *     rights). Only a process with one thread can. xact_tx_begin needs no rights.
 * errno: ENODEV no xact volume there; EROFS; EBUSY a descriptor or a writable mapping on the volume cannot
 * join (fs_tx_why says which); EPERM, EINVAL the system grants no mount namespace (fs_tx_why says why).
 */
#define XACT_BEGIN_LEAVE_OUTSIDE 0x10000
#define XACT_BEGIN_USER_NAMESPACE 0x20000

int fs_tx_begin(unsigned int flags);
int fs_tx_begin_at(const char *at, unsigned int flags);

/*
 * Ends the innermost begin. After a commit descriptors opened before and in the transaction, and the current
 * folder, go on as they are; after an abort descriptors and current folder are as they were at the begin, and
 * those opened in it are stale (ESTALE). Mappings that were made in it are not to be used after it, in either case:
 * stores into them are lost, and msync fails.
 *
 * In a process with several threads a descriptor that was opened in the transaction keeps its number, and refers to the
 * committed file afterwards. Three things differ from one that is opened after the commit: locks (fcntl, flock)
 * taken on it and on another descriptor of the file do not meet; /proc/self/fd names no path for it; and
 * files that had no name at the commit are stale (ESTALE). So close databases before the commit.
 *
 * Threads that were started in the transaction and still run, stay in its namespace: after the commit their paths lead
 * to the committed volume (in a process with one thread at the commit, and after an abort: ESTALE). If they run
 * and a descriptor from before the begin has to be put back, the end is refused (EBUSY), as it is where the thread
 * has lost the right to leave the namespace (EPERM). The transaction is open as before then.
 *
 * flags of the commit: 0, or XACT_COMMIT_ORDERED (return when it is visible; durable with what comes later),
 * XACT_COMMIT_CONSOLIDATE (the same, of contents that later commits replace: they are written once, with the last),
 * XACT_COMMIT_RETAIN (where it is refused it stays open).
 * errno: EAGAIN a conflict, ENOSPC, EFBIG, EROFS, EIO; ESTALE there is none, or its snapshot is too old;
 * EPERM it was begun by another process, which forked this one; EBUSY, EPERM it cannot be left (see above).
 */
int fs_tx_commit(unsigned int flags);
int fs_tx_abort(void);

/* How many begins of this thread are open; 0 outside of a transaction. And the number of the transaction, as
 * xact tx list has it (0 under xact run). */
int fs_tx_status(void);
uint64_t fs_tx_id(void);

/* 1 once a change of contents in the transaction was refused (EAGAIN) for what others had changed since its begin:
 * all that changes anything and every commit fail with the same conflict then, and the commit says what it is about.
 * Else 0, and under xact run, where it is xact run's to say. */
int fs_tx_doomed(void);

/*
 * Savepoints, nested at will: fs_tx_rollback undoes everything since one, fs_tx_release keeps it as part of
 * what is around it; both end the savepoint and all later ones. errno EINVAL: there is none of that number.
 */
int fs_tx_savepoint(uint64_t *number);
int fs_tx_rollback(uint64_t number);
int fs_tx_release(uint64_t number);

/* Of the last call of this thread that failed: of a commit enum xact_reason; of a conflict the path from the
 * volume's root, and the transaction that came first (0: a call outside of any); a sentence for people. The
 * strings are valid until the next failure. NULL where there is none. */
int fs_tx_reason(void);
const char *fs_tx_conflict_path(void);
uint64_t fs_tx_winner(void);
const char *fs_tx_why(void);

/* --- in a folder ------------------------------------------------------------------------------------- */

typedef struct xact_tx xact_tx;

/*
 * Begins a transaction on the volume that the folder `at` lies on. flags: 0 or XACT_BEGIN_SNAPSHOT.
 * errno: ENOENT, ENOTDIR, EACCES: no such folder; ENODEV: it is on no xact volume; EROFS. xact_tx_why(NULL) says
 * it in a sentence.
 * A handle may be used by one thread at a time, different handles by different threads. stat returns other inode numbers
 * in it than outside, so that SQLite does not take the files of several transactions for one.
 */
xact_tx *xact_tx_begin(const char *at, unsigned int flags);

/* The folder `at` as the transaction sees it, for openat(2) and its relatives. Closed with it; other
 * descriptors in it are stale (ESTALE) when it has ended. */
int xact_tx_dir(xact_tx *tx);

/* As their namesakes above; the status is 1 while it is open, 0 when it has ended. */
uint64_t xact_tx_id(xact_tx *tx);
int xact_tx_status(xact_tx *tx);
int xact_tx_doomed(xact_tx *tx);
int xact_tx_commit(xact_tx *tx, unsigned int flags);
int xact_tx_abort(xact_tx *tx);
int xact_tx_savepoint(xact_tx *tx, uint64_t *number);
int xact_tx_rollback(xact_tx *tx, uint64_t number);
int xact_tx_release(xact_tx *tx, uint64_t number);

/* Of the last commit that was refused; the strings are valid until the next one. With NULL, xact_tx_why tells why
 * the last xact_tx_begin of this thread failed. */
int xact_tx_reason(xact_tx *tx);
const char *xact_tx_conflict_path(xact_tx *tx);
uint64_t xact_tx_winner(xact_tx *tx);
const char *xact_tx_why(xact_tx *tx);

/* Frees the handle; a transaction that is still open is aborted. */
void xact_tx_free(xact_tx *tx);

#ifdef __cplusplus
}
#endif

#endif
