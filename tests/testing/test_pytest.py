"""The kit under pytest: classes, one decorated function, and the option `--specdec`."""

from __future__ import annotations

import sys

import pytest

from specdec_core.testing import checks

pytest_plugins = ["pytester"]

HEAD = """
    import pytest
    from specdec_core import Capabilities, DeterministicDrafter, PluginConfig
    from specdec_core.testing import DrafterKit, GammaKit, parametrize_with_checks

    class Mine(DeterministicDrafter):
        def draft(self, tokens, budget):
            return [tokens[-1]] * budget

    class Greedy(DeterministicDrafter):
        def draft(self, tokens, budget):
            return [2] * (budget + 1)
"""


@pytest.fixture(autouse=True, scope="module")
def _loaded():
    # What is imported before a run within the process stays imported behind it; torch is to be loaded once.
    for kind in ("drafter", "gamma", "lenience"):
        checks(kind)


@pytest.fixture
def run(pytester):
    """Return a function that runs a test file and gives back what pytest said."""

    def run_file(source, *arguments):
        pytester.makepyfile(test_mine=HEAD + source)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)

    return run_file


def test_a_class_with_the_fixture_make(run):
    result = run(
        """
    class TestMine(DrafterKit):
        @pytest.fixture
        def make(self, tmp_path):
            return lambda target: Mine(PluginConfig(), target)
""",
        "-v",
        "-k",
        "full-capacity or ids-in-range",
    )
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*::TestMine::test_conforms?ids-in-range? PASSED*"])


def test_a_class_that_names_an_installed_plugin(run):
    result = run(
        """
    class TestCopying(DrafterKit):
        plugin = "prompt-copy"
        settings = {"min_match": 2}
""",
        "-k",
        "budget-respected",
    )
    assert result.parseoutcomes()["passed"] == 1


def test_an_installed_plugin_may_be_made_otherwise(run):
    result = run(
        """
    class TestCopying(DrafterKit):
        plugin = "prompt-copy"
        @pytest.fixture
        def make(self):
            return lambda target: Greedy(PluginConfig(), target)
""",
        "-k",
        "budget-respected",
    )
    assert result.parseoutcomes()["failed"] == 1


def test_a_failure_is_told_without_a_traceback_of_the_kit(run):
    result = run(
        """
    class TestGreedy(DrafterKit):
        @pytest.fixture
        def make(self):
            return lambda target: Greedy(PluginConfig(), target)
""",
        "-k",
        "budget-respected",
    )
    result.stdout.fnmatch_lines(
        [
            "budget-respected: No row drafts more tokens than its budget.",
            "did: *opened a session for *",
            "got: *5 tokens in row 0",
            "expected: at most 4",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*raise *")


@pytest.mark.parametrize(
    ("kit", "returns"),
    [
        ("DrafterKit", "a function that takes a TargetInfo and returns a Drafter"),
        ("GammaKit", "a function without arguments that returns a GammaController"),
    ],
)
def test_a_class_without_its_fixture(run, kit, returns):
    result = run(f"    class TestMine({kit}):\n        pass\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            f"*TestMine does not say what to judge.*override the fixture `make`, which must return {returns}:",
            f"*class TestMine({kit}):",
            "*def make(self):",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('plugin = "prompt-copy"; settings = {"min_mach": 1}', "*unknown key 'min_mach'*"),
        ('plugin = "random"; device = "nonsense"', "*device 'nonsense': torch cannot compute there*"),
        ('plugin = "promt-copy"', "*unknown drafter 'promt-copy'. Did you mean 'prompt-copy'*"),
        (
            'plugin = "random"; require = ("saves-cals",)',
            "*TestMine.require: unknown drafter check 'saves-cals'. Did you mean 'saves-calls'*",
        ),
        (
            'plugin = "random"; expected_failures = {"losless": "why"}',
            "*TestMine.expected_failures: unknown drafter check 'losless'. Did you mean 'lossless'*",
        ),
    ],
)
def test_a_class_with_a_name_that_does_not_exist(run, line, message):
    result = run(f"    class TestMine(DrafterKit):\n        {line}\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("kit", "make", "returns"),
    [
        ("DrafterKit", "def make(self): return None", "a function that takes a TargetInfo and returns a Drafter"),
        ("GammaKit", "make = Mine", "a function without arguments that returns a GammaController"),
    ],
)
def test_a_class_whose_make_is_no_fixture(run, kit, make, returns):
    result = run(f"    class TestMine({kit}):\n        {make}\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    message = f"*TestMine.make is no fixture: put @pytest.fixture above it. It must return {returns}."
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("capabilities = Capabilities(max_batch=0)", "*max_batch is 0; it must be at least 1*"),
        ('device = "nonsense"', "*device 'nonsense': torch cannot compute there. There is: cpu*"),
    ],
)
def test_a_class_with_nothing_to_try(run, line, message):
    fixture = (
        "        @pytest.fixture\n        def make(self): return lambda target: Mine(PluginConfig(), target)\n"
    )
    result = run(f"    class TestMine(DrafterKit):\n        {line}\n{fixture}")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


