# timeout: 200
# libxact, as a C program and a Python program use it.

LIBRARY=$TARGET/release/libxact_c.so

fresh() { # [ARGUMENTS OF xact mount…]
    needs cc python3
    [[ -e $LIBRARY ]] || fail "$LIBRARY is missing: run 'make build'"
    # Linked as after an installation.
    mkdir lib
    ln -s "$LIBRARY" lib/libxact.so.0
    ln -s libxact.so.0 lib/libxact.so
    volume disk.img
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

    /* A conflict, with the transaction that won. */
    tx = xact_tx_begin(argv[1], 0);
    xact_tx *other = xact_tx_begin(argv[1], 0);
    put(xact_tx_dir(tx), "one", "3");
    put(xact_tx_dir(other), "one", "4");
    uint64_t conflicting = xact_tx_id(other);
    assert(xact_tx_commit(other, 0) == 0);
    xact_tx_free(other);
    assert(xact_tx_commit(tx, XACT_COMMIT_RETAIN) < 0 && errno == EAGAIN && xact_tx_status(tx) == 1);
    assert(xact_tx_reason(tx) == XACT_REASON_CONFLICT && xact_tx_winner(tx) == conflicting);
    assert(strcmp(xact_tx_conflict_path(tx), "/folder/one") == 0 && strlen(xact_tx_why(tx)) > 10);
    assert(xact_tx_abort(tx) == 0);
    xact_tx_free(tx);
    xact_tx_free(NULL);
    assert(!xact_tx_begin("/no/such", 0) && errno == ENOENT);
    assert(!xact_tx_begin("/proc", 0) && errno == ENODEV);
    assert(!strcmp(xact_tx_why(NULL), "/proc is not on a mounted xact volume") && xact_tx_why(NULL) == fs_tx_why());
    snprintf(outside, sizeof outside, "%s/one", argv[1]);
    assert(!xact_tx_begin(outside, 0) && errno == ENOTDIR && strstr(xact_tx_why(NULL), "/one: Not a directory"));
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
    compiled "$TESTS/around.c" -pthread
    ./program "$PWD/mnt" "$PWD/mnt/folder"
    # Within xact run the same program is a part of that transaction.
    cat >inner.c <<'END'
#include <assert.h>
#include <fcntl.h>
#include <unistd.h>
#include <xact.h>
int main(int argc, char **argv) {
    assert(argc == 2 && chdir(argv[1]) == 0);
    assert(fs_tx_begin(0) == 0 && fs_tx_id() == 0 && fs_tx_status() == 1);
    assert(creat("undone", 0644) >= 0 && fs_tx_abort() == 0 && access("undone", F_OK) < 0);
    assert(fs_tx_begin(0) == 0 && creat("kept", 0644) >= 0 && fs_tx_commit(0) == 0 && fs_tx_status() == 0);
    return 0;
}
END
    compiled inner.c
    exits 3 -- "$XACT" run --at mnt -- sh -c './program mnt/folder && [ -e mnt/folder/kept ] && exit 3'
    [[ ! -e mnt/folder/kept ]]
    afterwards
}

# A user gets a user namespace for it on request. Also without linking: the program finds the
# functions if they are loaded.
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
    exits 1 'may not. xact_tx_begin .Python: xact.folder. needs no rights; or begin with XACT_BEGIN_USER_NAMESPACE' -- \
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
    if (argc != 3 || chdir(argv[1]) < 0 || fs_tx_begin(0) < 0)
        return 1;
    if (put("one", argv[2]) || fs_tx_savepoint(&savepoint) || put("three", argv[2]) || fs_tx_rollback(savepoint))
        return 2;
    if (mkdir("dir", 0755) < 0 || rename("one", "dir/one") < 0 || put("two", argv[2]) || fs_tx_commit(0) < 0)
        return 3;
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

# The headers in C and in C++, each alone, with warnings as errors.
# (crates/fuse/tests/transactions.rs checks that their numbers are those of the daemon.)
test_headers() {
    needs cc c++
    local header
    for header in xact.h xact_ioctl.h; do
        printf '#include <%s>\nint main(void) { return 0; }\n' "$header" >alone.c
        cc -Wall -Wextra -Wpedantic -Werror -std=c99 -I "$ROOT/include" -c alone.c -o /dev/null
        c++ -Wall -Wextra -Wpedantic -Werror -std=c++11 -I "$ROOT/include" -x c++ -c alone.c -o /dev/null
    done
}

# The Python package, by its own tests; and examples/mail.py, several senders at once.
test_python_package() {
    fresh
    export LIBXACT=$PWD/lib/libxact.so.0 PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    MNT=$PWD/mnt python3 "$TESTS/test_package.py" 2>said || fail "$(cat said)"
    report "$(grep '^Ran' said)"
    python3 - <<'PY'
import ast, tomllib
text = open(__import__("xact").__file__).read()
ast.parse(text, feature_version=(3, 9))
assert tomllib.load(open(__import__("os").environ["PYTHONPATH"] + "/pyproject.toml", "rb"))["project"]["name"] == "xact"
PY
    afterwards
}
test_mail_store() {
    fresh
    export LIBXACT=$PWD/lib/libxact.so.0 PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    local mail=("$ROOT/examples/mail.py") pids=() i
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
