/*
 * Transactions of a thread in a process with several: which begins and ends are refused, the files
 * that descriptors refer to after the end, and threads that are started inside.
 * usage: threads MNT FOLDER, an empty folder on MNT
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xact.h>

static const char *mnt, *folder;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) < 0) {                                                                                              \
            fprintf(stderr, "line %d: %s: %s (%s)\n", __LINE__, #call, strerror(errno),                                \
                    xact_errmsg() ? xact_errmsg() : "");                                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define FAILS(code, call) assert((call) < 0 && errno == (code))

/* A thread that was there before: it is in no transaction, and does what it is given. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static void (*job)(void *);
static void *job_argument;
static void *serve(void *nothing) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!job)
            pthread_cond_wait(&changed, &lock);
        job(job_argument);
        job = NULL;
        pthread_cond_broadcast(&changed);
    }
    return nothing;
}
static void outside(void (*what)(void *), void *argument) {
    pthread_mutex_lock(&lock);
    job = what, job_argument = argument;
    pthread_cond_broadcast(&changed);
    while (job)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    OK(fd);
    assert(write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}
static int has(int fd, const char *expected) {
    char text[100] = "";
    ssize_t len = pread(fd, text, sizeof text - 1, 0);
    if (len >= 0 && strcmp(text, expected))
        fprintf(stderr, "'%s' and not '%s'\n", text, expected);
    return len >= 0 && strcmp(text, expected) == 0;
}
static int file_has(const char *path, const char *expected) {
    int fd = open(path, O_RDONLY), same = fd >= 0 && has(fd, expected);
    if (fd >= 0)
        close(fd);
    return same;
}
static void check_outside(void *pair) {
    const char **of = pair;
    assert(of[1] ? file_has(of[0], of[1]) : access(of[0], F_OK) < 0);
}
static void seen_outside(const char *name, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const char *pair[2] = {path, text};
    outside(check_outside, pair);
}
static void put_outside(void *pair) {
    const char **of = pair;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, of[0]);
    if (of[1])
        put(path, of[1]);
    else
        OK(unlink(path));
}
static void change_outside(const char *name, const char *text) {
    const char *pair[2] = {name, text};
    outside(put_outside, pair);
}

/* A begin refuses descriptors of the process by number and path, or leaves them outside if the call
 * says so, and never moves them. */
static void refusals(void) {
    put("held", "before");
    int fd = open("held", O_RDWR), dir = open(".", O_RDONLY | O_DIRECTORY), path = open("held", O_PATH);
    int all[] = {fd, dir, path};
    for (int i = 0; i < 3; i++) {
        char number[40];
        snprintf(number, sizeof number, "descriptor %d (", all[i]);
        FAILS(EBUSY, xact_tx_thread_begin(NULL, 0));
        assert(strstr(xact_errmsg(), number) && strstr(xact_errmsg(), folder) && strstr(xact_errmsg(), "LEAVE_OUTSIDE"));
        assert(xact_tx_thread_status() == 0);
        if (i)
            close(all[i]);
        else
            close(fd), all[0] = -1;
    }
    fd = open("held", O_RDWR);
    int copy = dup(fd);
    struct stat before, inside;
    OK(fstat(fd, &before));
    OK(xact_tx_thread_begin(NULL, XACT_BEGIN_LEAVE_OUTSIDE));
    OK(fstat(fd, &inside));
    assert(inside.st_ino == before.st_ino && inside.st_dev == before.st_dev);
    assert(pwrite(fd, "AFTER!", 6, 0) == 6 && file_has("held", "before"));
    seen_outside("held", "AFTER!");
    int within = open("held", O_RDONLY);
    OK(fstat(within, &inside));
    assert(inside.st_ino != before.st_ino);
    close(within);
    OK(xact_tx_thread_abort());
    assert(has(fd, "AFTER!") && has(copy, "AFTER!"));
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert(map != MAP_FAILED);
    close(fd), close(copy);
    FAILS(EBUSY, xact_tx_thread_begin(NULL, 0));
    assert(strstr(xact_errmsg(), "mapping") && strstr(xact_errmsg(), "/held"));
    OK(munmap(map, 4096));
    OK(xact_tx_thread_begin(NULL, 0));
    OK(xact_tx_thread_abort());
}

