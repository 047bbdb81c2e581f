#!/bin/sh
# What the tests need from the system, besides Python: PostgreSQL's programs, Chromium, a Docker engine, and a test
# image.
#   system_deps.sh install   brings what is missing, as root on Debian; quick where all is there
#   system_deps.sh check     one line for each thing that is missing; its tests are skipped, or fail where CI=true
set -eu

image=agentrl-test:1
engine_log=/var/log/agentrl-dockerd.log
engine_data=/var/lib/agentrl-docker

main() {
    case "${1:-}" in
        install) install_postgresql; install_chromium; install_engine; make_image ;;
        check) check ;;
        *) echo "usage: $0 install|check" >&2; exit 2 ;;
    esac
}

has_postgresql() { command -v initdb || ls /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1
has_chromium() { command -v chromium; } >/dev/null 2>&1
has_engine() { docker version; } >/dev/null 2>&1
has_image() { docker image inspect "$image"; } >/dev/null 2>&1
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get; } >/dev/null

# What can't be had is told here and by `check`; the rest goes on.
apt_install() {
    [ -n "${apt_is_fresh:-}" ] || apt-get update -qq || true
    apt_is_fresh=1
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" >/dev/null ||
        echo "apt can't install $*" >&2
}

# The tests start servers of their own, so Debian's needn't run.
install_postgresql() {
    if has_postgresql || ! can_install; then return; fi
    mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" >> /etc/postgresql-common/createcluster.conf
    apt_install postgresql
}

install_chromium() {
    if has_chromium || ! can_install; then return; fi
    apt_install chromium
}

install_engine() {
    if has_engine || ! can_install; then return; fi
    command -v dockerd >/dev/null || apt_install docker.io
    command -v dockerd >/dev/null || return 0
    if [ -d /run/systemd/system ]; then systemctl start docker || true; else start_engine; fi
}

# Without systemd nobody else starts one. No box has a network, so the engine needs no bridge and no firewall rules.
# A machine that was killed may have left the engine's pid files.
start_engine() {
    mount_cgroups
    pidof dockerd >/dev/null || rm -f /var/run/docker.pid /var/run/docker/containerd/containerd.pid
    setsid dockerd --data-root "$engine_data" --bridge=none --iptables=false </dev/null >"$engine_log" 2>&1 &
    seconds=0
    until has_engine; do
        seconds=$((seconds + 1))
        if [ "$seconds" -gt 60 ] || ! kill -0 $! 2>/dev/null; then
            echo "dockerd doesn't start; the end of $engine_log:" >&2
            tail -n 5 "$engine_log" >&2
            return
        fi
        sleep 1
    done
}

# A bare container has no cgroups mounted, and dockerd refuses to start without `devices`.
mount_cgroups() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ] || mountpoint -q /sys/fs/cgroup/devices; then return; fi
    mountpoint -q /sys/fs/cgroup || mount -t tmpfs cgroup /sys/fs/cgroup || return 0
    for controller in $(awk '!/^#/ && $4 == 1 { print $1 }' /proc/cgroups); do
        mkdir -p "/sys/fs/cgroup/$controller"
        mountpoint -q "/sys/fs/cgroup/$controller" ||
            mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" || true
    done
}

# An image without a registry: Debian's packages, from the mirror that apt uses.
make_image() {
    if has_image || ! has_engine || ! can_install; then return; fi
    command -v debootstrap >/dev/null || apt_install debootstrap
    command -v debootstrap >/dev/null || return 0
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
        awk -v codename="$codename" '$1 == codename { print $2; exit }')
    debootstrap --variant=minbase --include=python3,git,patch,ripgrep,python3-pytest \
        "$codename" "$folder/root" "$mirror" >"$folder/log" 2>&1 || { tail -n 5 "$folder/log" >&2; return; }
    rm -rf "$folder"/root/var/cache/apt/archives/*.deb "$folder"/root/var/lib/apt/lists/* "$folder"/root/usr/share/doc/*
    tar --create --directory "$folder/root" --exclude ./dev --exclude ./proc --exclude ./sys . |
        docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
            --change 'CMD ["/bin/bash"]' - "$image" >/dev/null || echo "the image $image can't be made" >&2
}

check() {
    has_postgresql || report PostgreSQL
    has_chromium || report Chromium
    if ! has_engine; then report "a running Docker engine"; elif ! has_image; then report "the image $image"; fi
}

report() { echo "missing: $1; \`make system-deps\` brings it as root on Debian"; }

main "$@"
