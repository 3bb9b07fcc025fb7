# timeout: 14400
# POSIX behaviour under every mode of journaling and each other setting: the tests of
# suites/posix.sh, which use the default.

FSX_OPERATIONS=${FSX_OPERATIONS:-100000}
FSX_SEEDS=${FSX_SEEDS:-2}
source "$TESTS/suites/posix.sh"

STOCK=commit_writes=two-step,inode_update=immediate,timestamps=immediate
SETTINGS="data=writeback,$STOCK data=ordered,$STOCK data=journal,$STOCK
    data=writeback data=ordered data=journal data=selective data=adaptive
    commit_writes=two-step inode_update=immediate timestamps=immediate log_records=sub-block
    engine=none engine=generations engine=generations,fsync=generation engine=generations,fsync=log"

# A volume with settings of its own. Without a journal, or with generations, it has another format.
posix_volume() { # IMG, SETTINGS
    local engine=journal
    local -a modes
    IFS=, read -ra modes <<<"$2"
    if [[ ${modes[0]} == engine=* ]]; then
        engine=${modes[0]#*=}
        modes=("${modes[@]:1}")
    fi
    volume "$1" --size 1G --engine "$engine"
    [[ ${#modes[@]} -eq 0 ]] || "$XACT" mode set "$1" "${modes[@]}"
}

test_settings_pjdfstest() { POSIX_VOLUMES=$SETTINGS test_pjdfstest_on_the_mount; }

test_settings_fsx() {
    needs fsx
    local settings
    for settings in $SETTINGS; do
        posix_volume disk.img "$settings"
        mounted disk.img mnt
        exerciser mnt/file
        report "with $settings"
        unmounted mnt
        sound disk.img
        rm disk.img
    done
}
