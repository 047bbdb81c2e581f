"""What strangers may write to get a page to do something, and a database that holds it in every field they fill."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from agentrl.store import StepRow, Store
from agentrl.types import Grade, Message, Purpose, Sample
from tests.view.stage import hostile, told, turn

STRINGS = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "--></textarea></title></style></noscript><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg/onload=window.pwned=1>",
    "<svg><script href='data:,window.pwned=1'/><a xlink:href='javascript:window.pwned=1'>x</a></svg>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe><object data='data:text/html,x'></object>",
    '" autofocus onfocus="window.pwned=1" x="',
    "' autofocus onfocus='window.pwned=1' x='",
    "`onload=window.pwned=1`",
    "javascript:window.pwned=1",
    '<a href="javascript:window.pwned=1" autofocus>go</a>',
    "<meta http-equiv=refresh content='0;url=//127.0.0.1:9/'><base href='//127.0.0.1:9/'>",
    "<form action='//127.0.0.1:9/'><input type=submit autofocus></form>",
    "<link rel=stylesheet href='//127.0.0.1:9/x.css'><style>*{background:url(//127.0.0.1:9/x)}</style>",
    "red;background:url(//127.0.0.1:9/x)",
    "<dialog open>click</dialog><details open ontoggle=window.pwned=1><summary>x</summary></details>",
    "{{ 7*7 }}{% for x in ().__class__.__base__.__subclasses__() %}{% endfor %}${7*7}#{7*7}<%= 7*7 %>",
    "&lt;img src=x onerror=window.pwned=1&gt;&#60;script&#62;window.pwned=1&#60;/script&#62;",
    "\x1b[2J\x1b]0;title\x07\x9b31m",
    "NUL \x00 and \x01\x08\x7f\x85",
    "\u202egnp.exe\u2066\u2069\u200b\u200e\ufeff\u2028\u2029",
    "a lone \ud800 surrogate",
    "\r\n\tlines\r\n\r\nand blanks \n",
    "x" * 3000,
    "a" + "\u0300" * 60 + " 日本語 العربية 🙂",
    "../../etc/passwd?x=1&y=2#z%00%2e%2e;",
)
ID = "/\"><img src=x onerror=window.pwned=1>'#?%41&"
"""In an id: one that was imported may hold whatever is printable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Where one of the strings is."""

    evil: str
    run: str
    group: str
    trajectory: str

    @property
    def pages(self) -> list[str]:
        """All that show it, but `texts`."""
        one, run = quote(self.trajectory, safe=""), quote(self.run, safe="")
        asked = urlencode({"env": self.evil, "text": self.evil}, errors="replace")
        return [
            f"/run/{run}",
            f"/health?run={run}",
            f"/step/0/{run}",
            f"/group/{quote(self.group, safe='')}",
            f"/trajectory/{one}",
            *(f"/tokens/{number}/{one}" for number in range(3)),
            f"/search?run={run}",
            f"/search?{asked}",
        ]

    @property
    def texts(self) -> list[str]:
        """Pages of one long text each."""
        places = ("error", "grade", "task", "artifacts", "0.reply", "0.reasoning", "0.prompt.0", "1.prompt.0")
        calls = (f"0.call.0.{field}" for field in ("arguments", "result", "error"))
        one = quote(self.trajectory, safe="")
        return [f"/text/{place}/{one}" for place in (*places, *calls)]


def fill(folder: Path) -> tuple[str, list[Held]]:
    """(the database, where the strings are)."""
    database = str(folder / "hostile.db")
    with Store.open(database) as store:
        held = asyncio.run(_fill(store, folder))
    return database, held


async def _fill(store: Store, folder: Path) -> list[Held]:
    return [await _hold(store, folder / str(place), place, evil) for place, evil in enumerate(STRINGS)]


async def _hold(store: Store, folder: Path, place: int, evil: str) -> Held:
    """A run with one step on one group."""
    folder.mkdir()
    lines = [told("step", 0, seconds={evil: 1.0}), told("eval", 0, sampling=evil, success=0.5)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = {"command": evil, "env": {"name": evil, "options": {evil: evil}}, "model": {"path": evil}}
    config |= {"model_folder": evil}
    run = await store.create_run(evil, config, folder=str(folder), packages={evil: evil})
    await store.add_version(run, parent=None, step=None, weights_hash="w0", ordinal=0)
    one = hostile(run, evil)
    one.id = f"{place:02}{ID}"
    judged = turn(2, evil, one.started_at + 1, random.Random(place), 0, [Message(role="user", content="well?")], [])
    judged.parent, judged.agent = None, evil
    one.turns.append(judged)
    group = await store.queue.plan(run, one.task, purpose=Purpose.TRAIN, ordinal=0, size=1, version=0)
    (lease,) = await store.queue.lease("w", 600, groups=[group])
    one.group = group
    grade = Grade(reward=0.5, parts={evil: 1.0}, grader=evil, grader_version=evil, output=evil)
    (grade_id,) = await store.recorder.add_finished([Sample(trajectory=one, grade=grade)], lease.generation)
    step = await store.begin_step(run, ordinal=0, version=0)
    row = StepRow(
        batch=0, position=0, trajectory=one.id, end_turn=1, grade_id=grade_id, advantage=1.0,
        weights=[(0, 3, 0.0, evil)],
    )  # fmt: skip
    await store.queue.drop(group, evil, lease=lease)
    await store.record_step(run, step, rows=[row], metrics={evil: 1.0, "reward_mean": 0.5}, version_after=None)
    return Held(evil=evil, run=run, group=group, trajectory=one.id)
