# timeout: 200
# libxact, as a C program and a Python program use it.

LIBRARY=$TARGET/release/libxact_c.so

fresh() { # [ARGUMENTS OF xact mount…]; ENGINE: of the volume
    needs cc python3
    [[ -e $LIBRARY ]] || fail "$LIBRARY is missing: run 'make build'"
    # Linked as after an installation.
    mkdir lib
    ln -s "$LIBRARY" lib/libxact.so.0
    ln -s libxact.so.0 lib/libxact.so
    volume disk.img ${ENGINE:+--engine "$ENGINE"}
    mounted disk.img mnt "$@"
    mkdir mnt/folder
}
afterwards() {
    unmounted mnt
    sound disk.img
}
compiled() { # FILE [OPTIONS]: to ./program
    cc -Wall -Wextra -Werror -std=c11 -D_GNU_SOURCE -I "$ROOT/include" "$@" -o program -L lib -lxact \
        -Wl,-rpath,"$PWD/lib"
}

test_two_files_at_once() {
    fresh
    cat >two.c <<'END'
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xact.h>

static void put(int dir, const char *name, const char *text) {
    int fd = openat(dir, name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

int main(int argc, char **argv) {
    assert(argc == 2);
    xact_tx *tx = xact_tx_begin(argv[1], 0);
    assert(tx && xact_tx_status(tx) == 1 && xact_tx_id(tx) > 0);
    put(xact_tx_dir(tx), "one", "1");
    put(xact_tx_dir(tx), "two", "1");
    char outside[4096];
    snprintf(outside, sizeof outside, "%s/one", argv[1]);
    assert(access(outside, F_OK) < 0);
    /* An unknown flag ends nothing. */
    assert(xact_tx_commit(tx, 1 << 20) < 0 && errno == EINVAL && xact_tx_status(tx) == 1);
    assert(xact_tx_commit(tx, 0) == 0 && access(outside, F_OK) == 0);
    assert(xact_tx_status(tx) == 0 && xact_tx_commit(tx, 0) < 0 && errno == ESTALE);
    xact_tx_free(tx);

    /* An inner part is undone on its own. */
    uint64_t savepoint;
    tx = xact_tx_begin(argv[1], 0);
    put(xact_tx_dir(tx), "one", "2");
    assert(xact_tx_savepoint(tx, &savepoint) == 0);
    put(xact_tx_dir(tx), "two", "wrong");
    assert(xact_tx_rollback(tx, savepoint) == 0 && xact_tx_rollback(tx, savepoint) < 0 && errno == EINVAL);
    assert(xact_tx_savepoint(tx, &savepoint) == 0);
    put(xact_tx_dir(tx), "two", "2");
    assert(xact_tx_release(tx, savepoint) == 0 && xact_tx_commit(tx, XACT_COMMIT_CONSOLIDATE) == 0);
    xact_tx_free(tx);

    /* A conflict, with the transaction that committed first. */
    tx = xact_tx_begin(argv[1], 0);
    xact_tx *other = xact_tx_begin(argv[1], 0);
    put(xact_tx_dir(tx), "one", "3");
    put(xact_tx_dir(other), "one", "4");
    uint64_t conflicting = xact_tx_id(other);
    assert(xact_tx_commit(other, 0) == 0);
    xact_tx_free(other);
    assert(xact_tx_commit(tx, XACT_COMMIT_RETAIN) < 0 && errno == EAGAIN && xact_tx_status(tx) == 1);
    assert(xact_tx_reason(tx) == XACT_REASON_CONFLICT && xact_tx_conflicting_tx(tx) == conflicting);
    assert(strcmp(xact_tx_conflict_path(tx), "/folder/one") == 0 && strlen(xact_tx_errmsg(tx)) > 10);
    assert(xact_conflicting_tx() == conflicting && !strcmp(xact_errmsg(), xact_tx_errmsg(tx)));
    assert(xact_tx_abort(tx) == 0);
    xact_tx_free(tx);
    xact_tx_free(NULL);
    assert(!xact_tx_begin("/no/such", 0) && errno == ENOENT);
    assert(!xact_tx_begin("/proc", 0) && errno == ENODEV);
    assert(!strcmp(xact_errmsg(), "/proc is not on a mounted xact volume") && xact_tx_errmsg(NULL) == xact_errmsg());
    snprintf(outside, sizeof outside, "%s/one", argv[1]);
    assert(!xact_tx_begin(outside, 0) && errno == ENOTDIR && strstr(xact_errmsg(), "/one: Not a directory"));
    return 0;
}
END
    compiled two.c
    ./program mnt/folder
    equal contents '4 2' "$(cat mnt/folder/one; echo -n ' '; cat mnt/folder/two)"
    # Within another transaction it is a part of that one.
    rm mnt/folder/*
    cat >within.c <<'END'
#include <assert.h>
#include <fcntl.h>
#include <xact.h>
int main(int argc, char **argv) {
    assert(argc == 2);
    for (int i = 0; i < 2; i++) {
        xact_tx *tx = xact_tx_begin(argv[1], 0);
        assert(tx && openat(xact_tx_dir(tx), i ? "kept" : "undone", O_CREAT | O_WRONLY, 0644) >= 0);
        assert((i ? xact_tx_commit(tx, 0) : xact_tx_abort(tx)) == 0);
        xact_tx_free(tx);
    }
    return 0;
}
END
    compiled within.c
    "$XACT" run --at mnt -- sh -c './program mnt/folder && ls mnt/folder && touch mnt/outer' >said
    equal "seen inside" kept "$(cat said)"
    [[ -e mnt/outer && -e mnt/folder/kept && ! -e mnt/folder/undone ]]
    afterwards
}

test_death_aborts() {
    fresh
    cat >die.c <<'END'
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include <xact.h>
int main(int argc, char **argv) {
    xact_tx *tx = xact_tx_begin(argv[argc - 1], 0);
    return openat(xact_tx_dir(tx), "made", O_CREAT | O_WRONLY, 0644) < 0 || kill(getpid(), SIGKILL);
}
END
    compiled die.c
    exits 137 -- ./program mnt/folder
    none() { [[ -z $("$XACT" tx list --at mnt) ]]; }
    wait_until "the end of the transaction" none
    [[ ! -e mnt/folder/made ]]
    afterwards
}

# All calls of a thread, by any path: descriptors opened before, threads, children, mappings.
test_all_calls_of_a_thread() {
    fresh
    compiled "$TESTS/thread_tx.c" -pthread
    ./program "$PWD/mnt" "$PWD/mnt/folder"
    # Within xact run the same program is a part of that transaction.
    cat >inner.c <<'END'
#include <assert.h>
#include <fcntl.h>
#include <unistd.h>
#include <xact.h>
int main(int argc, char **argv) {
    assert(argc == 2 && chdir(argv[1]) == 0);
    assert(xact_tx_thread_begin(NULL, 0) == 0 && xact_tx_thread_id() == 0 && xact_tx_thread_status() == 1);
    assert(creat("undone", 0644) >= 0 && xact_tx_thread_abort() == 0 && access("undone", F_OK) < 0);
    assert(xact_tx_thread_begin(NULL, 0) == 0 && creat("kept", 0644) >= 0 && xact_tx_thread_commit(0) == 0);
    assert(xact_tx_thread_status() == 0);
    return 0;
}
END
    compiled inner.c
    exits 3 -- "$XACT" run --at mnt -- sh -c './program mnt/folder && [ -e mnt/folder/kept ] && exit 3'
    [[ ! -e mnt/folder/kept ]]
    afterwards
}

# The former names, of functions and of fields in the control structs.
test_compatible_names() {
    fresh
    cat >names.c <<'END'
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <xact.h>
int main(int argc, char **argv) {
    assert(argc == 2 && chdir(argv[1]) == 0 && fs_tx_status() == 0);
    assert(fs_tx_commit(0) < 0 && errno == ESTALE && fs_tx_abort() < 0 && errno == ESTALE);
    assert(!strcmp(fs_tx_why(), "this thread has no open transaction") && fs_tx_why() == xact_errmsg());
    assert(fs_tx_reason() == XACT_REASON_OTHER && !fs_tx_conflict_path() && fs_tx_winner() == 0);
    assert(fs_tx_begin_at(NULL, 0) < 0 && errno == EINVAL);

    uint64_t savepoint;
    assert(fs_tx_begin(0) == 0 && fs_tx_status() == 1 && fs_tx_id() > 0 && fs_tx_doomed() == 0);
    assert(fs_tx_commit(0x400) < 0 && errno == EINVAL && fs_tx_status() == 1);
    assert(fs_tx_savepoint(&savepoint) == 0 && close(creat("undone", 0644)) == 0);
    assert(fs_tx_rollback(savepoint) == 0 && access("undone", F_OK) < 0);
    assert(fs_tx_savepoint(&savepoint) == 0 && close(creat("kept", 0644)) == 0);
    assert(fs_tx_release(savepoint) == 0 && fs_tx_commit(0) == 0 && access("kept", F_OK) == 0);
    assert(fs_tx_begin_at(argv[1], 0) == 0 && close(creat("aborted", 0644)) == 0);
    assert(fs_tx_abort() == 0 && access("aborted", F_OK) < 0);

    /* A conflict with a transaction, reported by the former names. */
    xact_tx *one = xact_tx_begin(argv[1], 0), *two = xact_tx_begin(argv[1], 0);
    assert(close(openat(xact_tx_dir(one), "new", O_CREAT | O_WRONLY, 0644)) == 0);
    assert(close(openat(xact_tx_dir(two), "new", O_CREAT | O_WRONLY, 0644)) == 0);
    assert(xact_tx_commit(one, 0) == 0 && xact_tx_commit(two, 0) < 0 && errno == EAGAIN);
    assert(xact_tx_winner(two) == xact_tx_id(one) && fs_tx_winner() == xact_tx_id(one));
    assert(strlen(xact_tx_why(two)) > 10 && xact_tx_why(two) == xact_tx_errmsg(two));
    assert(!strcmp(fs_tx_conflict_path(), "/folder/new") && fs_tx_reason() == XACT_REASON_CONFLICT);
    xact_tx_free(one);
    xact_tx_free(two);

    struct xact_commit commit = {.conflicting_tx = 7, .errmsg_len = 3, .errmsg = "abc"};
    assert(commit.winner == 7 && commit.why_len == 3 && !memcmp(commit.why, "abc", 3));
    struct xact_info info = {.status = XACT_LEFT_OPEN};
    enum xact_standing standing = XACT_KEPT;
    assert(info.standing == standing && XACT_DROPPED == XACT_ABORTED);
    return 0;
}
END
    compiled names.c
    ./program "$PWD/mnt/folder"
    equal files 'kept new' "$(ls mnt/folder | xargs)"
    afterwards
}

# The open transactions of a volume.
test_transactions_are_listed() {
    fresh -o allow_other
    cat >list.c <<'END'
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xact.h>
int main(int argc, char **argv) {
    assert(argc == 2);
    xact_tx_list *list = xact_tx_list_new(argv[1]);
    const struct xact_tx_info *tx, *first = NULL;
    while (list && (tx = xact_tx_list_next(list))) {
        first = first ? first : tx;
        printf("%llu '%s' %u %u %d %s\n", (unsigned long long)tx->id, tx->label, tx->status, tx->uid, tx->persistent,
               tx->left_ms ? "limited" : "unlimited");
        assert(tx->age_ms < 600000 && first->id <= tx->id);
    }
    if (!list) {
        fprintf(stderr, "%d: %s\n", errno, xact_errmsg());
        return 1;
    }
    assert(!xact_tx_list_next(list));
    xact_tx_list_free(list);
    xact_tx_list_free(NULL);
    assert(!xact_tx_list_next(NULL) && errno == EINVAL && !strcmp(xact_errmsg(), "an argument is NULL"));
    return 0;
}
END
    compiled list.c
    equal "none are open" '' "$(./program mnt)"
    local id
    id=$("$XACT" tx begin --at mnt --timeout 0)
    "$XACT" run --at mnt --leave-open --persist -- touch mnt/folder/x 2>/dev/null
    ./program mnt/folder >list
    equal lines 2 "$(wc -l <list)"
    has list "^$id 'xact tx begin' 2 0 0 unlimited\$"
    has list "^[0-9]+ 'touch mnt/folder/x' 2 0 1 limited\$"
    equal "of another user" '' "$(setpriv --reuid 65534 --regid 65534 --clear-groups ./program "$PWD/mnt")"
    exits 1 '^22: other transactions cannot be reached from inside a transaction' -- \
        "$XACT" run --at mnt -- ./program mnt
    exits 1 '^19: /proc is not on a mounted xact volume' -- ./program /proc
    "$XACT" tx abort "$id" --at mnt
    "$XACT" tx commit "$(sed -n "s/ 'touch.*//p" list)" --at mnt
    equal "after the ends" '' "$(./program mnt)"
    [[ -e mnt/folder/x ]]
    afterwards
}

# Snapshots of a mounted volume.
test_snapshots() {
    ENGINE=generations fresh -o allow_other
    cat >snapshots.c <<'END'
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xact.h>
/* usage: create AT NAME [PATH...]; delete AT NAME; list AT */
int main(int argc, char **argv) {
    int done = -1;
    if (argc >= 4 && !strcmp(argv[1], "create"))
        done = xact_snapshot_create(argv[2], argv[3], argc > 4 ? (const char *const *)argv + 4 : NULL);
    else if (argc == 4)
        done = xact_snapshot_delete(argv[2], argv[3]);
    else if (argc == 3) {
        xact_snapshot_list *list = xact_snapshot_list_new(argv[2]);
        const struct xact_snapshot_info *info;
        done = list ? 0 : -1;
        while (list && (info = xact_snapshot_list_next(list))) {
            time_t now = time(NULL);
            printf("%s %s", info->name, (time_t)info->time <= now && (time_t)info->time > now - 600 ? "now" : "?");
            for (const char *const *path = info->paths; path && *path; path++)
                printf(" %s", *path);
            printf("\n");
        }
        xact_snapshot_list_free(list);
    }
    if (done < 0)
        fprintf(stderr, "%d: %s\n", errno, xact_errmsg());
    return done < 0;
}
END
    compiled snapshots.c
    mkdir mnt/d1 mnt/d2
    touch mnt/d1/a mnt/d2/b
    ./program create mnt one
    ./program create mnt/folder two d1 /d1/a ./d2/b/
    ./program list mnt >list
    diff list - <<<$'one now\ntwo now d1 d2/b'
    equal names 'one two' "$("$XACT" snapshot list mnt --json | jq -r '.[].name' | xargs)"
    equal "a partial one" 'a' "$(ls mnt/.xact/snapshots/two/d1)"
    exits 1 "^22: there is a snapshot 'one' already" -- ./program create mnt one
    exits 1 "^22: there is no snapshot 'none'" -- ./program delete mnt none
    exits 1 '^22: .*/none does not exist' -- ./program create mnt three none
    exits 1 '^22: .*at most 100 bytes' -- ./program create mnt "$(printf '%0101d' 0)"
    exits 1 '^22: .*not possible inside a transaction' -- "$XACT" run --at mnt -- ./program create mnt three
    equal "listed inside" 2 "$("$XACT" run --at mnt -- ./program list mnt | wc -l)"
    exits 1 '^1: only root and the user who mounted the volume' -- \
        setpriv --reuid 65534 --regid 65534 --clear-groups ./program list "$PWD/mnt"
    exits 1 '^19: /proc is not on a mounted xact volume' -- ./program list /proc
    ./program delete mnt one
    ./program delete mnt two
    equal "after the deletions" '' "$(./program list mnt)"
    afterwards
}

# A user gets a user namespace for it on request. Also without linking: the program finds the
# functions if they are loaded.
# Destructors of a thread run after those of the library's own values.
test_calls_of_a_thread_that_ends() {
    fresh
    cat >ends.c <<'END'
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <xact.h>

static pthread_key_t key;
static int seen;

static void at_end(void *again) {
    /* Keys whose values are set again are destroyed once more, after those of other libraries. */
    if (again == &key) {
        pthread_setspecific(key, &seen);
        return;
    }
    errno = 0;
    assert(xact_tx_thread_abort() < 0 && errno != 0);
    xact_errmsg();
    seen++;
}
static void *ends(void *unused) {
    assert(xact_tx_thread_abort() < 0 && xact_errmsg());
    pthread_setspecific(key, &key);
    return unused;
}

int main(void) {
    pthread_t thread;
    assert(pthread_key_create(&key, at_end) == 0);
    assert(pthread_create(&thread, NULL, ends, NULL) == 0 && pthread_join(thread, NULL) == 0);
    assert(seen == 1);
    return 0;
}
END
    compiled ends.c -pthread
    ./program
    afterwards
}

test_preloaded_and_unprivileged() {
    fresh -o allow_other
    chown 65534 mnt/folder
    cat >weak.c <<'END'
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xact.h>
#pragma weak fs_tx_begin
#pragma weak fs_tx_commit
#pragma weak fs_tx_why
int main(int argc, char **argv) {
    assert(argc == 3 && chdir(argv[1]) == 0);
    unsigned flags = strcmp(argv[2], "unasked") ? XACT_BEGIN_USER_NAMESPACE : 0;
    if (fs_tx_begin && fs_tx_begin(flags) < 0) {
        fprintf(stderr, "%s\n", fs_tx_why());
        return 1;
    }
    FILE *one = fopen("one", "w"), *two = fopen("two", "w");
    assert(one && two && fputs(argv[2], one) > 0 && fputs(argv[2], two) > 0);
    assert(fclose(one) == 0);
    if (strcmp(argv[2], "dies") == 0)
        _exit(9);
    assert(fclose(two) == 0);
    assert(!fs_tx_commit || fs_tx_commit(0) == 0);
    return 0;
}
END
    cc -I "$ROOT/include" weak.c -o weak
    local other=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    cp "$(readlink -f lib/libxact.so.0)" lib/copy.so && chmod 755 . lib lib/copy.so weak
    "${other[@]}" ./weak mnt/folder plain
    exits 1 'Use xact_tx_begin .Python: xact.folder., which needs no privilege, or begin with XACT_BEGIN_USER_NAMESPACE' -- \
        "${other[@]}" env LD_PRELOAD="$PWD/lib/copy.so" ./weak mnt/folder unasked
    equal "after the refusal" 'plain plain' "$(cat mnt/folder/one) $(cat mnt/folder/two)"
    exits 9 -- "${other[@]}" env LD_PRELOAD="$PWD/lib/copy.so" ./weak mnt/folder dies
    equal "after the death" 'plain plain' "$(cat mnt/folder/one) $(cat mnt/folder/two)"
    "${other[@]}" env LD_PRELOAD="$PWD/lib/copy.so" ./weak mnt/folder preloaded
    equal "after the commit" 'preloaded preloaded' "$(cat mnt/folder/one) $(cat mnt/folder/two)"
    equal owner 65534 "$(stat -c %u mnt/folder/one)"
    afterwards
}

# Killed before, in and after each call: all of the transaction is on the volume, or nothing.
test_killed_at_every_call() {
    fresh
    cat >steps.c <<'END'
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xact.h>
static int put(const char *name, const char *text) {
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    return fd < 0 || write(fd, text, strlen(text)) < 0 || fsync(fd) < 0 || close(fd) < 0;
}
int main(int argc, char **argv) {
    uint64_t savepoint;
    if (argc != 3 || chdir(argv[1]) < 0 || xact_tx_thread_begin(NULL, 0) < 0)
        return 1;
    if (put("one", argv[2]) || xact_tx_thread_savepoint(&savepoint) || put("three", argv[2]))
        return 2;
    if (xact_tx_thread_rollback(savepoint) || mkdir("dir", 0755) < 0 || rename("one", "dir/one") < 0)
        return 3;
    if (put("two", argv[2]) || xact_tx_thread_commit(0) < 0)
        return 4;
    return 0;
}
END
    compiled steps.c
    strace -o calls ./program mnt/folder counted
    rm -r mnt/folder/*
    # The calls from the begin on. One of them is the commit. strace kills before the call is made,
    # or after.
    local first last n kills=0 committed=0
    first=$(grep -n 'O_TMPFILE' calls | head -n 1 | cut -d : -f 1)
    last=$(grep -c . calls)
    for ((n = first; n <= last; n++)); do
        local call number
        call=$(sed -n "${n}s/(.*//p" calls)
        [[ $call =~ ^[a-z0-9_]+$ && $call != exit_group ]] || continue
        number=$(head -n "$n" calls | grep -c "^$call(")
        strace -o /dev/null -e trace="$call" -e inject="$call:signal=KILL:when=$number" \
            ./program mnt/folder "$n" >/dev/null 2>&1 || true
        kills=$((kills + 1))
        none() { [[ -z $("$XACT" tx list --at mnt) ]]; }
        wait_until "the end of the transaction" none
        case $(cd mnt/folder && find . -type f -exec cat {} + | sort -u | xargs; ls mnt/folder) in
        '') ;;
        *) [[ $(cat mnt/folder/dir/one mnt/folder/two) == "$n$n" && ! -e mnt/folder/three && ! -e mnt/folder/one ]] ||
            fail "killed at call $n, $call: $(find mnt/folder)"
            committed=$((committed + 1))
            rm -r mnt/folder/* ;;
        esac
    done
    [[ $kills -gt 30 && $committed -gt 0 && $committed -lt $kills ]]
    report "killed at $kills calls, committed in $committed"
    afterwards
}

# The headers in C and in C++, each alone, with warnings as errors. The library exports the
# functions that they declare, and no others. (crates/control/tests/header.rs compares their numbers
# with those of the daemon.)
test_headers() {
    needs cc c++ nm
    local header
    for header in xact.h xact_ioctl.h; do
        printf '#include <%s>\nint main(void) { return 0; }\n' "$header" >alone.c
        cc -Wall -Wextra -Wpedantic -Werror -std=c99 -I "$ROOT/include" -c alone.c -o /dev/null
        c++ -Wall -Wextra -Wpedantic -Werror -std=c++11 -I "$ROOT/include" -x c++ -c alone.c -o /dev/null
    done
    nm -D --defined-only "$LIBRARY" | sed -n 's/.* T //p' | sort >exported
    sed -nE 's/^[a-z][a-z0-9_ *]*[ *]([a-z_]+)\(.*/\1/p' "$ROOT/include/xact.h" | sort >declared
    [[ $(grep -c '^xact_tx_thread_' declared) -ge 9 ]]
    diff declared exported
    # The manual names each of them.
    local name
    while read -r name; do
        grep -q "$name" "$ROOT/crates/capi/libxact.3" || fail "libxact.3 lacks $name"
    done <exported
}

