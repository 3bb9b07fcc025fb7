/*
 * Transactions of a thread: which calls are part of them, and the state of descriptors, folders and
 * files afterwards.
 * usage: thread_tx MNT FOLDER, an empty folder on MNT
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <xact.h>

static const char *folder;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) < 0) {                                                                                              \
            fprintf(stderr, "line %d: %s: %s (%s)\n", __LINE__, #call, strerror(errno),                                \
                    xact_errmsg() ? xact_errmsg() : "");                                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define FAILS(code, call) assert((call) < 0 && errno == (code))

/* Another process, which was started before and is in no transaction. */
static int ask[2], answer[2];
static void serve(void) {
    char path[4096];
    ssize_t len;
    while ((len = read(ask[0], path, sizeof path - 1)) > 0) {
        char text[100] = "";
        path[len] = 0;
        int fd = open(path, O_RDONLY);
        ssize_t got = fd < 0 ? snprintf(text, sizeof text, "none") : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        if (got == 0)
            got = snprintf(text, sizeof text, "empty");
        assert(write(answer[1], text, got) == got);
    }
    _exit(0);
}
/* Checks the contents of a file as a process outside of the transaction sees them. */
static int outside(const char *name, const char *expected) {
    char path[4096], text[100] = "";
    int len = snprintf(path, sizeof path, "%s/%s", folder, name);
    assert(write(ask[1], path, len) == len);
    len = read(answer[0], text, sizeof text - 1);
    assert(len >= 0);
    text[len] = 0;
    if (strcmp(text, expected))
        fprintf(stderr, "outside, %s has '%s' and not '%s'\n", name, text, expected);
    return strcmp(text, expected) == 0;
}
static void put(const char *path, const char *text) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    OK(fd);
    assert(write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}
static int has(int fd, const char *expected) {
    char text[100] = "";
    return pread(fd, text, sizeof text - 1, 0) >= 0 && strcmp(text, expected) == 0;
}
static int file_has(const char *path, const char *expected) {
    int fd = open(path, O_RDONLY), same = fd >= 0 && has(fd, expected);
    if (fd >= 0)
        close(fd);
    return same;
}
static void *in_a_thread(void *path) {
    put(path, "thread");
    return NULL;
}

/* Descriptors opened before: in the transaction, and as they were after an abort (TX-12). */
static void descriptors(void) {
    put("before", "0123456789");
    int fd = open("before", O_RDWR), copy = dup(fd), dir = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int append = open("log", O_CREAT | O_WRONLY | O_APPEND, 0644), path = open("before", O_PATH);
    struct stat base, inside;
    assert(fstat(fd, &base) == 0 && lseek(fd, 3, SEEK_SET) == 3);
    for (int commits = 0; commits < 2; commits++) {
        OK(xact_tx_thread_begin(NULL, 0));
        assert(lseek(fd, 0, SEEK_CUR) == 3 && lseek(copy, 0, SEEK_CUR) == 3);
        assert(write(fd, "abc", 3) == 3 && lseek(copy, 0, SEEK_CUR) == 6 && write(append, "line", 4) == 4);
        assert(fcntl(dir, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFD) == 0);
        int at = openat(dir, "made", O_CREAT | O_RDWR, 0644), seen = open("before", O_RDONLY);
        assert(at >= 0 && write(at, "made", 4) == 4 && has(seen, "012abc6789"));
        assert(fstat(fd, &inside) == 0 && inside.st_ino == base.st_ino && inside.st_dev == base.st_dev);
        assert(fstatat(path, "", &inside, AT_EMPTY_PATH) == 0 && inside.st_ino == base.st_ino);
        assert(outside("before", "0123456789") && outside("log", "empty") && outside("made", "none"));
        if (commits) {
            OK(xact_tx_thread_commit(0));
            assert(has(fd, "012abc6789") && lseek(fd, 0, SEEK_CUR) == 6 && lseek(copy, 0, SEEK_CUR) == 6);
            assert(outside("before", "012abc6789") && outside("log", "line") && outside("made", "made"));
            /* Descriptors that were opened inside stay valid. */
            assert(has(at, "made") && has(seen, "012abc6789") && pwrite(at, "M", 1, 0) == 1);
            assert(outside("made", "Made"));
        } else {
            OK(xact_tx_thread_abort());
            assert(has(fd, "0123456789") && lseek(fd, 0, SEEK_CUR) == 3 && lseek(copy, 0, SEEK_CUR) == 3);
            assert(faccessat(dir, "made", F_OK, 0) < 0 && !has(at, "made") && errno == ESTALE);
        }
        assert(write(fd, "", 0) == 0 && fcntl(dir, F_GETFD) == FD_CLOEXEC);
        close(at), close(seen);
    }
    /* Outside again. */
    assert(pwrite(fd, "X", 1, 0) == 1 && outside("before", "X12abc6789"));
    close(fd), close(copy), close(dir), close(append), close(path);
}

