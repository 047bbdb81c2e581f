"""One repository with an issue to solve, whatever dataset it comes from.

The readers of `records` make it, the environment and the grader use it and nothing else; it travels whole in
`Task.data`, so that a grade follows from what is stored.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

ReportsBy = Literal["pytest", "log"]


class Source(BaseModel):
    """A repository that lies on this machine, for tasks without an image.

    `kind` tree: a folder; archive: a tar file, such as an sdist, whose only top folder is left out; bundle: of git.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["tree", "archive", "bundle"]
    path: str
    """Absolute once the task is loaded; in a record, relative to the record's file. Empty in what is stored: this
    machine knows where the files of a hash lie."""
    sha256: str = ""
    """Of what is there; a grade years later refuses another content. Filled in when the task is loaded."""


class SweTask(BaseModel):
    """What an agent starts from, and what decides whether it has solved the issue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    repo: str = ""
    format: str
    """The kind of record that it was read from, e.g. swe-bench-5."""
    problem_statement: str = Field(min_length=1)

    image: str | None = None
    """Has the repository at `workdir`; None: `source` has it."""
    source: Source | None = None
    workdir: str = "/testbed"
    base_commit: str | None = None
    """What the image's tree is set to before the agent starts; None: it stays as it is."""
    setup_patch: str = ""
    """Applied before the agent starts, e.g. the mutation that is to be found."""
    setup_commands: tuple[str, ...] = ()
    """Lines for the box's shell, run in `workdir` before the agent starts and again before grading."""

    gold_patch: str = ""
    """Solves the issue when applied to what the agent starts from; empty: none is known."""
    gold_is_reversed: bool = False
    """`gold_patch` is what brought the fault in: it solves the issue when it is applied in reverse."""

    test_patch: str = ""
    """Applied after the agent's patch; brings tests that the agent must not see."""
    test_files: tuple[str, ...] = ()
    """Paths in the repository that are as the task has them when it is graded, whatever the agent did to them. What
    `test_patch` touches is among them. Those that exist only through it aren't there before."""
    hidden_files: tuple[str, ...] = ()
    """Of `test_files`, those that the agent must not see although the repository has them."""

    reports_by: ReportsBy = "pytest"
    """pytest: our plugin tells the results over a file descriptor. log: `eval_script` prints, `log_parser` reads."""
    test_arguments: tuple[str, ...] = ()
    """For pytest: what to run, e.g. the test files; empty: `test_files`."""
    python: str = "python3"
    """The interpreter in the box that runs pytest."""
    python_path: tuple[str, ...] = ()
    """For pytest: folders of the repository that modules are imported from besides its top, e.g. src."""
    eval_script: str | None = None
    log_parser: str | None = None
    fail_only: bool = False
    """The log names failures alone: a test that isn't named has passed (eval_type fail_only)."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    expected: dict[str, str] | None = None
    """Test → status, all of which must be as here and none besides (R2E-Gym); None: the two fields above decide."""
    timeout_s: float = Field(1800.0, gt=0)
    """Of all tests of one grade."""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """What the record holds besides, e.g. difficulty and creation date; shown, never used."""