EXPECTING = """
    class TestGreedy(DrafterKit):
        expected_failures = {"budget-respected": "one too many, for the demonstration"}
        @pytest.fixture
        def make(self):
            return lambda target: %s(PluginConfig(), target)
"""


def test_an_expected_failure(run):
    result = run(EXPECTING % "Greedy", "-k", "budget-respected", "-rx")
    assert result.parseoutcomes()["xfailed"] == 1
    result.stdout.fnmatch_lines(["*one too many, for the demonstration*"])


def test_an_expected_failure_that_does_not_come(run):
    result = run(EXPECTING % "Mine", "-k", "budget-respected")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["it passed, but was expected to fail: one too many*", "Take it out of *"])


def test_what_a_drafter_declares_says_which_checks_apply(run):
    result = run(
        """
    class TestMine(DrafterKit):
        capabilities = Capabilities(max_batch=1)
        @pytest.fixture
        def make(self):
            return lambda target: Mine(PluginConfig(), target)
""",
        "-k",
        "ragged-rows or budget-respected",
        "-rs",
    )
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["skipped"]) == (1, 1)
    result.stdout.fnmatch_lines(["*it declares that it drafts for one row at a time*"])


SILENT = """
    class Silent(DeterministicDrafter):
        def draft(self, tokens, budget):
            return []

    class TestSilent(DrafterKit):
        require = (%s)
        @pytest.fixture
        def make(self):
            return lambda target: Silent(PluginConfig(), target)
"""


def test_an_optional_check_fails_nothing_unless_required(run):
    assert run(SILENT % "", "-k", "drafts-something").parseoutcomes()["xfailed"] == 1


def test_an_optional_check_that_is_required(run):
    assert run(SILENT % '"drafts-something",', "-k", "drafts-something").parseoutcomes()["failed"] == 1


def test_one_decorated_function(run):
    result = run(
        """
    @parametrize_with_checks("drafter", lambda target: Greedy(PluginConfig(), target),
                             expected_failures={"budget-respected": "one too many"})
    def test_greedy(check):
        check()
""",
        "-v",
        "-k",
        "budget-respected or ragged-rows",
    )
    outcomes = result.parseoutcomes()
    assert (outcomes["failed"], outcomes["xfailed"]) == (1, 1)
    result.stdout.fnmatch_lines(["*::test_greedy?ragged-rows? FAILED*"])


class TestTheOption:
    def test_judges_an_installed_plugin_without_a_test_file(self, pytester):
        result = pytester.runpytest_inprocess("--specdec", "drafter:random", "-k", "ids-in-range", "-v")
        assert result.parseoutcomes()["passed"] == 1
        result.stdout.fnmatch_lines(["specdec: *, plugin border 1.0", "drafter:random::ids-in-range PASSED*"])

    def test_leaves_the_tests_around_alone_unless_they_are_named(self, pytester):
        pytester.makepyfile(test_other="def test_it():\n    assert False\n")
        asked = ("--specdec", "drafter:random", "-k", "ids-in-range or test_it")
        assert pytester.runpytest_inprocess(*asked).parseoutcomes()["passed"] == 1
        both = pytester.runpytest_inprocess(*asked, "test_other.py").parseoutcomes()
        assert (both["passed"], both["failed"]) == (1, 1)

    def test_takes_settings_and_what_is_required(self, pytester):
        result = pytester.runpytest_inprocess(
            "--specdec",
            "drafter:prompt-copy",
            "--specdec-settings",
            "{min_match: 90, max_match: 90}",
            "--specdec-require",
            "drafts-something",
            "-k",
            "drafts-something",
        )
        assert result.parseoutcomes()["failed"] == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["drafter:promt-copy"], "*unknown drafter 'promt-copy'. Did you mean 'prompt-copy'*"),
            (["prompt-copy"], "*--specdec prompt-copy: expected KIND:NAME, e.g. drafter:prompt-copy.*"),
            (["darfter:random"], "*unknown kind of plugin 'darfter'. Did you mean 'drafter'*"),
            (["drafter:random", "--specdec-settings", "[1]"], "*expected a mapping of settings*"),
            (["drafter:prompt-copy", "--specdec-settings", "{a: 1}"], "*unknown key 'a'*"),
            (["drafter:random", "--specdec-device", "nonsense"], "*'nonsense': torch cannot compute there*"),
            (["drafter:random", "--specdec-require", "drafts"], "*--specdec-require: unknown drafter check*"),
        ],
    )
    def test_what_does_not_exist_is_a_usage_error(self, pytester, arguments, message):
        result = pytester.runpytest_inprocess("--specdec", *arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([message])

    def test_a_session_without_it_is_left_as_it_is(self, pytester):
        pytester.makepyfile("import sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n")
        done = pytester.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
        assert done.parseoutcomes() == {"passed": 1}
        done.stdout.no_fnmatch_line("*plugin border*")
