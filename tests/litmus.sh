# The litmus test of atomic visibility, for the suites that source this file.

# litmus SECONDS
litmus() {
    local library=$TARGET/release/libxact_c.so
    needs cc
    [[ -e $library ]] || fail "$library is missing: run 'make build'"
    mkdir lib
    ln -s "$library" lib/libxact.so.0
    ln -s libxact.so.0 lib/libxact.so
    cc -O2 -Wall -Wextra -Werror -std=c11 -D_GNU_SOURCE -I "$ROOT/include" "$TESTS/litmus.c" -pthread \
        -o litmus -L lib -lxact -Wl,-rpath,"$PWD/lib"
    volume disk.img
    mounted disk.img mnt --log "$WORK/daemon.log"
    mkdir mnt/folder
    ./litmus mnt/folder "$1" >said
    report "$(head -n 1 said)"
    lacks daemon.log 'published non-atomically'
    unmounted mnt
    sound disk.img
}
