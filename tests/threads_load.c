/*
 * Eight threads with transactions and eight with plain files, on the volume and elsewhere, with
 * databases and child processes. It succeeds if no call fails, every file reads as it was written,
 * and rows and files are those of the committed transactions.
 * usage: threads_load MNT OUTSIDE SECONDS
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xact.h>

/* Declarations of sqlite3.h, which may be missing where the library is installed. */
typedef struct sqlite3 sqlite3;
int sqlite3_open(const char *path, sqlite3 **db);
int sqlite3_close(sqlite3 *db);
int sqlite3_exec(sqlite3 *db, const char *sql, int (*row)(void *, int, char **, char **), void *of, char **error);
int sqlite3_busy_timeout(sqlite3 *db, int ms);
const char *sqlite3_errmsg(sqlite3 *db);

#define EACH 8
static const char *mnt, *off;
static time_t end;
static int wrong;
static long committed[EACH], plain_done[EACH];

static void complain(const char *what, ...) {
    va_list list;
    va_start(list, what);
    if (__atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST) < 20) {
        vfprintf(stderr, what, list);
        fputc('\n', stderr);
    }
    va_end(list);
}
static int sql(const char *path, const char *text, char *said, size_t room) {
    sqlite3 *db;
    int result = sqlite3_open(path, &db);
    sqlite3_busy_timeout(db, 60000);
    result = result ? result : sqlite3_exec(db, text, NULL, NULL, NULL);
    if (result && said)
        snprintf(said, room, "%s", sqlite3_errmsg(db));
    sqlite3_close(db);
    return result;
}
static int put(int dir, const char *path, const char *text) {
    int fd = openat(dir, path, O_CREAT | O_TRUNC | O_RDWR, 0644);
    if (fd >= 0 && write(fd, text, strlen(text)) != (ssize_t)strlen(text)) {
        close(fd);
        return -1;
    }
    return fd;
}
static int is(int fd, const char *text) {
    char got[200] = "";
    return pread(fd, got, sizeof got - 1, 0) == (ssize_t)strlen(text) && !strcmp(got, text);
}

/* Even threads use the thread's transaction, odd ones a handle. Each transaction inserts a row into
 * one of the databases and writes a file. */
static void *transacts(void *number) {
    long me = (long)number, k = 0;
    int in_folder = me % 2;
    char area[1000], path[3000], name[100], text[300], said[300];
    snprintf(area, sizeof area, "%s/c-load/%ld", mnt, me % 4);
    while (time(NULL) < end) {
        xact_tx *tx = NULL;
        if (in_folder ? !(tx = xact_tx_begin(area, 0)) : xact_tx_thread_begin(mnt, 0) < 0) {
            complain("thread %ld: begin: %s", me, xact_errmsg());
            continue;
        }
        snprintf(name, sizeof name, "%ld-%ld", me, k);
        if (in_folder)
            snprintf(path, sizeof path, "/proc/self/fd/%d", xact_tx_dir(tx));
        else
            snprintf(path, sizeof path, "%s", area);
        int dir = in_folder ? xact_tx_dir(tx) : open(path, O_RDONLY | O_DIRECTORY);
        strcat(path, "/a.db");
        snprintf(text, sizeof text, "insert into m values('%s')", name);
        int failed = sql(path, text, said, sizeof said), fd = failed ? -1 : put(dir, name, name);
        int doomed = in_folder ? xact_tx_doomed(tx) : xact_tx_thread_doomed();
        if (!doomed && (failed || fd < 0))
            complain("thread %ld: inside: %s", me, failed ? said : strerror(errno));
        int ended = in_folder ? xact_tx_commit(tx, 0) : xact_tx_thread_commit(0);
        if (ended < 0 && errno != EAGAIN)
            complain("thread %ld: commit: %s", me, in_folder ? xact_tx_why(tx) : xact_errmsg());
        if (ended == 0) {
            k++;
            if (!in_folder && (!is(fd, name) || pwrite(fd, "!", 1, strlen(name)) != 1))
                complain("thread %ld: the descriptor after the commit", me);
            if (!in_folder) {
                strcat(name, "!");
                char seen[2100];
                snprintf(seen, sizeof seen, "%s/%.*s", area, (int)strlen(name) - 1, name);
                int again = open(seen, O_RDONLY);
                if (again < 0 || !is(again, name))
                    complain("thread %ld: %s after a write by the descriptor", me, seen);
                close(again);
            }
        }
        if (fd >= 0)
            close(fd);
        if (in_folder)
            xact_tx_free(tx);
        else
            close(dir);
    }
    committed[me] = k;
    return NULL;
}

