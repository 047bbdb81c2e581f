"""Runs in a box: pytest, in one process with code that a model wrote, and a plugin that tells what became of each test.

It reads one JSON object from stdin: key, results (a file descriptor), arguments, canaries, bundle, python_path. Each
line that it writes to `results` is signed with the key and numbered, so that a line of somebody else, or one that is
missing, is seen. Everything that is needed is loaded before any code of the repository, and kept where no name leads to
it. What can't be kept from code in the same process is told in docs/limits.md.

Python 3.6, pytest 6 or later.
"""

import contextlib
import hashlib
import json
import operator
import os
import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FINGERPRINTED = ("_pytest", "pluggy")
FINGERPRINTED_MODULES = ("unittest.case", "pytest")
IDS_PER_LINE = 500
MAX_PLANTED = 500
MAX_TEXT_CHARACTERS = 2000
"""Of why a test failed."""


def main() -> "None":
    request = json.load(sys.stdin)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    try:
        import pytest
    except ImportError:
        sys.path.append(request["bundle"])
        import pytest
    import unittest.case

    assert unittest.case
    plugin = make_plugin(pytest, request, make_tell(request["key"], request["results"]))
    arguments = request["arguments"] + own_arguments()
    request.clear()
    end = os._exit
    code = pytest.main(arguments, plugins=[plugin])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the code may have put anything there
            stream.flush()
    end(int(code))


def own_arguments() -> "list[str]":
    from importlib.util import find_spec

    words = "-p no:cacheprovider -p no:randomly -rN --tb=short --no-header --color=no --maxfail=0"
    return words.split() + ["--continue-on-collection-errors"] + (["-n0"] if find_spec("xdist") else [])


def make_tell(key: "str", results: "int") -> "Any":
    """The one function that writes results. It holds what it uses, whatever is patched later."""
    dumps, write, blake, secret = json.JSONEncoder().encode, os.write, hashlib.blake2b, bytes.fromhex(key)
    count = [0]

    def tell(**event: "Any") -> "None":
        event["n"] = count[0]
        count[0] += 1
        text = dumps(event).encode()
        line = blake(text, key=secret, digest_size=16).hexdigest().encode() + b" " + text + b"\n"
        while line:
            line = line[write(results, line) :]

    return tell


def no_fingerprint() -> "Any":
    return None


def make_fingerprint() -> "Any":
    """A function that names what was replaced since then in pytest, pluggy and unittest; None: nothing was."""
    kept: list[tuple[str, Any, list[str], list[Any]]] = []
    function = type(make_fingerprint)
    kinds = (function, type, property, staticmethod, classmethod)
    for name, module in sorted(sys.modules.items()):
        if name in FINGERPRINTED_MODULES or name.split(".")[0] in FINGERPRINTED:
            places = [module] + [each for each in vars(module).values() if isinstance(each, type)]
            for place in places:
                if place is module or getattr(place, "__module__", None) == name:
                    values = {word: value for word, value in vars(place).items() if isinstance(value, kinds)}
                    kept.append((place.__name__, vars(place), list(values), list(values.values())))
    inner = [getattr(each, "__func__", getattr(each, "fget", each)) for _, _, _, values in kept for each in values]
    functions = [each for each in inner if isinstance(each, function)]
    codes = [each.__code__ for each in functions]
    # It is asked after every test, of thousands of names: so without loops, or words that the tests could redefine.
    every, apply, is_same, code_of = all, map, operator.is_, operator.attrgetter("__code__")

    def replaced() -> "Any":
        for place, names, words, values in kept:
            if not every(apply(is_same, apply(names.get, words), values)):
                now = [word for word, value in zip(words, values) if names.get(word) is not value]  # noqa: B905
                return ".".join([place, *now[:1]])
        if not every(apply(is_same, apply(code_of, functions), codes)):
            return "the code of pytest"
        return None

    return replaced