/* Descriptors that were opened inside keep their numbers: the committed file, or stale. */
static void descriptors(void) {
    for (int commits = 0; commits < 2; commits++) {
        OK(xact_tx_thread_begin(NULL, 0));
        OK(mkdir("dir", 0755));
        int fd = open("dir/new", O_CREAT | O_RDWR, 0644), dir = open("dir", O_RDONLY | O_DIRECTORY);
        int append = open("dir/log", O_CREAT | O_WRONLY | O_APPEND, 0644), old = open("held", O_RDWR);
        int gone = open("gone", O_CREAT | O_RDWR, 0644), nameless = open(".", O_TMPFILE | O_RDWR, 0600);
        OK(rename("dir/new", "dir/renamed"));
        OK(unlink("gone"));
        assert(nameless >= 0 && write(fd, "new", 3) == 3 && write(append, "one\n", 4) == 4 && pwrite(old, "OLD", 3, 0) == 3);
        assert(has(fd, "new") && access("dir/absent", F_OK) < 0);
        if (!commits) {
            OK(xact_tx_thread_abort());
            char byte;
            struct stat about;
            FAILS(ESTALE, pread(fd, &byte, 1, 0));
            FAILS(ESTALE, pwrite(old, "x", 1, 0));
            FAILS(ESTALE, openat(dir, "other", O_CREAT | O_WRONLY, 0644));
            FAILS(ESTALE, write(append, "x", 1));
            FAILS(ESTALE, fstat(gone, &about));
            assert(access("dir", F_OK) < 0);
        } else {
            OK(xact_tx_thread_commit(0));
            struct stat by_path, by_number;
            OK(stat("dir/renamed", &by_path));
            OK(fstat(fd, &by_number));
            assert(by_path.st_ino == by_number.st_ino && by_number.st_size == 3);
            assert(has(fd, "new") && lseek(fd, 0, SEEK_CUR) == 3 && write(fd, " text", 5) == 5);
            seen_outside("dir/renamed", "new text");
            change_outside("dir/renamed", "quite another text");
            assert(has(fd, "quite another text") && lseek(fd, 0, SEEK_END) == 18);
            change_outside("dir/renamed", "short");
            assert(has(fd, "short"));
            OK(ftruncate(fd, 2));
            seen_outside("dir/renamed", "sh");
            /* Appends meet at the end. */
            put("dir/log", "replaced\n");
            OK(write(append, "two\n", 4));
            seen_outside("dir/log", "replaced\ntwo\n");
            assert(has(old, "OLDER!") && pwrite(old, "o", 1, 0) == 1);
            seen_outside("held", "oLDER!");
            /* Names below a folder that was opened inside, existing or not, are as by path. */
            change_outside("dir/absent", "made");
            int below = openat(dir, "absent", O_RDWR);
            assert(below >= 0 && has(below, "made") && pwrite(below, "M", 1, 0) == 1);
            seen_outside("dir/absent", "Made");
            close(below);
            change_outside("dir/absent", NULL);
            assert(faccessat(dir, "absent", F_OK, 0) < 0 && errno == ENOENT);
            assert(access("dir/fresh", F_OK) < 0);
            below = openat(dir, "fresh", O_CREAT | O_EXCL | O_WRONLY, 0644);
            assert(below >= 0 && write(below, "fresh", 5) == 5 && close(below) == 0);
            seen_outside("dir/fresh", "fresh");
            OK(mkdirat(dir, "sub", 0755));
            int sub = openat(dir, "sub", O_RDONLY | O_DIRECTORY);
            assert(sub >= 0 && renameat(dir, "fresh", sub, "moved") == 0 && access("dir/fresh", F_OK) < 0);
            seen_outside("dir/sub/moved", "fresh");
            OK(linkat(sub, "moved", dir, "link", 0));
            seen_outside("dir/link", "fresh");
            OK(unlinkat(sub, "moved", 0));
            seen_outside("dir/sub/moved", NULL);
            OK(unlinkat(dir, "link", 0));
            assert(rmdir("dir/sub") == 0 && faccessat(dir, "sub", F_OK, 0) < 0);
            FAILS(ENOENT, openat(sub, "x", O_CREAT | O_WRONLY, 0644));
            close(sub);
            /* Listings. */
            for (int round = 0; round < 3; round++) {
                char listed[200] = "";
                int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY);
                DIR *list = fdopendir(copy);
                for (struct dirent *entry; (entry = readdir(list));)
                    if (entry->d_name[0] != '.')
                        strcat(listed, entry->d_name);
                closedir(list);
                assert(strstr(listed, "renamed") && !!strstr(listed, "extra") == (round == 1));
                if (round < 2)
                    change_outside("dir/extra", round ? NULL : "x");
            }
            /* Files without a name at the commit are stale. */
            char byte;
            FAILS(ESTALE, pread(gone, &byte, 1, 0));
            FAILS(ESTALE, pwrite(nameless, "x", 1, 0));
            /* A file that is deleted outside exists until it is closed; then its space is free. */
            change_outside("dir/renamed", NULL);
            assert(pwrite(fd, "still here", 10, 0) == 10 && has(fd, "still here") && fstat(fd, &by_number) == 0 &&
                   by_number.st_nlink == 0);
            /* The descriptor lies outside of the next transaction: refused as any other. */
            FAILS(EBUSY, xact_tx_thread_begin(NULL, 0));
            unlink("dir/log");
            OK(rmdir("dir"));
        }
        close(fd), close(dir), close(append), close(old), close(gone), close(nameless);
    }
}

