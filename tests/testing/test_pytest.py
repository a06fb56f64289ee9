"""The kit in test files: classes, and a decorated function."""

from __future__ import annotations

import pytest

from specdec_core.testing import checks_for

pytest_plugins = ["pytester"]

HEAD = """
    import pytest
    from specdec_core import DeterministicDrafter, PluginConfig
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
    # pytester unloads the modules that a run has imported. Torch must stay loaded, so it is imported before.
    for kind in ("drafter", "gamma", "lenience"):
        checks_for(kind)


@pytest.fixture(autouse=True)
def _few_plugins(pytester, monkeypatch):
    # Each run would import hypothesis again to report nothing.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:xdist -p no:pytest_cov")


@pytest.fixture
def run(pytester):
    """Return a function that runs pytest on a test file and returns the result."""

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


def test_make_overrides_how_an_installed_plugin_is_built(run):
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


def test_a_failure_has_no_traceback_of_the_kit(run):
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
            "budget-respected: No draft is longer than its budget.",
            "did: *opened a session for *",
            "got: *5 tokens were proposed for row 0; its budget was 4.",
            "expected: a Proposal for 4 row(s): *, at most ?4, 4, 4, 4? of them*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*raise *")


@pytest.mark.parametrize(
    ("kit", "line", "returns"),
    [
        ("DrafterKit", "pass", "a function that takes a TargetInfo and returns a Drafter"),
        ("DrafterKit", "def make(self): return None", "a function that takes a TargetInfo and returns a Drafter"),
        ("GammaKit", "make = Mine", "a function without arguments that returns a GammaController"),
    ],
)
def test_a_class_without_its_fixture(run, kit, line, returns):
    result = run(f"    class TestMine({kit}):\n        {line}\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*TestMine: it has nothing to check.*@pytest.fixture*must return {returns}."])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('plugin = "prompt-copy"; settings = {"min_mach": 1}', "*unknown key 'min_mach'*"),
        ('plugin = "random"; device = "nonsense"', "*device 'nonsense': torch cannot use it*"),
        ('plugin = "promt-copy"', "*unknown drafter 'promt-copy'. Did you mean 'prompt-copy'*"),
        (
            'plugin = "random"; require = ("saves-target-cals",)',
            "*TestMine: require: unknown drafter check 'saves-target-cals'. Did you mean 'saves-target-calls'*",
        ),
        (
            'plugin = "random"; expected_failures = {"losless": "why"}',
            "*TestMine: expected_failures: unknown drafter check 'losless'. Did you mean 'lossless'*",
        ),
    ],
)
def test_a_class_with_a_name_that_does_not_exist(run, line, message):
    result = run(f"    class TestMine(DrafterKit):\n        {line}\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('device = "nonsense"', "*device 'nonsense': torch cannot use it. Available: cpu*"),
    ],
)
def test_a_class_without_a_target_or_device(run, line, message):
    fixture = (
        "        @pytest.fixture\n        def make(self): return lambda target: Mine(PluginConfig(), target)\n"
    )
    result = run(f"    class TestMine(DrafterKit):\n        {line}\n{fixture}")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_failures_with_one_cause_are_shown_once(run):
    result = run(
        """
    class TestGreedy(DrafterKit):
        @pytest.fixture
        def make(self):
            return lambda target: Greedy(PluginConfig(), target)
""",
        "-k",
        "budget-respected or ids-in-range",
    )
    assert result.parseoutcomes()["failed"] == 2
    assert result.stdout.str().count("did:") == 1
    result.stdout.fnmatch_lines(["ids-in-range: the same cause as budget-respected, which is shown in full.*"])


ENDLESS = """
    class Endless(DeterministicDrafter):
        def draft(self, tokens, budget):
            while True:
                pass

    class TestEndless(DrafterKit):
        timeout = 0.5
        @pytest.fixture
        def make(self):
            return lambda target: Endless(PluginConfig(), target)

    @parametrize_with_checks("drafter", lambda target: Endless(PluginConfig(), target), timeout=0.5)
    def test_endless(check):
        check()
"""


def test_a_check_that_does_not_end_is_stopped(run):
    result = run(ENDLESS, "-k", "budget-respected")
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(["got: *no end after*", "*while True:*"])


def test_after_three_checks_that_do_not_end_the_others_are_skipped(run):
    result = run(ENDLESS, "-k", "TestEndless and (budget or ids-in-range or q-sums or ragged)", "-rs")
    assert result.parseoutcomes()["failed"] == 3
    result.stdout.fnmatch_lines(["*3 checks in a row did not end; `-k ids-in-range` runs it*"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("def maek(self): return None", "*TestMine: a kit has no attribute maek. Did you mean 'make'*"),
        ("def Make(self): return None", "*TestMine: a kit has no attribute Make. Did you mean 'make'*"),
        ("setings = {}", "*TestMine: a kit has no attribute setings. Did you mean 'settings'*"),
        ("expected_failure = {}", "*Did you mean 'expected_failures'*"),
    ],
)
def test_a_class_with_a_misspelt_attribute(run, line, message):
    result = run(f"    class TestMine(DrafterKit):\n        plugin = 'random'\n        {line}\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])


def test_a_class_may_have_fixtures_and_tests_of_its_own(run):
    result = run(
        """
    class TestMine(DrafterKit):
        plugin = "random"
        sizes = (1, 2)
        @pytest.fixture
        def folder(self, tmp_path):
            return tmp_path
        def test_more(self, folder):
            assert folder.exists()
""",
        "-k",
        "ids-in-range or test_more",
    )
    assert result.parseoutcomes()["passed"] == 2


def test_a_class_whose_plugin_lacks_settings_is_told_which(run):
    result = run("    class TestMine(DrafterKit):\n        plugin = 'ngram'\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*and in a kit class with", '*settings = {"arpa": FILE, "text": TEXT, *}'])


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


def test_an_expected_failure_that_passes(run):
    result = run(EXPECTING % "Mine", "-k", "budget-respected")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["it passed, but was expected to fail: one too many*", "Remove it from *"])


def test_every_expected_failure_that_passes_says_so(run):
    source = (EXPECTING % "Mine").replace("}\n", ', "ids-in-range": "another reason"}\n', 1)
    result = run(source, "-k", "budget-respected or ids-in-range")
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines_random(
        [
            "it passed, but was expected to fail: one too many*",
            "it passed, but was expected to fail: another reason",
        ]
    )
    result.stdout.no_fnmatch_line("*the same cause as*")


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
    assert run(SILENT % "", "-k", "drafts-tokens").parseoutcomes()["xfailed"] == 1


def test_an_optional_check_that_is_required(run):
    assert run(SILENT % '"drafts-tokens",', "-k", "drafts-tokens").parseoutcomes()["failed"] == 1


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