# The Python package, by its own tests; and examples/mail.py, several senders at once.
test_python_package() {
    fresh
    export LIBXACT=$PWD/lib/libxact.so.0 PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    export XACT
    MNT=$PWD/mnt python3 "$TESTS/test_package.py" ThreadTransactions Decorators Tasks Lists 2>said || fail "$(cat said)"
    report "$(grep '^Ran' said)"
    python3 - <<'PY'
import ast, tomllib
text = open(__import__("xact").__file__).read()
ast.parse(text, feature_version=(3, 9))
folder = __import__("os").environ["PYTHONPATH"]
package = tomllib.load(open(folder + "/pyproject.toml", "rb"))
assert package["project"]["name"] == "xact-fs"
workspace = tomllib.load(open(folder + "/../Cargo.toml", "rb"))
assert __import__("xact").__version__ == workspace["workspace"]["package"]["version"]
PY
    afterwards
}
test_python_snapshots() {
    ENGINE=generations fresh
    export XACT LIBXACT=$PWD/lib/libxact.so.0 PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    MNT=$PWD/mnt python3 "$TESTS/test_package.py" Snapshots 2>said || fail "$(cat said)"
    report "$(grep '^Ran' said)"
    afterwards
}

# Without the C library the package can be imported, and its calls say how to get it.
test_python_without_the_library() {
    needs python3
    export PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1 LIBXACT=$PWD/none.so
    python3 - <<'PY'
import errno, xact
assert xact.__version__
for call in lambda: xact.transaction("/").__enter__(), lambda: xact.folder("/").__enter__(), xact.snapshots:
    for attempt in range(2):
        try:
            call()
        except xact.LibraryNotFound as error:
            assert error.errno == errno.ENOENT and isinstance(error, xact.Error)
            assert "none.so" in str(error) and "make install" in str(error) and "LIBXACT" in str(error), error
        else:
            raise AssertionError(call)
PY
}

