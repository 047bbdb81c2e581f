"""A running vLLM server of somebody else: what it tells of itself, what it lacks, and weights for it."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import httpx

from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import WEIGHT_BACKEND, VllmOptions, VllmProcess
from agentrl.errors import ConfigError, EngineError
from agentrl.urls import hide_passwords, is_loopback

LOGGER = logging.getLogger(__name__)
Json = dict[str, Any]
_TIMEOUT_S = 30.0
_NO_ROUTE = (403, 404, 405, 501)
_ASLEEP = re.compile(r'^vllm:engine_sleep_state\{[^}]*sleep_state="awake"[^}]*\} 0', re.MULTILINE)
"""In /metrics. /is_sleeping says yes of a server that is only paused, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """What a server tells of itself. One that isn't vLLM, or isn't in development mode, tells nothing."""

    config: Json | None
    """vLLM's whole configuration; None: it doesn't tell."""
    answers_generate: bool
    """Does /inference/v1/generate work?"""
    wants_other_key: bool
    is_paused: bool
    is_asleep: bool
    is_open: bool
    """Are the routes that change weights answered without a key?"""

    def of(self, section: str, key: str) -> Any:
        """A value of the configuration; None where it isn't told."""
        part = (self.config or {}).get(section)
        return part.get(key) if isinstance(part, dict) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Something that a server must be started with."""

    words: str
    for_evaluation: bool
    """Does an evaluation need it too?"""
    is_set: Callable[[ServerFacts], bool]


SETTINGS = (
    Setting(
        words="VLLM_SERVER_DEV_MODE=1 (in its environment)",
        for_evaluation=False,
        is_set=lambda facts: facts.config is not None,
    ),
    Setting(words="--enable-scale-out", for_evaluation=False, is_set=lambda facts: facts.answers_generate),
    Setting(
        words=f"""--weight-transfer-config '{{"backend": "{WEIGHT_BACKEND}"}}'""",
        for_evaluation=False,
        is_set=lambda facts: facts.of("weight_transfer_config", "backend") == WEIGHT_BACKEND,
    ),
    Setting(
        words="--worker-extension-cls agentrl.engine.vllm.inside.WorkerExtension",
        for_evaluation=False,
        is_set=lambda facts: str(facts.of("parallel_config", "worker_extension_cls")).endswith(".WorkerExtension"),
    ),
    Setting(
        words="--logprobs-mode processed_logprobs",
        for_evaluation=True,
        is_set=lambda facts: facts.of("model_config", "logprobs_mode") == "processed_logprobs",
    ),
    Setting(
        words="--generation-config vllm",
        for_evaluation=True,
        is_set=lambda facts: facts.of("model_config", "generation_config") == "vllm",
    ),
)
"""Without the last two a server reports logprobs of another distribution than it samples from, and fills in the
model's own sampling defaults and ends."""


async def read_facts(url: str, key: str | None) -> ServerFacts:
    """Ask a server. Raises EngineError where none answers."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = url.rstrip("/")
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as http:
            # An empty body is refused where the route exists, and costs no token.
            generate = await http.post(f"{url}/inference/v1/generate", json={}, headers=headers)
            paused = await http.get(f"{url}/is_paused", headers=headers)
            metrics = await http.get(f"{url}/metrics", headers=headers)
            info = await http.get(f"{url}/server_info?config_format=json", headers=headers)
            without_key = await http.get(f"{url}/is_paused")
    except httpx.HTTPError as error:
        where = hide_passwords(url)
        raise EngineError(f"no server answers at {where} ({error!r}): start it, or fix engine.urls") from error
    return ServerFacts(
        config=_object(info).get("vllm_config"),
        answers_generate=generate.status_code not in _NO_ROUTE,
        wants_other_key=generate.status_code == 401,
        is_paused=_object(paused).get("is_paused") is True,
        is_asleep=_ASLEEP.search(metrics.text) is not None,
        is_open=_object(without_key).get("is_paused") is not None,
    )


def missing(facts: ServerFacts, *, for_evaluation: bool) -> list[str]:
    """What a server lacks, or doesn't tell that it has: for evaluations, or for training beyond that."""
    return [
        setting.words for setting in SETTINGS if setting.for_evaluation == for_evaluation and not setting.is_set(facts)
    ]


def check_awake(url: str, facts: ServerFacts) -> None:
    """Raises ConfigError for a server that would never answer."""
    where = f"the server at {hide_passwords(url)}"
    if facts.is_asleep:
        raise ConfigError(
            f"{where} is asleep: wake it by POST /wake_up; after a sleep of level 2 its weights are "
            "gone, so start it anew"
        )
    if facts.is_paused:
        raise ConfigError(
            f"{where} is paused (/is_paused), as a publish that failed leaves it: nobody knows which weights it holds, "
            "so start it anew; where somebody else has paused it, POST /resume"
        )


