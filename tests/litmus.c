/* Litmus test: the changes of a commit become visible at once. Writers commit a counter into many
 * places in each transaction: contents and sizes of files, names that are replaced, made and
 * removed, listings. Readers look at these in turn, by held and fresh descriptors, through mappings
 * and by name. In every place and every order, the counter that they see must never decrease.
 *
 *     litmus FOLDER SECONDS
 *
 * Prints the numbers of commits and looks. Exits with 1 if the counter decreased, and prints
 * between which kinds of looks, or if a kind has seen too few values for a verdict.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include <xact.h>

enum { PAGE = 4096, WORDS = PAGE / sizeof(uint64_t), WRITERS = 2, MARKS = 16, SEEN_MIN = 5 };

enum kind { HELD, FRESH, MAPPED, SIZE_BY_NAME, SIZE_HELD, REPLACED, LISTED, MADE, XATTR, KINDS };
static const char *const kind_names[KINDS] = {
    "held descriptor", "fresh descriptor", "mapping", "size by name", "size of a held descriptor",
    "replaced name", "listing", "made name", "extended attribute",
};

/* The kinds of looks of each reader; of several kinds, it chooses at random. */
static const unsigned readers[] = {
    1 << HELD,
    1 << FRESH,
    1 << MAPPED,
    1 << SIZE_BY_NAME | 1 << SIZE_HELD,
    1 << REPLACED | 1 << LISTED | 1 << MADE,
    (1 << KINDS) - 1,
    (1 << KINDS) - 1,
};
enum { READERS = sizeof readers / sizeof *readers };

static const char *folder;
static atomic_bool stop;
static atomic_ulong commits, conflicts;
static atomic_ulong looks[KINDS], seen[KINDS], back[KINDS][KINDS], torn;

#define CHECK(what) do { if (!(what)) { \
    fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno)); exit(2); } } while (0)

static void path(char *to, const char *name, uint64_t number) {
    snprintf(to, PATH_MAX, "%s/%s%llu", folder, name, (unsigned long long)number);
}

/* A step of a transaction. It fails if another one has committed a change of the same file. */
#define STEP(what) do { if (!(what)) { CHECK(errno == EAGAIN); return false; } } while (0)

static bool closed(int fd, bool done) {
    int error = errno;
    CHECK(close(fd) == 0);
    errno = error;
    return done;
}

static bool fill(int dir, const char *name, uint64_t counter) {
    uint64_t page[WORDS];
    for (int i = 0; i < WORDS; i++) page[i] = counter;
    int fd = openat(dir, name, O_CREAT | O_WRONLY, 0644);
    STEP(fd >= 0 && closed(fd, pwrite(fd, page, PAGE, 0) == PAGE));
    return true;
}

/* Stores the counter everywhere, in the folder `dir` of a transaction; false if another transaction
 * committed first. */
static bool change(int dir, uint64_t counter) {
    char name[64], old[64];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "contents%d", i);
        STEP(fill(dir, name, counter));
        snprintf(name, sizeof name, "size%d", i);
        int fd = openat(dir, name, O_CREAT | O_WRONLY, 0644);
        STEP(fd >= 0 && closed(fd, ftruncate(fd, (off_t)counter) == 0));
        snprintf(name, sizeof name, "replaced%d", i);
        STEP(fill(dir, "new", counter));
        STEP(renameat(dir, "new", dir, name) == 0);
        snprintf(name, sizeof name, "listed%d/%llu", i, (unsigned long long)counter);
        snprintf(old, sizeof old, "listed%d/%llu", i, (unsigned long long)counter - 1);
        STEP(renameat(dir, old, dir, name) == 0);
        snprintf(name, sizeof name, "xattr%d", i);
        fd = openat(dir, name, O_CREAT | O_WRONLY, 0644);
        STEP(fd >= 0 && closed(fd, fsetxattr(fd, "user.counter", &counter, sizeof counter, 0) == 0));
    }
    snprintf(name, sizeof name, "made/%llu", (unsigned long long)counter);
    int fd = openat(dir, name, O_CREAT | O_EXCL | O_WRONLY, 0644);
    STEP(fd >= 0 && closed(fd, true));
    if (counter > MARKS) {
        snprintf(name, sizeof name, "made/%llu", (unsigned long long)counter - MARKS);
        STEP(unlinkat(dir, name, 0) == 0);
    }
    return true;
}