# LIBXACT may name another library, or a file that is none.
test_python_with_a_wrong_library() {
    needs python3 cc
    export PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    echo text >text.so
    echo 'int other;' | cc -shared -x c - -o other.so
    echo 'int xact_tx_begin(void) { return 0; }' | cc -shared -x c - -o older.so
    local call='import xact; xact.snapshots("/")'
    LIBXACT=$PWD/other.so exits 1 "LibraryNotFound: .*$PWD/other.so is not the C library libxact" -- python3 -c "$call"
    LIBXACT=$PWD/older.so exits 1 "LibraryNotFound: .*$PWD/older.so has no xact_.*: it is older" -- python3 -c "$call"
    LIBXACT=$PWD/text.so exits 1 "LibraryNotFound: .*cannot load .*text.so" -- python3 -c "$call"
}

# README's 'pip install ./python', without a network: the source tree stays as it is.
test_pip_leaves_nothing_in_the_tree() {
    needs python3
    cp -r "$ROOT/python" tree
    find tree -name __pycache__ -prune -exec rm -r {} +
    find tree | sort >before
    local pip=(python3 -m pip --no-input --disable-pip-version-check install --quiet --no-index)
    (
        unset PYTHONDONTWRITEBYTECODE
        "${pip[@]}" --target site ./tree
        "${pip[@]}" --target editable --editable ./tree
    ) 2>said || fail "$(cat said)"
    find tree | sort | diff before -
    [[ -e site/xact/py.typed ]]
    cat >installed.py <<'PY'
import importlib.metadata, xact
assert importlib.metadata.version("xact-fs") == xact.__version__
print(xact.__file__)
PY
    equal "installed" "$PWD/site/xact/__init__.py" "$(PYTHONPATH=$PWD/site python3 installed.py)"
    # The wheel has all files of the package.
    (cd tree/xact && find . -type f) | sort >sources
    (cd site/xact && find . -type f ! -path '*/__pycache__/*') | sort | diff sources -
}