/* Below a folder that was opened inside, the present permissions of files apply. */
static char opens_as_another(int dir, const char *path) {
    int pipes[2];
    char said;
    assert(pipe(pipes) == 0);
    if (fork() == 0) {
        assert(syscall(SYS_setresgid, 65534, 65534, 65534) == 0 && syscall(SYS_setresuid, 65534, 65534, 65534) == 0);
        said = openat(dir, path, O_RDONLY) >= 0 ? 'y' : errno == EACCES ? 'n' : '?';
        assert(write(pipes[1], &said, 1) == 1);
        _exit(0);
    }
    assert(read(pipes[0], &said, 1) == 1 && wait(NULL) > 0);
    close(pipes[0]), close(pipes[1]);
    return said;
}
static void permissions(void) {
    OK(xact_tx_thread_begin(NULL, 0));
    OK(mkdir("shared-dir", 0755));
    OK(mkdir("shared-dir/sub", 0755));
    put("shared-dir/sub/file", "text");
    int dir = open("shared-dir", O_RDONLY | O_DIRECTORY), kept = open("shared-dir/sub/file", O_RDWR);
    OK(xact_tx_thread_commit(0));
    assert(opens_as_another(dir, "sub/file") == 'y');
    OK(chmod("shared-dir/sub/file", 0600));
    assert(opens_as_another(dir, "sub/file") == 'n');
    OK(chmod("shared-dir/sub/file", 0644));
    assert(opens_as_another(dir, "sub/file") == 'y');
    OK(chmod("shared-dir/sub", 0700));
    assert(opens_as_another(dir, "sub/file") == 'n');
    OK(chmod("shared-dir/sub", 0755));
    assert(opens_as_another(dir, "sub/file") == 'y');
    OK(chmod("shared-dir", 0700));
    assert(opens_as_another(dir, "sub/file") == 'n');
    /* An open descriptor keeps its permissions. */
    OK(chmod("shared-dir/sub/file", 0));
    assert(has(kept, "text") && pwrite(kept, "T", 1, 0) == 1);
    close(dir), close(kept);
}

/* A mapping that was made inside can still be read; a store never publishes old bytes. */
static void mappings(void) {
    OK(xact_tx_thread_begin(NULL, 0));
    put("mapped", "0123456789");
    int fd = open("mapped", O_RDWR);
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert(map != MAP_FAILED);
    memcpy(map, "AB", 2);
    OK(xact_tx_thread_commit(0));
    seen_outside("mapped", "AB23456789");
    change_outside("mapped", "ab99999999");
    assert(memcmp(map, "ab99", 4) == 0);
    map[3] = 'X';
    assert(msync(map, 4096, MS_SYNC) < 0);
    seen_outside("mapped", "ab99999999");
    munmap(map, 4096), close(fd);
}

