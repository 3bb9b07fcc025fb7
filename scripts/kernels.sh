# Kernels of Debian's packages for the scripts that boot them in qemu. Debian and Ubuntu only: the
# packages come from the package manager.

KERNELS=$TARGET/kernels
MODULES="virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk fuse loop"

needed() { command -v "$1" >/dev/null || die "$1 is missing: apt-get install $2"; }

# apt, also for packages of Debian's development release, which has the newest kernel. The lists of
# that release are kept apart from those of this system.
apt_with_newest() { # COMMAND OF apt…
    "$1" -o "Dir::Etc::SourceList=$KERNELS/apt/sources.list" -o Dir::Etc::SourceParts=- \
        -o "Dir::State::Lists=$KERNELS/apt/lists" -o "Dir::Cache=$KERNELS/apt/cache" \
        -o APT::Default-Release= -o APT::Sandbox::User=root "${@:2}"
}
update_newest() {
    local source
    mkdir -p "$KERNELS"/apt/{lists/partial,cache/archives/partial}
    # The archive is that of this system's own release.
    source=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Label: Debian' 'Component: main' | head -n 1)
    [[ -n $source ]] || die "apt knows no archive of Debian: try apt-get update"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s sid main\n' "$source" >"$KERNELS/apt/sources.list"
    apt_with_newest apt-get update -q >/dev/null
}

# Prints the package that a name stands for.
kernel_package() { # debian-12 | debian-newest | PACKAGE
    local package=$1
    case $package in
    debian-12) package=$(apt-cache depends linux-image-cloud-amd64) ;;
    debian-newest)
        update_newest
        package=$(apt_with_newest apt-cache depends linux-image-cloud-amd64)
        ;;
    esac
    sed -nE 's/^(.*Depends: )?(linux-image-[0-9].*)$/\2/p' <<<"$package" | head -n 1
}

# Prints the folder of a kernel's package, unpacked.
kernel() ( # PACKAGE
    folder=$KERNELS/$1
    mkdir -p "$KERNELS"
    # Several tests may want the same one.
    exec {lock}>"$KERNELS/lock"
    flock "$lock"
    if [[ ! -e $folder/unpacked ]]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        cd "$folder"
        apt=(env)
        apt-cache show "$1" >/dev/null 2>&1 || apt=(apt_with_newest)
        # Newer packages are split, and the one with the kernel's name is empty.
        parts=$("${apt[@]}" apt-cache depends "$1" | sed -nE 's/.*Depends: (linux-(binary|modules|base)-[0-9].*)/\1/p')
        # shellcheck disable=SC2086  # one word for each package
        "${apt[@]}" apt-get download "$1" $parts >/dev/null 2>&1 || die "there is no package $1: try apt-get update"
        for part in *.deb; do dpkg -x "$part" .; done
        rm ./*.deb
        # The modules of newer packages, where this system's programs look for them.
        [[ ! -d usr/lib/modules ]] || { mkdir -p lib && mv usr/lib/modules lib/modules; }
        touch unpacked
    fi
    printf '%s\n' "$folder"
)

# Prints the path of the kernel itself.
kernel_image() { # KERNEL'S FOLDER
    find "$1" -type f -name 'vmlinuz*' -print -quit
}

# The initial RAM disk: loads the modules, and changes to the first disk and its program INIT.
ram_disk() { # KERNEL'S FOLDER, INIT, FILE
    local stage=$3.stage module file
    rm -rf "$stage"
    mkdir -p "$stage"/{bin,modules,proc,sys,dev,new}
    cp "$(command -v busybox)" "$stage/bin/busybox"
    for module in $MODULES; do
        # A module that is part of the kernel has no file.
        file=$(find "$1/lib/modules" -name "$module.ko*" -print -quit)
        case $file in
        *.xz) xz -dc "$file" >"$stage/modules/$module.ko" ;;
        *.ko) cp "$file" "$stage/modules/" ;;
        esac
    done
    cat >"$stage/init" <<ENDINIT
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t devtmpfs none /dev
# One that needs another follows it in a later round.
for round in 1 2 3 4; do
    for module in $MODULES; do
        [ ! -e /modules/\$module.ko ] || /bin/busybox insmod /modules/\$module.ko 2>/dev/null
    done
done
/bin/busybox mount -t ext4 /dev/vda /new
exec /bin/busybox switch_root /new $2
ENDINIT
    chmod 755 "$stage/init"
    (cd "$stage" && find . | cpio --quiet -o -H newc | gzip -1) >"$3"
    rm -rf "$stage"
}