# A transaction that is too old: whatever its calls report, it is a conflict, and tried again.
test_too_old() {
    fresh --cache-size 16M
    head -c 100M /dev/urandom >mnt/large
    "$XACT" sync mnt
    cat >program.c <<'END'
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <xact.h>

int main(void) {
    xact_tx *tx = xact_tx_begin("mnt", 0);
    assert(tx != NULL && openat(xact_tx_dir(tx), "of-c", O_CREAT | O_WRONLY, 0644) >= 0);
    assert(xact_tx_doomed(tx) == 0 && system("./expire") == 0);
    assert(openat(xact_tx_dir(tx), "folder", O_RDONLY) < 0 && errno == ESTALE);
    assert(xact_tx_doomed(tx) == 1);
    assert(xact_tx_commit(tx, 0) == -1 && errno == ESTALE && xact_tx_reason(tx) == XACT_REASON_TOO_OLD);
    xact_tx_free(tx);
    return 0;
}
END
    # Deleted contents stay for the transaction, until the volume is full for others.
    cat >expire <<'END'
#!/bin/sh
rm mnt/large
head -c 300M /dev/zero >mnt/filler 2>/dev/null
rm mnt/filler
END
    chmod +x expire
    compiled program.c
    ./program
    [[ ! -e mnt/of-c ]] || fail "a transaction that is too old was committed"
    head -c 100M /dev/urandom >mnt/large
    "$XACT" sync mnt
    export LIBXACT=$PWD/lib/libxact.so.0 PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    python3 - <<'END'
import errno, os, subprocess, xact
tries = []
def work(tx):
    tries.append(1)
    with open(f"{tx.path}/of-python", "w") as file:
        file.write("x")
    if len(tries) == 1:
        subprocess.run("./expire", check=True)
        try:
            open(f"{tx.path}/folder/none")
        except OSError as error:
            assert error.errno == errno.ESTALE, error
            raise ValueError("something else") from error
xact.run(work, xact.folder("mnt"))
assert len(tries) == 2 and open("mnt/of-python").read() == "x"
END
    afterwards
}