def check_key(url: str, facts: ServerFacts, *, is_training: bool) -> None:
    """Whoever reaches an open server can change its weights: a warning, and for training beyond loopback an error."""
    if not facts.is_open:
        return
    what = (
        f"the server at {hide_passwords(url)} lets anybody change its weights: it answers /is_paused without a key. "
        "Start it with --middleware agentrl.engine.vllm.inside.RequireKey and AGENTRL_ENGINE_KEY in its environment"
    )
    if is_training and not is_loopback(url):
        raise ConfigError(f"{what}, or on 127.0.0.1")
    LOGGER.warning("%s", what)


class AttachedEngine(VllmEngine):
    """A server that runs already. It is sent weights, and never ended: one that may hold wrong ones is left paused.

    `options` say how it should have been started.
    """

    def __init__(self, options: VllmOptions, *, url: str, key: str | None, model: str | None) -> None:
        """`model`: the name that it serves it under; None: the first that it lists."""
        super().__init__(options)
        self._process = VllmProcess(options=options, url=url.rstrip("/"), key=key or "")  # it is never started
        self._served_as = model
        self._num_workers = 1

    async def start(self) -> None:
        """Make sure that it can be trained with. Raises ConfigError, which says what it was started without."""
        facts = await read_facts(self.url, self.key)
        if facts.wants_other_key:
            raise ConfigError(
                f"the server at {hide_passwords(self.url)} refuses the key: put its own into an environment "
                "variable, and name that by engine.key_env"
            )
        self._check_settings(facts)
        check_awake(self.url, facts)
        check_key(self.url, facts, is_training=True)
        check_dtype(self.url, facts, self._options.dtype)
        self.model = self._served_as or str(facts.of("model_config", "served_model_name"))
        self._num_workers = int(facts.of("parallel_config", "world_size") or 1)
        await self._post("/update_weight_version", {"new_version": "0"})

    @property
    def num_workers(self) -> int:
        """See VllmEngine."""
        return self._num_workers

    async def __aexit__(self, *exc: object) -> None:
        """It goes on serving."""

    async def stop(self) -> None:
        """Leave it paused, for nobody knows which weights it holds."""
        try:
            await self.pause()
        except EngineError as error:
            LOGGER.warning("engine %r could not be paused: %s", self.name, error)
        else:
            LOGGER.warning("engine %r is left paused: start it anew before anybody uses it", self.name)

    def _check_settings(self, facts: ServerFacts) -> None:
        for_training = missing(facts, for_evaluation=False)
        for_both = missing(facts, for_evaluation=True)
        if not for_training and not for_both:
            return
        lacks = [f"for training only: {', '.join(for_training)}"] if for_training else []
        lacks += [f"for evaluation too: {', '.join(for_both)}"] if for_both else []
        raise ConfigError(
            f"the server at {hide_passwords(self.url)} was started without what it needs, or doesn't tell; "
            f"{'; '.join(lacks)}. Start it like this: {start_command(self._options)}"
        )


def check_dtype(url: str, facts: ServerFacts, wanted: str) -> None:
    """Rounding that the trainer doesn't do is an error; less of it is a warning."""
    theirs = str(facts.of("model_config", "dtype")).removeprefix("torch.")
    if theirs == wanted:
        return
    what = f"the server at {hide_passwords(url)} computes in {theirs}, the trainer in {wanted} (train.dtype)"
    if theirs != "float32":
        raise ConfigError(
            f"{what}: logprobs would differ by about 0.1 nats; start it with --dtype {wanted}"
            + (", or set train.dtype=bfloat16" if theirs == "bfloat16" else "")
        )
    LOGGER.warning("%s: logprobs will differ by about 0.1 nats", what)


def start_command(options: VllmOptions) -> str:
    """What to type for a server that can be trained with."""
    flags = ["--model", str(options.model), "--port", "8000", "--host", "127.0.0.1", *options.training_flags()]
    flags += ["--dtype", options.dtype]
    flags += [] if options.max_model_len is None else ["--max-model-len", str(options.max_model_len)]
    command = ["python", "-m", "vllm.entrypoints.launchers.api_server.entry", *flags]
    return f"AGENTRL_ENGINE_KEY=… VLLM_SERVER_DEV_MODE=1 {shlex.join(command)}"


def _object(response: httpx.Response) -> Json:
    """The JSON object of a good response; else empty."""
    try:
        answer = response.json() if response.status_code == 200 else None
    except json.JSONDecodeError:
        answer = None
    return cast(Json, answer) if isinstance(answer, dict) else {}