/* Two sides that change one file in turn, and at the same time in one page. */
static int raced;
static void *writes_parts(void *at) {
    char byte = 'b';
    for (int i = 0; i < 300; i++)
        assert(pwrite(raced, &byte, 1, *(off_t *)at + i) == 1);
    return NULL;
}
static void coherence(void) {
    OK(xact_tx_thread_begin(NULL, 0));
    int fd = open("shared", O_CREAT | O_RDWR, 0644);
    assert(ftruncate(fd, 8192) == 0);
    OK(xact_tx_thread_commit(0));
    int other = open("shared", O_RDWR);
    for (int i = 0; i < 1000; i++) {
        int seen, next = 2 * i;
        off_t at = (i % 7) * 1000;
        assert(pwrite(other, &next, sizeof next, at) == sizeof next);
        assert(pread(fd, &seen, sizeof seen, at) == sizeof seen && seen == next);
        next++;
        assert(pwrite(fd, &next, sizeof next, at) == sizeof next);
        assert(pread(other, &seen, sizeof seen, at) == sizeof seen && seen == next);
    }
    for (int round = 0; round < 3; round++) {
        /* Pages that the kernel has no contents of. */
        OK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
        OK(posix_fadvise(other, 0, 0, POSIX_FADV_DONTNEED));
        pthread_t thread;
        off_t at = 1000;
        raced = other;
        assert(pthread_create(&thread, NULL, writes_parts, &at) == 0);
        char byte = 'a';
        for (int i = 0; i < 300; i++)
            assert(pwrite(fd, &byte, 1, 2000 + i) == 1);
        pthread_join(thread, NULL);
        for (int i = 0; i < 300; i++) {
            char of[4];
            assert(pread(fd, of, 1, 1000 + i) == 1 && pread(fd, of + 1, 1, 2000 + i) == 1);
            assert(pread(other, of + 2, 1, 1000 + i) == 1 && pread(other, of + 3, 1, 2000 + i) == 1);
            assert(memcmp(of, "baba", 4) == 0);
        }
        assert(ftruncate(fd, 0) == 0 && ftruncate(other, 8192) == 0);
    }
    close(fd), close(other);
}

/* A deleted file takes no space after its last descriptor was closed, however it was opened. */
static void space(void) {
    static char much[1 << 20];
    for (int i = 0; i < 12; i++) {
        OK(xact_tx_thread_begin(NULL, 0));
        int fd = open("much", O_CREAT | O_WRONLY, 0644);
        OK(fd);
        for (int mib = 0; mib < 40; mib++)
            assert(write(fd, much, sizeof much) == sizeof much);
        OK(xact_tx_thread_commit(0));
        OK(unlink("much"));
        assert(write(fd, much, 100) == 100 && close(fd) == 0);
    }
}

/* Threads that are started inside. */
static int ask[2], answer[2];
static void *starts_inside(void *nothing) {
    char what;
    put("by-thread", "thread");
    assert(write(answer[1], "", 1) == 1);
    while (read(ask[0], &what, 1) == 1 && what != 'q') {
        int fd = open("by-thread", O_RDWR);
        char said = fd >= 0 ? 'o' : errno == ESTALE ? 's' : 'e';
        if (what == 'w' && fd >= 0)
            assert(pwrite(fd, "T", 1, 0) == 1);
        if (fd >= 0)
            close(fd);
        assert(write(answer[1], &said, 1) == 1);
    }
    return nothing;
}
static char asked(char what) {
    char said;
    assert(write(ask[1], &what, 1) == 1 && read(answer[0], &said, 1) == 1);
    return said;
}
static void threads_inside(void) {
    char byte, here[4096], before[4096];
    pthread_t thread;
    assert(pipe(ask) == 0 && pipe(answer) == 0 && getcwd(before, sizeof before));
    for (int commits = 0; commits < 2; commits++) {
        OK(xact_tx_thread_begin(NULL, 0));
        assert(pthread_create(&thread, NULL, starts_inside, NULL) == 0 && read(answer[0], &byte, 1) == 1);
        assert(file_has("by-thread", "thread"));
        seen_outside("by-thread", NULL);
        if (commits) {
            OK(xact_tx_thread_commit(0));
            assert(getcwd(here, sizeof here) && strcmp(here, before) == 0);
            seen_outside("by-thread", "thread");
            assert(asked('w') == 'o');
            seen_outside("by-thread", "Thread");
            change_outside("by-thread", NULL);
            assert(asked('r') == 'e');
        } else {
            OK(xact_tx_thread_abort());
            seen_outside("by-thread", NULL);
            assert(asked('r') == 's');
        }
        assert(write(ask[1], "q", 1) == 1 && pthread_join(thread, NULL) == 0);
    }
}

