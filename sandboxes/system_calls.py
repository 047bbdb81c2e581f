"""The seccomp filter of a box: what no command of an agent needs, and what has opened boxes before."""

from __future__ import annotations

import errno
import tempfile
from functools import cache

NEW_NAMESPACES = 0x7E020000
"""All CLONE_NEW… flags that clone takes."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
LAST_FAMILY = 16
"""AF_NETLINK. Above it: packet, vsock (which reaches a virtual machine's host past the network namespace), alg, …"""
DENIED = """
acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen
fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
lookup_dcookie mount mount_setattr move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree
perf_event_open personality pivot_root process_madvise process_vm_readv process_vm_writev ptrace quotactl quotactl_fd
reboot request_key setns settimeofday swapoff swapon syslog umount umount2 unshare userfaultfd vhangup vm86 vm86old
"""
OF_ONE_PROCESS = {
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setattr": 0,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
    "setpriority": 1,
    "ioprio_set": 1,
}
"""Where the process id is among the arguments. Only 0, oneself: a command may do these to any process of its user, and
a limit on its processor time would end the server."""
OF_ONE_USER = {"setpriority": 2, "ioprio_set": 3}
"""Their first argument for all processes of a user, where 0 is one's own."""


@cache
def filter_program() -> bytes | str:
    """The compiled filter, or why there is none."""
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:  # it loads the library when it is imported
        return f"{error}: pip install pyseccomp, and libseccomp.so.2 (Debian: libseccomp2)"
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    deny = pyseccomp.ERRNO(errno.EPERM)
    for name in DENIED.split():
        try:
            rules.add_rule(deny, name)
        except (OSError, ValueError):  # this architecture, or this libseccomp, doesn't know it
            continue
    masked = pyseccomp.MASKED_EQ
    for bit in (1 << n for n in range(32) if NEW_NAMESPACES >> n & 1):
        rules.add_rule(deny, "clone", pyseccomp.Arg(0, masked, bit, bit))
    # Its flags lie in memory, which a filter can't see. The C library takes clone then.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    rules.add_rule(deny, "socket", pyseccomp.Arg(0, pyseccomp.GT, LAST_FAMILY))
    for name, position in OF_ONE_PROCESS.items():
        rules.add_rule(deny, name, pyseccomp.Arg(position, pyseccomp.NE, 0))
    for name, of_user in OF_ONE_USER.items():
        rules.add_rule(deny, name, pyseccomp.Arg(0, masked, 0xFFFFFFFF, of_user))
    for request in (TIOCSTI, TIOCLINUX):
        rules.add_rule(deny, "ioctl", pyseccomp.Arg(1, masked, 0xFFFFFFFF, request))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