static void *write_on(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    while (!stop) {
        xact_tx *tx = xact_tx_begin(folder, 0);
        CHECK(tx);
        int dir = xact_tx_dir(tx);
        uint64_t counter;
        int fd = openat(dir, "contents0", O_RDONLY);
        CHECK(fd >= 0 && pread(fd, &counter, sizeof counter, 0) == sizeof counter && close(fd) == 0);
        if (!change(dir, counter + 1)) CHECK(xact_tx_doomed(tx) == 1);
        /* Some of the commits are durable. */
        if (xact_tx_commit(tx, rand_r(&seed) % 16 ? XACT_COMMIT_ORDERED : 0) == 0)
            commits++;
        else {
            CHECK(errno == EAGAIN);
            conflicts++;
        }
        xact_tx_free(tx);
        /* Gives the readers time to fill the kernel's caches. */
        usleep((useconds_t)(rand_r(&seed) % 3000));
    }
    return NULL;
}

struct held {
    int contents[2], size[2], xattr[2];
    volatile uint64_t *map[2];
};

static uint64_t page_of(int fd) {
    uint64_t page[WORDS];
    CHECK(pread(fd, page, PAGE, 0) == PAGE);
    for (int i = 1; i < WORDS; i++)
        if (page[i] != page[0]) torn++;
    return page[0];
}

static uint64_t contents_of(const char *name, int which) {
    char at[PATH_MAX];
    path(at, name, (uint64_t)which);
    int fd = open(at, O_RDONLY);
    CHECK(fd >= 0);
    uint64_t counter = page_of(fd);
    close(fd);
    return counter;
}

/* Uses one call: the results of several calls need not belong to one instant. */
static uint64_t listed(int which) {
    char at[PATH_MAX];
    _Alignas(struct dirent64) char buffer[PAGE];
    path(at, "listed", (uint64_t)which);
    int fd = open(at, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0);
    ssize_t len = getdents64(fd, buffer, sizeof buffer);
    CHECK(len > 0);
    close(fd);
    uint64_t counter = 0;
    int count = 0;
    for (char *next = buffer; next < buffer + len; next += ((struct dirent64 *)next)->d_reclen) {
        const char *name = ((struct dirent64 *)next)->d_name;
        if (name[0] == '.') continue;
        counter = strtoull(name, NULL, 10);
        count++;
    }
    if (count != 1) torn++;
    return counter;
}

/* The counter according to the names that were made with it: `last` or later. Up to MARKS commits
 * after it, a name still exists; a later look searches for the following names. */
static uint64_t made(uint64_t last) {
    char at[PATH_MAX];
    struct stat st;
    for (uint64_t counter = last + 1;; counter++) {
        path(at, "made/", counter);
        if (stat(at, &st) == 0) return counter;
        CHECK(errno == ENOENT);
        path(at, "made/", last);
        if (stat(at, &st) == 0) return last;
        /* Neither exists: the name was removed, and later ones exist, or it was not made yet. */
        if (counter > last + MARKS) {
            uint64_t now = contents_of("contents", 0);
            return now < last + MARKS ? 0 : now;
        }
    }
}

