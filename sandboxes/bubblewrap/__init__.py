"""`bubblewrap`: a box of namespaces on this machine's own system, without a daemon or an image.

::

    unshare ── a mount namespace, which goes with its last process: nothing stays mounted, whoever is killed
      └ sh ── a tmpfs of the disk's size in it, and on that the folders that the box may write to (`layout`)
          └ bwrap ── the other namespaces, what of the system is seen, seccomp, no capability
              └ setpriv ── a user of this box alone, where we are root
                  └ the channel's server, as process 1; each command joins the box's cgroup and its rlimits
"""

from agentrl.sandboxes.bubblewrap.backend import BubblewrapBackend, BubblewrapOptions, BubblewrapSandbox

__all__ = ["BubblewrapBackend", "BubblewrapOptions", "BubblewrapSandbox"]
