"""What counts as an action: exactly one tag, checked against the space before anything is stepped."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.gymnasium_actions import Actions
from agentrl.envs.gymnasium_text import check_observations, describe, plain_text

MOVES = Actions.of("FrozenLake-v1", spaces.Discrete(4), ("left", "down", "right", "up"))
NUMBERED = Actions.of("x", spaces.Discrete(3, start=-1), ())
BOX = Actions.of("x", spaces.Box(np.array([-1, 0], np.float32), np.array([1, 0.1], np.float32)), ())
MULTI = Actions.of("x", spaces.MultiDiscrete([2, 3]), ())


@pytest.mark.parametrize(
    ("text", "action"),
    [("<action>left</action>", 0), ("I go <action> Up </action> now", 3), ("<ACTION>\ndown\n</ACTION>", 1)],
)
def test_a_named_action(text: str, action: int) -> None:
    assert MOVES.parse(text) == action


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("left", "no action"), ("", "no action"), ("<action>left", "no action"), ("<action></action>", "no such"),
        ("<action>0</action>", "no such"), ("<action>lef</action>", "no such"), ("<action>left up</action>", "no such"),
        ("<action>left</action><action>left</action>", "2 actions"), (f"<action>{'x' * 500}</action>", "too long"),
    ],
)  # fmt: skip
def test_what_is_no_action(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MOVES.parse(text)


@pytest.mark.parametrize(("text", "action"), [("-1", -1), (" 1 ", 1), ("0", 0)])
def test_a_numbered_action(text: str, action: int) -> None:
    assert NUMBERED.parse(f"<action>{text}</action>") == action


@pytest.mark.parametrize("text", ["2", "-2", "1.0", "1_0", "٣", "nan", "1e0", "0x1", "0 1", "", "9" * 30])
def test_what_is_no_number_of_the_space(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|between"):
        NUMBERED.parse(f"<action>{text}</action>")


def test_lists_of_numbers() -> None:
    assert MULTI.parse("<action>1 2</action>").tolist() == [1, 2]
    assert BOX.parse("<action>-0.5, 0.05</action>").tolist() == pytest.approx([-0.5, 0.05])
    for text in ("1", "2 0", "1 2 0", "1 1.5"):
        with pytest.raises(ValueError, match=r"number|between"):
            MULTI.parse(f"<action>{text}</action>")
    for text in ("0 0.2", "inf 0", "0"):
        with pytest.raises(ValueError, match=r"number|between"):
            BOX.parse(f"<action>{text}</action>")


SPACES = st.one_of(
    st.builds(spaces.Discrete, st.integers(1, 50), start=st.integers(-5, 5)),
    st.lists(st.integers(1, 9), min_size=1, max_size=5).map(spaces.MultiDiscrete),
    st.lists(st.tuples(st.floats(-9, 0), st.floats(0.5, 9)), min_size=1, max_size=5).map(
        lambda pairs: spaces.Box(
            np.array([low for low, _ in pairs], np.float32), np.array([high for _, high in pairs], np.float32)
        )
    ),
)


@settings(deadline=None)
@given(space=SPACES, seed=st.integers(0, 1000))
def test_what_is_written_is_read_back_and_in_the_space(space: spaces.Space, seed: int) -> None:  # type: ignore[type-arg]
    actions = Actions.of("x", space, ())
    space.seed(seed)
    wanted = space.sample()
    read = actions.parse(actions.write(wanted))
    assert space.contains(np.asarray(read, space.dtype) if np.ndim(read) else np.int64(read))
    assert np.allclose(read, wanted, atol=1e-6)


@settings(deadline=None)
@given(text=st.text(), inside=st.text())
def test_any_text_gives_an_action_of_the_space_or_a_reason(text: str, inside: str) -> None:
    for actions in (MOVES, NUMBERED, BOX, MULTI):
        try:
            action = actions.parse(f"{text}<action>{inside}</action>")
        except ValueError as error:
            assert str(error)
        else:
            numbers = np.atleast_1d(action)
            assert all(low <= n <= high + 1e-6 for n, (low, high) in zip(numbers, actions.ranges, strict=True))


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(0, 1, (2, 2)), spaces.Box(0, 1, (40,)), spaces.MultiBinary(3),
     spaces.Dict(a=spaces.Discrete(2)), spaces.Text(3), spaces.MultiDiscrete(np.array([[2, 2], [2, 2]]))],
)  # fmt: skip
def test_other_spaces_are_refused_by_name(space: spaces.Space) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=rf"^Some-v0: actions of {re.escape(str(space))}"):
        Actions.of("Some-v0", space, ())


def test_names_must_fit_the_space() -> None:
    with pytest.raises(ValueError, match="2 names; x has 3 actions"):
        Actions.of("x", spaces.Discrete(3), ("a", "b"))
    with pytest.raises(ValueError, match="a name of its own"):
        Actions.of("x", spaces.Discrete(2), ("a", "A "))
    with pytest.raises(ValueError, match="Discrete space; x has Box"):
        Actions.of("x", spaces.Box(0, 1, (2,)), ("a", "b"))


def test_colours_become_marks() -> None:
    assert plain_text("\n\x1b[41mS\x1b[0mFFF\nFHFH\n") == "[S]FFF\nFHFH"
    assert plain_text("|\x1b[35mR\x1b[0m: |\x1b[34;1mB\x1b[0m|\x1b[43m \x1b[0m|") == "|R: |B|[ ]|"
    assert plain_text("a\x1b[2Jb\x1b[10;3Hc\x1b") == "abc"


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("\x1b[0;41mJHab \n")))
def test_no_escape_is_left(text: str) -> None:
    assert "\x1b" not in plain_text(text)


def test_observations_in_words() -> None:
    assert describe("Blackjack-v1", (14, 10, 1)) == "Your sum is 14 with a usable ace; the dealer shows 10."
    assert describe("Taxi-v4", 328) == "Taxi in row 3, column 1. Passenger at Y, destination R."  # gymnasium's docs
    assert describe("CartPole-v1", np.array([0.123456, -2], np.float32)) == "[0.1235, -2]"
    assert describe("x", {"a": np.int64(3), "b": (1, "go")}) == "a: 3, b: [1, go]"


def test_a_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="100800 numbers, too many"):
        check_observations("Pong", spaces.Box(0, 255, (210, 160, 3), np.uint8))
    with pytest.raises(ValueError, match="Graph"):
        check_observations("x", spaces.Graph(spaces.Discrete(2), None))
    check_observations("x", spaces.Dict(a=spaces.Box(0, 1, (4,)), b=spaces.Tuple([spaces.Discrete(2)])))