def make_plugin(pytest: "Any", request: "dict[str, Any]", tell: "Any") -> "Any":
    canaries, top = tuple(request["canaries"]), os.getcwd()
    folders = [os.path.join(top, folder) for folder in request["python_path"]]
    must_fail, words = request["must_fail"], list(request["planted"])
    fingerprint = [no_fingerprint]
    codes: dict[str, tuple[Any, Any]] = {}
    skips = (pytest.skip.Exception, pytest.xfail.Exception)
    choose = random.SystemRandom()

    def is_canary(item: "Any") -> "bool":
        return item.nodeid.split("::")[0].rpartition("/")[2] in canaries

    def code_of(item: "Any") -> "tuple[Any, Any]":
        """The function, which plugins may wrap, and what it does as long as nobody changes that."""
        test = getattr(item, "obj", None)
        function = getattr(test, "__func__", test)
        return function, getattr(function, "__code__", None)

    def where(error: "Any") -> "list[str]":
        """The files through which a skip came."""
        found = []
        trace = error.tb
        while trace is not None:
            found.append(os.path.relpath(trace.tb_frame.f_code.co_filename, top))
            trace = trace.tb_next
        return found

    class Reporter:
        @pytest.hookimpl
        def pytest_load_initial_conftests(self) -> "None":
            """As `python -m pytest` does; not earlier, or the repository could bring plugins by its metadata.

            Pytest's own hooks and other plugins have patched what they do by now; the repository isn't loaded yet.
            """
            sys.path[:0] = [top, *folders]
            if folders:  # for what the tests start
                os.environ["PYTHONPATH"] = os.pathsep.join(folders)
            fingerprint[0] = make_fingerprint()

        @pytest.hookimpl(hookwrapper=True)
        def pytest_collection_modifyitems(self, items: "list[Any]") -> "Any":
            """Among the tests of each module comes one that must fail; nobody can tell it by its place or name."""
            own = [item for item in items if is_canary(item)]
            yield
            items[:] = [item for item in items if not is_canary(item)]
            last: dict[str, list[tuple[int, Any]]] = {}
            for place, item in enumerate(items):
                module = item.getparent(pytest.Module)
                if module is not None:
                    last.setdefault(module.nodeid, []).append((place, module))
            failing = [item.obj for item in own if item.name in must_fail]
            new = []
            for name in sorted(last)[: MAX_PLANTED if failing else 0]:
                place, module = choose.choice(last[name])
                word = words.pop() if words else f"test_{choose.getrandbits(40):x}"
                planted = pytest.Function.from_parent(module, name=word, callobj=choose.choice(failing))
                tell(event="planted", id=planted.nodeid)
                new.append((place, planted))
            for place, planted in sorted(new, key=lambda pair: -pair[0]):
                items.insert(place + 1, planted)
            half = len(own) // 2
            items[:] = own[:half] + items + own[half:]
            codes.update((item.nodeid, code_of(item)) for item in items)
            ids = [item.nodeid for item in items]
            for start in range(0, len(ids), IDS_PER_LINE):
                tell(event="collected", ids=ids[start : start + IDS_PER_LINE])

        @pytest.hookimpl(trylast=True)
        def pytest_collectreport(self, report: "Any") -> "None":
            if report.outcome == "failed":
                tell(event="collect", id=report.nodeid, text=str(report.longrepr)[-MAX_TEXT_CHARACTERS:])

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item: "Any", call: "Any") -> "Any":
            outcome = yield
            report = outcome.get_result()
            function, code = codes.get(item.nodeid, (None, None))
            if getattr(function, "__code__", None) is not code:
                tell(event="tampered", what=f"{item.nodeid} was replaced")
            raised = call.excinfo
            status, is_expected = report.outcome, hasattr(report, "wasxfail")
            if raised is not None and not raised.errisinstance(skips) and status == "passed":
                tell(event="tampered", what=f"a report says that {item.nodeid} passed, but it raised")
            if status == "skipped":
                status = "xfailed" if is_expected else "skipped"
            elif status == "passed" and is_expected:
                status = "xpassed"
            elif status == "failed" and call.when != "call":
                status = "error"
            if call.when == "call" or status != "passed":
                through = where(raised) if raised is not None and raised.errisinstance(skips) else []
                text = str(report.longrepr)[-MAX_TEXT_CHARACTERS:] if status in ("failed", "error") else ""
                tell(event="result", id=item.nodeid, status=status, through=through, text=text)

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logfinish(self) -> "None":
            check()

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(self, exitstatus: "Any") -> "None":
            check()
            tell(event="seal", exit_code=int(exitstatus), version=pytest.__version__)

    def check() -> "None":
        name = fingerprint[0]()
        if name is not None:
            tell(event="tampered", what=f"{name} was replaced")

    return Reporter()


if __name__ == "__main__":
    main()