static void *is_plain(void *number) {
    long me = (long)number, k = 0;
    const char *at = me % 2 ? off : mnt;
    char path[2000], db[2000], text[300], said[300];
    snprintf(path, sizeof path, "%s/plain-%ld", at, me);
    snprintf(db, sizeof db, "%s/plain-%ld.db", at, me);
    if (me < 2 && sql(db, "create table m(name text primary key)", said, sizeof said))
        complain("plain %ld: %s", me, said);
    for (; time(NULL) < end; k++) {
        snprintf(text, sizeof text, "plain %ld %ld", me, k);
        int fd = put(AT_FDCWD, path, text), copy = dup(fd);
        if (fd < 0 || copy < 0 || !is(fd, text) || close(fd) < 0 || !is(copy, text) || close(copy) < 0)
            complain("plain %ld: %s", me, strerror(errno));
        if (me < 2) {
            snprintf(text, sizeof text, "insert into m values('%ld')", k);
            if (sql(db, text, said, sizeof said))
                complain("plain %ld: %s", me, said);
        }
        if (me >= 6) {
            pid_t child = fork();
            if (child == 0) {
                execl("/bin/sh", "sh", "-c", "echo child >>\"$0\"", path, NULL);
                _exit(9);
            }
            int status;
            if (waitpid(child, &status, 0) != child || status)
                complain("plain %ld: a child", me);
        }
    }
    plain_done[me] = k;
    return NULL;
}

static int counted(void *to, int columns, char **values, char **names) {
    (void)columns, (void)names;
    *(long *)to = atol(values[0]);
    return 0;
}

int main(int argc, char **argv) {
    assert(argc == 4);
    mnt = argv[1], off = argv[2], end = time(NULL) + atol(argv[3]);
    char path[3000], said[300];
    snprintf(path, sizeof path, "%s/c-load", mnt);
    assert(mkdir(path, 0755) == 0);
    for (int area = 0; area < 4; area++) {
        snprintf(path, sizeof path, "%s/c-load/%d", mnt, area);
        assert(mkdir(path, 0755) == 0);
        strcat(path, "/a.db");
        assert(!sql(path, area < 2 ? "pragma journal_mode=wal" : "pragma journal_mode=delete", said, sizeof said));
        assert(!sql(path, "create table m(name text primary key)", said, sizeof said));
    }
    pthread_t threads[2 * EACH];
    for (long i = 0; i < EACH; i++) {
        assert(pthread_create(&threads[i], NULL, transacts, (void *)i) == 0);
        assert(pthread_create(&threads[EACH + i], NULL, is_plain, (void *)i) == 0);
    }
    for (int i = 0; i < 2 * EACH; i++)
        pthread_join(threads[i], NULL);
    long all = 0, plain = 0;
    for (int area = 0; area < 4; area++) {
        long rows = -1, files = 0, expected = committed[area] + committed[area + 4];
        snprintf(path, sizeof path, "%s/c-load/%d/a.db", mnt, area);
        sqlite3 *db;
        assert(!sqlite3_open(path, &db));
        assert(!sqlite3_exec(db, "select count(*) from m", counted, &rows, NULL));
        sqlite3_close(db);
        for (long me = area; me < EACH; me += 4)
            for (long k = 0; k < committed[me]; k++) {
                snprintf(path, sizeof path, "%s/c-load/%d/%ld-%ld", mnt, area, me, k);
                files += access(path, F_OK) == 0;
            }
        if (rows != expected || files != expected)
            complain("area %d: %ld rows, %ld files, %ld committed", area, rows, files, expected);
        all += expected;
    }
    for (int i = 0; i < EACH; i++)
        plain += plain_done[i];
    printf("%ld transactions, %ld rounds of plain files\n", all, plain);
    return wrong || all < 10 || plain < 10;
}