/* If the namespace cannot be left, the transaction is open as before. */
static void stuck(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct all[2], less[2];
    for (int commits = 0; commits < 2; commits++) {
        OK(xact_tx_thread_begin(NULL, 0));
        put("stuck", "inside");
        assert(syscall(SYS_capget, &header, all) == 0);
        memcpy(less, all, sizeof all);
        less[0].effective &= ~(1u << CAP_SYS_ADMIN);
        assert(syscall(SYS_capset, &header, less) == 0);
        FAILS(EPERM, commits ? xact_tx_thread_commit(0) : xact_tx_thread_abort());
        assert(strstr(xact_errmsg(), "leave the namespace") && xact_tx_thread_status() == 1 && file_has("stuck", "inside"));
        seen_outside("stuck", NULL);
        assert(syscall(SYS_capset, &header, all) == 0);
        OK(commits ? xact_tx_thread_commit(0) : xact_tx_thread_abort());
        seen_outside("stuck", commits ? "inside" : NULL);
        assert(xact_tx_thread_status() == 0);
    }
}

/* A commit that is refused and retained: back inside, and out again. */
static void retained(void) {
    put("contested", "initial");
    OK(xact_tx_thread_begin(NULL, 0));
    put("contested", "loser");
    change_outside("contested", "other");
    assert(xact_tx_thread_commit(XACT_COMMIT_RETAIN) < 0 && errno == EAGAIN && xact_tx_thread_status() == 1);
    assert(file_has("contested", "loser"));
    assert(xact_tx_thread_commit(0) < 0 && errno == EAGAIN && xact_tx_thread_status() == 0 && file_has("contested", "other"));
}

/* One thread at the begin and several at the end: a descriptor that was moved is not moved back
 * while the others run. */
static int waits[2];
static void *waits_inside(void *nothing) {
    char byte;
    assert(read(waits[0], &byte, 1) == 1);
    return nothing;
}
static void more_at_the_end(void) {
    pthread_t thread;
    assert(pipe(waits) == 0);
    put("early", "before");
    int fd = open("early", O_RDWR);
    for (int commits = 0; commits < 2; commits++) {
        OK(xact_tx_thread_begin(NULL, 0));
        assert(pwrite(fd, "inside", 6, 0) == 6);
        assert(pthread_create(&thread, NULL, waits_inside, NULL) == 0);
        FAILS(EBUSY, commits ? xact_tx_thread_commit(0) : xact_tx_thread_abort());
        char number[40];
        snprintf(number, sizeof number, "descriptor %d ", fd);
        assert(strstr(xact_errmsg(), number) && strstr(xact_errmsg(), "join them") && xact_tx_thread_status() == 1);
        assert(has(fd, "inside") && write(waits[1], "", 1) == 1 && pthread_join(thread, NULL) == 0);
        OK(commits ? xact_tx_thread_commit(0) : xact_tx_thread_abort());
        assert(has(fd, commits ? "inside" : "before"));
    }
    close(fd);
    /* If no descriptor has to be put back, a thread may continue. */
    OK(xact_tx_thread_begin(NULL, 0));
    assert(pthread_create(&thread, NULL, waits_inside, NULL) == 0);
    fd = open("early", O_RDWR);
    assert(pwrite(fd, "follow", 6, 0) == 6);
    OK(xact_tx_thread_commit(0));
    assert(has(fd, "follow") && file_has("early", "follow"));
    assert(write(waits[1], "", 1) == 1 && pthread_join(thread, NULL) == 0);
    close(fd);
}

int main(int argc, char **argv) {
    assert(argc == 3);
    mnt = argv[1], folder = argv[2];
    OK(chdir(folder));
    more_at_the_end();
    pthread_t thread;
    assert(pthread_create(&thread, NULL, serve, NULL) == 0);
    refusals();
    descriptors();
    permissions();
    mappings();
    coherence();
    space();
    threads_inside();
    stuck();
    retained();
    OK(xact_tx_thread_begin(mnt, 0));
    OK(xact_tx_thread_abort());
    return 0;
}
