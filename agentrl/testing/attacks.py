"""The checks of what must not pay: the cheats that an environment declares, and random texts and calls."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from agentrl.environment import Attack, Environment, Oracle
from agentrl.testing.episode import ContractError
from agentrl.testing.subject import NotShown, Player, Subject
from agentrl.tool import Tool
from agentrl.types import Message, Task, ToolCall

CHARACTERS = "abcdefghij ABCDEF 0123456789 .,:;-+*/=_()[]{}<>|&'\"\\\n\t éß☃\x00\u202e"
MAX_TEXT_CHARACTERS = 200


async def attacks_do_not_pay(subject: Subject) -> str:
    """Each attack on the first task of each split."""
    names: dict[str, None] = {}
    for task in subject.sample(1):
        for attack in _declared(subject, task):
            await subject.play(attacker(subject.stage.env_class, task, attack), task)
            names[attack.name] = None
    if not names:
        raise NotShown("it declares none: return some from attacks(task)")
    return f"{len(names)}: {', '.join(names)}"


async def garbage_pays_little(subject: Subject) -> str:
    """Random texts and calls, on every task that is played."""
    highest = subject.stage.env_class(subject.stage.options).max_garbage_reward
    if highest is None:
        raise NotShown("it sets no max_garbage_reward, on the class or for some options in __init__")
    rewards = []
    for task in subject.sample():
        player = Player(
            name="random play",
            policy=lambda env, task=task: garbage(env.tools, task),  # type: ignore[misc]
            highest=highest,
            bound="max_garbage_reward",
            is_hostile=True,
        )
        rewards.append(await subject.play(player, task))
    return f"at most {max(rewards):g} in {len(rewards)} episodes"


def attacker(env_class: type[Environment], task: Task, attack: Attack) -> Player:
    """Who plays an attack; by its name, since a policy may look at the instance that it plays against."""

    def policy(env: Environment) -> Oracle:
        return next(one.policy for one in env.attacks(task) if one.name == attack.name)

    highest = env_class.max_null_reward if attack.max_reward is None else attack.max_reward
    bound = "max_null_reward" if attack.max_reward is None else "its max_reward"
    return Player(name=f"the attack {attack.name!r}", policy=policy, highest=highest, bound=bound, is_hostile=True)


def garbage(tools: Sequence[Tool], task: Task) -> Oracle:
    """Says random things and calls the tools in random ways; the same ones for the same task."""
    rng = random.Random(f"garbage/{task.key}")

    def reply(messages: list[Message]) -> Message:
        calls = [_random_call(rng, rng.choice(tools))] if tools and rng.random() < 0.7 else []
        return Message(role="assistant", content=_random_text(rng), tool_calls=calls)

    return reply


def _declared(subject: Subject, task: Task) -> Sequence[Attack]:
    subject.stage.now = "attacks"
    attacks = subject.stage.env_class(subject.stage.options).attacks(task)
    names = [attack.name for attack in attacks]
    if len(set(names)) < len(names):
        raise ContractError(f"task {task.id}: two attacks have one name: {', '.join(sorted(names))}")
    return attacks


def _random_call(rng: random.Random, tool: Tool) -> ToolCall:
    values = {name: rng.choice([_random_text(rng), rng.randint(-9, 99), None]) for name in tool.schema["properties"]}
    arguments = json.dumps(values) if rng.random() < 0.8 else _random_text(rng)
    return ToolCall(id=f"call_{rng.randrange(10**6)}", name=tool.name, arguments=arguments)


def _random_text(rng: random.Random) -> str:
    return "".join(rng.choices(CHARACTERS, k=rng.randint(0, MAX_TEXT_CHARACTERS)))