/* Descriptor numbers that were closed or reused inside stay so. */
static void numbers(void) {
    int closed = open("before", O_RDONLY), given = open("before", O_RDONLY), null = open("/dev/null", O_RDONLY);
    OK(xact_tx_thread_begin(NULL, 0));
    assert(close(closed) == 0 && dup2(null, given) == given);
    OK(xact_tx_thread_abort());
    struct stat about;
    FAILS(EBADF, fcntl(closed, F_GETFD));
    assert(fstat(given, &about) == 0 && S_ISCHR(about.st_mode));
    close(given), close(null);
}

/* Threads and children, the current folder, mappings, and a dozen kinds of calls. */
static void calls(void) {
    char here[4096], start[4096];
    assert(getcwd(start, sizeof start));
    OK(xact_tx_thread_begin(NULL, 0));
    assert(xact_tx_thread_status() == 1 && xact_tx_thread_id() > 0 && getcwd(here, sizeof here) && strcmp(here, start) == 0);
    OK(mkdir("dir", 0755));
    OK(chdir("dir"));
    pthread_t thread;
    assert(pthread_create(&thread, NULL, in_a_thread, "by-thread") == 0 && pthread_join(thread, NULL) == 0);
    assert(system("echo child >by-child && echo absolute >\"$PWD/by-path\"") == 0);
    pid_t child = fork();
    if (child == 0) {
        FAILS(EPERM, xact_tx_thread_commit(0));
        put("by-fork", "fork");
        _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
    int fd = open("mapped", O_CREAT | O_RDWR, 0644);
    OK(ftruncate(fd, 4096));
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert(map != MAP_FAILED);
    strcpy(map, "mapped");
    OK(munmap(map, 4096));
    OK(symlink("mapped", "link"));
    OK(link("mapped", "second"));
    OK(rename("second", "third"));
    OK(chmod("third", 0600));
    OK(setxattr("third", "user.x", "y", 1, 0));
    OK(truncate("by-thread", 3));
    char *real = realpath("link", NULL);
    assert(real && strstr(real, "/dir/mapped"));
    free(real);
    assert(outside("dir/by-thread", "none"));
    OK(xact_tx_thread_commit(0));
    assert(getcwd(here, sizeof here) && strcmp(here + strlen(here) - 4, "/dir") == 0);
    assert(outside("dir/by-thread", "thr") && outside("dir/by-child", "child\n") && outside("dir/by-path", "absolute\n"));
    assert(outside("dir/by-fork", "fork") && outside("dir/third", "mapped") && outside("dir/link", "mapped"));
    struct stat about;
    assert(stat("third", &about) == 0 && (about.st_mode & 07777) == 0600 && about.st_nlink == 2);
    close(fd);
    OK(chdir(".."));
    /* An abort returns to the folder of the begin. */
    OK(xact_tx_thread_begin(NULL, 0));
    OK(chdir("dir"));
    OK(xact_tx_thread_abort());
    assert(getcwd(here, sizeof here) && strcmp(here, start) == 0);
}

/* A begin within, and savepoints (TX-17). */
static void nested(void) {
    uint64_t savepoint;
    OK(xact_tx_thread_begin(NULL, 0));
    put("outer", "outer");
    OK(xact_tx_thread_begin(NULL, 0));
    assert(xact_tx_thread_status() == 2);
    put("inner", "undone");
    OK(xact_tx_thread_abort());
    assert(xact_tx_thread_status() == 1 && access("inner", F_OK) < 0);
    OK(xact_tx_thread_begin(NULL, 0));
    put("inner", "inner");
    OK(xact_tx_thread_commit(0));
    assert(outside("inner", "none"));
    OK(xact_tx_thread_savepoint(&savepoint));
    put("outer", "undone");
    OK(xact_tx_thread_rollback(savepoint));
    FAILS(EINVAL, xact_tx_thread_release(savepoint));
    OK(xact_tx_thread_commit(XACT_COMMIT_ORDERED));
    assert(outside("inner", "inner") && outside("outer", "outer"));
    FAILS(ESTALE, xact_tx_thread_commit(0));
    FAILS(ESTALE, xact_tx_thread_abort());
    FAILS(ESTALE, xact_tx_thread_savepoint(&savepoint));
}

static void *commits_first(void *number) {
    OK(xact_tx_thread_begin(folder, 0));
    char path[4096];
    snprintf(path, sizeof path, "%s/contested", folder);
    put(path, "first");
    *(uint64_t *)number = xact_tx_thread_id();
    OK(xact_tx_thread_commit(0));
    return NULL;
}

/* Two threads, each in a transaction of its own; the second one learns which committed first. */
static void conflicts(void) {
    uint64_t first;
    pthread_t thread;
    put("contested", "initial");
    sync();
    assert(pthread_create(&thread, NULL, commits_first, &first) == 0);
    /* Its descriptors are the process's: none is open on the volume now. */
    assert(pthread_join(thread, NULL) == 0 && file_has("contested", "first"));
    int before = open("contested", O_RDWR);
    OK(xact_tx_thread_begin(NULL, 0));
    put("contested", "loser");
    int gate[2];
    assert(pipe(gate) == 0);
    assert(write(ask[1], "", 0) == 0);
    /* By a call outside of any transaction. */
    char command[5000];
    snprintf(command, sizeof command, "echo -n other >%s/contested", folder);
    extern int outside_shell(const char *);
    assert(outside_shell(command) == 0);
    assert(xact_tx_thread_commit(XACT_COMMIT_RETAIN) < 0 && errno == EAGAIN && xact_tx_thread_status() == 1);
    assert(xact_reason() == XACT_REASON_CONFLICT && xact_conflicting_tx() == 0);
    assert(strcmp(xact_conflict_path(), "/folder/contested") == 0 && strlen(xact_errmsg()) > 10);
    assert(file_has("contested", "loser"));
    assert(xact_tx_thread_commit(0) < 0 && errno == EAGAIN && xact_tx_thread_status() == 0);
    assert(file_has("contested", "other") && has(before, "other"));
    close(before), close(gate[0]), close(gate[1]);
}

/* A begin is refused if a descriptor or mapping cannot join, and has no effect. */
static void refusals(const char *mnt) {
    int deleted = open("gone", O_CREAT | O_RDWR, 0644);
    OK(unlink("gone"));
    FAILS(EBUSY, xact_tx_thread_begin(NULL, 0));
    assert(strstr(xact_errmsg(), "gone") && xact_tx_thread_status() == 0);
    close(deleted);
    int fd = open("mapped", O_CREAT | O_RDWR, 0644);
    OK(ftruncate(fd, 4096));
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert(map != MAP_FAILED);
    FAILS(EBUSY, xact_tx_thread_begin(NULL, 0));
    assert(strstr(xact_errmsg(), "mapped"));
    OK(munmap(map, 4096));
    close(fd);
    FAILS(ENODEV, xact_tx_thread_begin("/proc", 0));
    assert(!strcmp(xact_errmsg(), "/proc is not on a mounted xact volume"));
    FAILS(ESTALE, xact_tx_thread_commit(0));
    assert(!strcmp(xact_errmsg(), "this thread has no open transaction"));
    FAILS(ENOENT, xact_tx_thread_begin("/no/such", 0));
    /* From another file system, with a path. */
    OK(chdir("/"));
    OK(xact_tx_thread_begin(mnt, 0));
    OK(xact_tx_thread_abort());
    OK(chdir(folder));
}

/* A shell that is in no transaction: a process that was started before runs it. */
static int shell_ask[2], shell_answer[2];
int outside_shell(const char *command) {
    char status;
    assert(write(shell_ask[1], command, strlen(command)) > 0 && read(shell_answer[0], &status, 1) == 1);
    return status;
}
static void serve_shell(void) {
    char command[6000];
    ssize_t len;
    while ((len = read(shell_ask[0], command, sizeof command - 1)) > 0) {
        command[len] = 0;
        char status = system(command) != 0;
        assert(write(shell_answer[1], &status, 1) == 1);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    assert(argc == 3);
    folder = argv[2];
    assert(pipe(ask) == 0 && pipe(answer) == 0 && pipe(shell_ask) == 0 && pipe(shell_answer) == 0);
    if (fork() == 0) {
        close(ask[1]), close(shell_ask[1]);
        serve();
    }
    if (fork() == 0) {
        close(ask[1]), close(shell_ask[1]);
        serve_shell();
    }
    OK(chdir(folder));
    descriptors();
    numbers();
    calls();
    nested();
    conflicts();
    refusals(argv[1]);
    /* Transactions with a folder, beside one around the calls. */
    xact_tx *other = xact_tx_begin(folder, 0);
    assert(other);
    OK(xact_tx_thread_begin(NULL, 0));
    put("thread", "x");
    int fd = openat(xact_tx_dir(other), "beside", O_CREAT | O_WRONLY, 0644);
    assert(fd >= 0 && close(fd) == 0 && access("beside", F_OK) < 0);
    OK(xact_tx_thread_commit(0));
    OK(xact_tx_commit(other, 0));
    xact_tx_free(other);
    assert(outside("thread", "x") && outside("beside", "empty"));
    return 0;
}
