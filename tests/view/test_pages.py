"""What the pages say, and that what strangers wrote does nothing in them."""

from __future__ import annotations

import random
import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from agentrl.store import Store
from agentrl.types import Message, Purpose, Sample
from agentrl.view.viewer import SHOWN
from tests.view.conftest import reading
from tests.view.stage import EVIL, SAMPLES, Stage, grade, rollout, task, turn

NO_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


async def page(reader: httpx.AsyncClient, path: str, status: int = 200) -> str:
    answer = await reader.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def words(html: str) -> str:
    """What is read, with blanks as one."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


async def test_runs_tell_status_and_last_figures(reader: httpx.AsyncClient, stage: Stage) -> None:
    text = words(await page(reader, "/"))
    assert re.search(r"demo \w{12} dead owner train toy tiny [\d: -]+ 3 0\.300 0\.800", text)
    assert "baseline" in text and "completed" in text and "2 runs" in text


async def test_a_run_shows_its_curves_steps_and_config(reader: httpx.AsyncClient, stage: Stage) -> None:
    html = await page(reader, f"/run/{stage.runs[0]}")
    titles = re.findall(r"<figcaption>([^<]*)", html)
    for title in ("reward", "held-out success", "turns of a rollout", "staleness", "mismatch", "seconds by", "endings"):
        assert any(title in one for one in titles), titles
    assert "reward by step. mean: 3 points from 0.2 to 0.3" in html
    assert all(f'href="/step/{step}/{stage.runs[0]}"' in html for step in range(3))
    assert "env.options.level" in html and f"agentrl runs {stage.runs[0]} --db {stage.database}" in html
    assert "completed 16, max_turns 8" in words(html)


async def test_two_runs_stand_side_by_side(reader: httpx.AsyncClient, stage: Stage) -> None:
    left, right = stage.runs
    html = await page(reader, f"/compare?run={left}&run={right}")
    assert "env.options.level 0 1" in words(html) and "env.name" not in html
    assert "baseline: mean" in html and "demo: mean" in html
    assert "not two" in await page(reader, f"/compare?run={left}", 400)


async def test_a_step_shows_the_spread_of_rewards_and_dead_groups(reader: httpx.AsyncClient, stage: Stage) -> None:
    html = await page(reader, f"/step/0/{stage.runs[0]}")
    assert "2, 1 of them dead" in html and "weight 0: zero_variance" in html and "clipped 12.5 %" in html
    assert len(re.findall(r'href="/trajectory/', html)) == 2 * SAMPLES
    assert f"agentrl replay {stage.runs[0]} --step 0" in html


async def test_a_group_shows_its_samples_side_by_side(reader: httpx.AsyncClient, stage: Stage) -> None:
    html = await page(reader, f"/group/{stage.groups[1]}")
    assert html.count("<article") == SAMPLES and "dead" in html
    assert "calculator ( {&#34;expression&#34;: &#34;1 + 1&#34;} )" in words(html)


async def test_a_long_group_is_read_a_stretch_of_turns_at_a_time(tmp_path: Path) -> None:
    database = str(tmp_path / "long.db")
    with Store.open(database) as store:
        group = await long_group(store, num_turns=30)
    async with reading(database) as reader:
        last = await page(reader, f"/group/{group}")
        assert re.findall(r">turn (\d+)<", last) == [*map(str, range(18, 30))] * 2 and "?start=0" in last
        middle = await page(reader, f"/group/{group}?start=12")
        assert re.findall(r">turn (\d+)<", middle) == [*map(str, range(12, 24))] * 2
        assert "?start=24" in middle and "Last turns of each" in middle and "said 12 of 1" in middle
        assert "30 turns" in middle and "It has no such turns" in await page(reader, f"/group/{group}?start=99")


async def long_group(store: Store, num_turns: int) -> str:
    run, draw = await store.create_run("long", {}), random.Random(1)
    await store.add_version(run, parent=None, step=None, weights_hash="w0", ordinal=0)
    group = await store.queue.plan(run, task(1), purpose=Purpose.TRAIN, ordinal=0, size=2, version=0)
    (lease,) = await store.queue.lease("w", 600, groups=[group])
    for sample in range(2):
        one = rollout(run, task(1), draw, 1.0, group=group, sample=sample)
        asked = [Message(role="user", content="go on")]
        one.turns = [turn(n, f"said {n} of {sample}", 1.0, draw, 0, asked, []) for n in range(num_turns)]
        await store.recorder.add_finished([Sample(trajectory=one, grade=grade(1.0))], lease.generation)
    return group


async def test_a_search_has_pages_and_its_command(reader: httpx.AsyncClient, stage: Stage) -> None:
    first = await page(reader, "/search?env=toy&max_reward=1")
    assert "agentrl find --env toy --max-reward 1 --db" in first and 'rel="next"' not in first
    found = re.findall(r'<a class="id" href="/trajectory/(\w+)"', first)
    assert len(found) == 2 * 3 * 2 * SAMPLES + 1 and len(set(found)) == len(found)
    behind = await page(reader, f"/search?env=toy&max_reward=1&after={found[9]}")
    assert re.findall(r'<a class="id" href="/trajectory/(\w+)"', behind) == found[10:]
    assert f"--after {found[9]}" in behind and 'href="/search?env=toy&amp;max_reward=1"' in behind
    failed = await page(reader, "/search?call=failed")
    assert re.findall(r'<a class="id" href="/trajectory/(\w+)"', failed) == [stage.hostile]


WRONG = {
    "step=1": "a step needs the run", "version=1": "a version needs its run", "step=x&run=demo": "no whole number",
    "min_reward=x": "is no number", "min_reward=nan": "is no number",
    "min_reward=2&max_reward=1": "no reward is at least",
    "stop_reason=bored": "is none of completed", "run=nope": "no run id starts with", "after=nope": "no trajectory id",
    "step=9&run=demo": "has no step 9", "purpose=fun": "is none of train",
}  # fmt: skip


@pytest.mark.parametrize("query", WRONG)
async def test_what_can_not_be_searched_for_is_said_beside_the_form(reader: httpx.AsyncClient, query: str) -> None:
    html = await page(reader, f"/search?{query}", 400)
    assert WRONG[query] in html and '<form action="/search"' in html and "No rollout matches" not in html


async def test_health_tells_endings_slow_tools_and_long_episodes(reader: httpx.AsyncClient, stage: Stage) -> None:
    text = words(await page(reader, "/health"))
    assert "tool_error 1 2.0 % not measured, tried again" in text and "faults, nothing was measured" in text
    assert "calculator 50 0 0.0 % 49 ms 80 ms" in text and "4.0 s 2 19" in text
    of_run = await page(reader, f"/health?run={stage.runs[0]}")
    assert "calculator 24 0" in words(of_run) and "tool_error" not in of_run
    assert f"/search?stop_reason=max_turns&amp;run={stage.runs[0]}" in of_run
    assert "no run id starts with" in await page(reader, "/health?run=nope", 404)


async def test_a_trajectory_shows_turns_calls_grade_and_who_used_it(reader: httpx.AsyncClient, stage: Stage) -> None:
    html = await page(reader, f"/trajectory/{stage.learnt}")
    text = words(html)
    assert "What the model" not in text and "0 + 1?" in text and "the result of the call above" in text
    assert "the last answer was checked" in text and "answered 1.000" in text
    assert f'href="/step/0/{stage.runs[0]}"' in html and 'class="timeline"' in html
    assert f"agentrl why {stage.learnt}" in html and "branch" not in text


async def test_the_beginning_of_an_id_leads_to_the_whole(reader: httpx.AsyncClient, stage: Stage) -> None:
    answer = await reader.get(f"/trajectory/{stage.learnt[:9]}")
    assert answer.status_code == 200 and answer.url.path == f"/trajectory/{stage.learnt}"


async def test_branches_other_agents_and_versions_are_told(reader: httpx.AsyncClient, stage: Stage) -> None:
    text = words(await page(reader, f"/trajectory/{stage.branched}"))
    assert re.search(r"Turn 2 branch: keeps 5 of the \d+ ids of turn 0", text)
    assert "Turn 3 judge not trained text" in text and "version 1 (25000), version 2 (25000)" in text


async def test_tokens_carry_mask_logprob_version_and_advantage(reader: httpx.AsyncClient, stage: Stage) -> None:
    html = await page(reader, f"/tokens/1/{stage.learnt}?part=1")
    assert "<html" not in html
    told = re.findall(r'title="(id \d+, mask [^"]*)"', html)
    assert told[0] == "id 50, mask 0: nobody sampled it"
    assert re.match(r"id \d+, mask 1, logprob -\d\.\d{4}, version 0, advantage [+-]1\.000$", told[1])
    assert "version 1" in told[-1]
    assert words(html).replace(" ", "").startswith("2Answer:")
    assert 'data-copy="[50]"' in html


async def test_many_tokens_come_a_page_at_a_time(reader: httpx.AsyncClient, stage: Stage) -> None:
    first = await page(reader, f"/tokens/2/{stage.branched}")
    assert "0 to 2,000 of 50,009 ids" in first and first.count('class="token likely') < 2_010
    last = await page(reader, f"/tokens/2/{stage.branched}?start=50000")
    assert "50,000 to 50,009 of 50,009 ids" in last and "Next ids" not in last


async def test_a_huge_text_is_folded_and_read_page_by_page(reader: httpx.AsyncClient, stage: Stage) -> None:
    html = await page(reader, f"/trajectory/{stage.branched}")
    assert f"{50_000 - SHOWN:,} more characters" in html and "x" * (SHOWN + 1) not in html
    assert "20,000 to 40,000 of 50,000" in await page(reader, f"/text/2.reply/{stage.branched}?start=20000")


PLACES = ("error", "grade", "task", "artifacts", "0.reply", "0.reasoning", "0.prompt.0", "0.call.0.result")


def everywhere(stage: Stage) -> list[str]:
    own = [f"/trajectory/{stage.hostile}", *(f"/tokens/{turn}/{stage.hostile}" for turn in (0, 1))]
    return [*own, *(f"/text/{place}/{stage.hostile}" for place in PLACES)]


async def test_what_strangers_wrote_is_escaped_and_marked_everywhere(reader: httpx.AsyncClient, stage: Stage) -> None:
    for path in everywhere(stage):
        html = await page(reader, path)
        assert "<img" not in html and html.count("</script>") == 1 and "49" not in re.findall(r"{{.*?}}", html)
        assert not NO_CONTROL.search(html), path
    html = await page(reader, everywhere(stage)[0])
    assert '<span class="mark" title="not printable">\\u202e</span>gnp.exe' in html
    assert html.count("&lt;img src=x onerror=alert(1)&gt;") > 12


HOSTILE_PATHS = [
    f"/run/{EVIL}", "/run/", "/run/%00", "/step/99999999999999999999/x", "/step/7/{run}", "/group/nope",
    "/trajectory/../../etc/passwd", "/tokens/9/{one}", "/tokens/0/nope", "/text/9.reply/{one}", "/text/0/{one}",
    "/text/0.call.-1.result/{one}", "/text/0.prompt.x/{one}", "/text/0.call.0.seconds/{one}", "/text/.../{one}",
    "/changed/run/nope", "/changed/else/x", "/nowhere",
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE_PATHS)
async def test_what_isnt_there_gets_a_page_that_says_so(reader: httpx.AsyncClient, stage: Stage, path: str) -> None:
    path = path.replace("{run}", stage.runs[0]).replace("{one}", stage.learnt)
    answer = await reader.get(quote(path, safe="/%"))
    assert answer.status_code == 404, answer.text
    assert "Go on from the list of runs" in answer.text and "<img" not in answer.text
    assert not NO_CONTROL.search(answer.text)


@pytest.mark.parametrize("query", ["start=-1", "start=x", "start=1e9", "start=999999999999", "before=²"])
async def test_odd_numbers_in_an_address_do_no_harm(reader: httpx.AsyncClient, stage: Stage, query: str) -> None:
    for path in ("/", f"/run/{stage.runs[0]}", f"/tokens/0/{stage.learnt}", f"/text/0.reply/{stage.learnt}"):
        await page(reader, f"{path}?{query}")


async def test_what_is_written_still_is_watched(reader: httpx.AsyncClient, stage: Stage) -> None:
    html = await page(reader, f"/trajectory/{stage.running}")
    (address,) = re.findall(r'data-changed="([^"]*)"', html)
    (mark,) = re.findall(r'data-mark="([^"]*)"', html)
    assert (await reader.get(address)).json() == {"mark": mark}
    assert "data-changed" not in await page(reader, f"/trajectory/{stage.learnt}")


async def test_the_database_is_not_written_to(reader: httpx.AsyncClient, stage: Stage) -> None:
    before = Path(stage.database).read_bytes()
    for path in ("/", f"/run/{stage.runs[0]}", f"/trajectory/{stage.learnt}", f"/tokens/0/{stage.learnt}"):
        await page(reader, path)
    assert Path(stage.database).read_bytes() == before
