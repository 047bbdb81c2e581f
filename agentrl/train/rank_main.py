"""What a rank other than 0 runs: make the policy, then do as told until rank 0 says so or is gone.

Messages come through a socket pair that rank 0 made, so what is unpickled here was pickled there.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from transformers.utils import logging

from agentrl.train.policy import Policy
from agentrl.train.rank_process import Done, Failure
from agentrl.train.ranks import Ranks, Seat
from agentrl.train.trainer import Trainer

PARENT_CHECK_S = 1.0
LAST_LOOK_S = 0.3


def main(descriptor: int, rank: int) -> None:
    """Serve the connection; a failure is reported on it and ends the process at once, so that nobody waits for it."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the log is for what goes wrong
    connection: Connection[Any, Any] = Connection(descriptor)
    inbox: SimpleQueue[Any] = SimpleQueue()
    listener = threading.Thread(target=_listen, args=(connection, inbox), daemon=True)
    listener.start()
    try:
        serve(connection, inbox)
    except BaseException:
        failure = Failure(rank, "failed", traceback.format_exc().strip(), time.monotonic())
        with suppress(OSError):
            connection.send(failure)
        listener.join(LAST_LOOK_S)  # where the failure is that rank 0 has gone, the listener tidies up
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
    """Pass messages on; when rank 0 is gone, end at once and leave nothing behind, also in the middle of a collective.

    The parent's id is looked at too: a process that rank 0 forked may keep the other end of the connection open.
    """
    parent = os.getppid()
    folder = None
    try:
        while os.getppid() == parent:
            if connection.poll(PARENT_CHECK_S):
                message = connection.recv()
                inbox.put(message)
                folder = message.meeting_file.parent if isinstance(message, Seat) else folder
                if message is None:
                    return
    except (EOFError, OSError):
        pass
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