static uint64_t look(enum kind kind, const struct held *held, int which, uint64_t last) {
    char at[PATH_MAX];
    struct stat st;
    uint64_t counter;
    switch (kind) {
    case HELD: return page_of(held->contents[which]);
    case FRESH: return contents_of("contents", which);
    case MAPPED: return *held->map[which];
    case SIZE_BY_NAME:
        path(at, "size", (uint64_t)which);
        CHECK(stat(at, &st) == 0);
        return (uint64_t)st.st_size;
    case SIZE_HELD:
        CHECK(fstat(held->size[which], &st) == 0);
        return (uint64_t)st.st_size;
    case REPLACED: return contents_of("replaced", which);
    case LISTED: return listed(which);
    case MADE: return made(last);
    case XATTR:
        CHECK(fgetxattr(held->xattr[which], "user.counter", &counter, sizeof counter) == sizeof counter);
        return counter;
    default: abort();
    }
}

static void *read_on(void *arg) {
    unsigned kinds = readers[(uintptr_t)arg], seed = (unsigned)(uintptr_t)arg + 100;
    struct held held;
    char at[PATH_MAX];
    for (int i = 0; i < 2; i++) {
        path(at, "contents", (uint64_t)i);
        CHECK((held.contents[i] = open(at, O_RDONLY)) >= 0);
        void *map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, held.contents[i], 0);
        CHECK(map != MAP_FAILED);
        held.map[i] = map;
        path(at, "size", (uint64_t)i);
        CHECK((held.size[i] = open(at, O_RDONLY)) >= 0);
        path(at, "xattr", (uint64_t)i);
        CHECK((held.xattr[i] = open(at, O_RDONLY)) >= 0);
    }
    uint64_t last = 1;
    enum kind before = HELD;
    for (int turn = 0; !stop; turn++) {
        enum kind kind = (enum kind)(rand_r(&seed) % KINDS);
        if (!(kinds & 1 << kind)) continue;
        uint64_t now = look(kind, &held, rand_r(&seed) & 1, last);
        looks[kind]++;
        if (now < last) {
            if (!back[before][kind]++)
                fprintf(stderr, "%s read %llu, then %s read %llu\n", kind_names[before],
                        (unsigned long long)last, kind_names[kind], (unsigned long long)now);
        } else if (now > last) {
            seen[kind]++;
        }
        last = now > last ? now : last;
        before = kind;
        /* Leaves CPU time to the others. */
        if (kind == MAPPED && turn % 1024 == 0) usleep(1);
    }
    return NULL;
}

static void start(void) {
    char name[64];
    int dir = open(folder, O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0 && mkdirat(dir, "made", 0755) == 0);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "listed%d", i);
        CHECK(mkdirat(dir, name, 0755) == 0);
        snprintf(name, sizeof name, "listed%d/0", i);
        fill(dir, name, 0);
    }
    change(dir, 1);
    close(dir);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    folder = argv[1];
    start();
    pthread_t threads[WRITERS + READERS];
    for (uintptr_t i = 0; i < WRITERS; i++) CHECK(!pthread_create(&threads[i], NULL, write_on, (void *)i));
    for (uintptr_t i = 0; i < READERS; i++)
        CHECK(!pthread_create(&threads[WRITERS + i], NULL, read_on, (void *)i));
    sleep((unsigned)atoi(argv[2]));
    stop = 1;
    for (int i = 0; i < WRITERS + READERS; i++) CHECK(!pthread_join(threads[i], NULL));

    unsigned long all = 0, wrong = torn;
    for (int kind = 0; kind < KINDS; kind++) all += looks[kind];
    printf("%lu commits, %lu conflicts, %lu looks\n", commits, conflicts, all);
    for (int kind = 0; kind < KINDS; kind++) {
        printf("  %s: %lu looks, %lu changes\n", kind_names[kind], looks[kind], seen[kind]);
        if (seen[kind] < SEEN_MIN) {
            printf("too few for a verdict\n");
            wrong++;
        }
    }
    for (int a = 0; a < KINDS; a++)
        for (int b = 0; b < KINDS; b++) {
            if (back[a][b]) printf("WENT BACK: %s, then %s: %lu times\n", kind_names[a], kind_names[b], back[a][b]);
            wrong += back[a][b];
        }
    if (torn) printf("TORN: %lu words, or listings without one name\n", torn);
    return wrong != 0;
}
