"""What a rank other than 0 runs: make the policy, then do as told until rank 0 says so or is gone.

Messages come through a socket pair that rank 0 made, so what is unpickled here was pickled there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from agentrl.train.policy import Policy
from agentrl.train.rank_process import Done, Failure
from agentrl.train.ranks import Ranks, Seat
from agentrl.train.trainer import Trainer

PARENT_CHECK_S = 1.0


def main(descriptor: int, rank: int) -> None:
    """Serve the connection; a failure is reported on it and ends the process at once, so that nobody waits for it."""
    connection: Connection[Any, Any] = Connection(descriptor)
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    try:
        serve(connection, inbox)
    except BaseException:
        failure = Failure(rank, "failed", traceback.format_exc().strip(), time.monotonic())
        connection.send(failure)
        os._exit(1)
    os._exit(0)  # tearing the interpreter down takes seconds, and there is nothing left to write


def serve(connection: Connection[Any, Any], inbox: SimpleQueue[Any]) -> None:
    """Take a seat, then make calls until None comes."""
    seat: Seat = inbox.get()
    ranks = Ranks(seat.rank, seat.size, seat.meeting_file, on_ready=lambda: connection.send(Done(None)))
    with getattr(Policy, seat.how)(*seat.arguments, **seat.options, ranks=ranks) as policy:
        members: dict[str, Any] = {policy.name_on_ranks: policy}
        while (call := inbox.get()) is not None:
            if call.method == "make":
                members[call.name] = Trainer(policy, *call.arguments)
                continue
            result = getattr(members[call.name], call.method)(*call.arguments)
            connection.send(Done(result if call.wanted else None))


def _listen(connection: Connection[Any, Any], inbox: SimpleQueue[Any]) -> None:
    """Pass messages on; leave at once when rank 0 is gone, also in the middle of a collective.

    The parent's id is looked at too: a process that rank 0 forked may keep the other end of the connection open.
    """
    parent = os.getppid()
    try:
        while os.getppid() == parent:
            if connection.poll(PARENT_CHECK_S):
                message = connection.recv()
                inbox.put(message)
                if message is None:
                    return
    except (EOFError, OSError):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