test_mail_store() {
    fresh
    export LIBXACT=$PWD/lib/libxact.so.0 PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    local mail=("$ROOT/examples/mail.py") pids=() i
    "${mail[@]}" --help >help
    has help '^usage: mail.py'
    exits 64 '^usage: mail.py' -- "${mail[@]}" mnt/folder
    exits 64 '^usage: mail.py' -- "${mail[@]}" mnt/folder delete
    head -c 100000 /dev/urandom >picture
    for i in 1 2 3 4; do
        (for n in 1 2 3 4 5; do "${mail[@]}" mnt/folder add "mail $i.$n" picture; done >>added) &
        pids+=($!)
    done
    wait "${pids[@]}"
    equal added 20 "$(sort -nu added | wc -l)"
    "${mail[@]}" mnt/folder delete 7
    "${mail[@]}" mnt/folder list >list
    equal listed 19 "$(wc -l <list)"
    equal attachments 19 "$(grep -c ' picture$' list)"
    cmp picture mnt/folder/attachments/20/picture
    # The attempts that lost have left nothing behind.
    equal folders 19 "$(ls mnt/folder/attachments | wc -l)"
    afterwards
}

# The programs in the README and the man page are the first ones that a user types.
test_programs_of_the_docs() {
    needs man
    fresh
    export LIBXACT=$PWD/lib/libxact.so.0 PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    sed -n '/^```python two.py$/,/^```$/p' "$ROOT/README.md" | sed '1d;$d' >two.py
    python3 two.py
    equal "by Python" '1 1' "$(cat mnt/one; echo -n ' '; cat mnt/two)"
    sed -n '/^```c two.c$/,/^```$/p' "$ROOT/README.md" | sed '1d;$d' >two.c
    compiled two.c
    ./program
    equal "by C" '2 2' "$(cat mnt/one; echo -n ' '; cat mnt/two)"
    MANWIDTH=200 man -l "$ROOT/crates/capi/libxact.3" | sed -n '/^EXAMPLE/,/^SEE ALSO/p' | sed '1d;$d' |
        sed "s|/mnt|$PWD/mnt|g" >page.c
    compiled page.c
    ./program
    equal "of the man page" '1 1' "$(xargs <<<"$(cat mnt/one mnt/two)")"
    afterwards
}

test_it_is_installed() {
    needs pkg-config man
    fresh
    PATH=$PATH "$ROOT/scripts/install" "$PWD/prefix" >/dev/null
    export PKG_CONFIG_PATH=$PWD/prefix/lib/pkgconfig
    cat >small.c <<'END'
#include <xact.h>
int main(void) { xact_tx_free(0); return xact_tx_begin("/", 0) != 0 || fs_tx_begin_at("/", 0) == 0; }
END
    # shellcheck disable=SC2046
    cc small.c -o small $(pkg-config --cflags --libs xact)
    LD_LIBRARY_PATH=$PWD/prefix/lib ./small
    man -l "$PWD/prefix/share/man/man3/libxact.3" | grep -q fs_tx_begin
    "$ROOT/scripts/install" --remove "$PWD/prefix" >/dev/null
    equal "left behind" '' "$(find prefix -type f -o -type l)"
    afterwards
}
