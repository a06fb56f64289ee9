"""The interactive figure of a trace, in a browser; and the recorded trace of the site."""

import pytest

from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.report.html_report import report_page
from specdec_core.trace.figure import trace_page
from tests.docs.pages import ROOT, load
from tests.study.summaries import baseline, output, run

trace_figure = load(ROOT / "docs" / "trace_figure.py")


@pytest.mark.slow
def test_the_recorded_trace_is_a_decoding_of_the_models_that_ship(tmp_path):
    recorded, again = trace_figure.read(), trace_figure.record()
    trace_figure.write(again, tmp_path / "trace.json")
    again = trace_figure.read(tmp_path / "trace.json")
    assert recorded.keys() == again.keys()
    for one, other in zip(recorded["steps"], again["steps"], strict=True):
        for item, found in zip(one["items"], other["items"], strict=True):
            assert (item["text"], item["fate"]) == (found["text"], found["fate"])
            for name in {"p", "q", "r"} & item.keys():
                assert item[name] == pytest.approx(found[name], rel=1e-3, abs=1e-6)


def test_the_site_shows_the_figure_in_place_of_its_marker():
    page = trace_figure.on_page(f"<p>before</p>{trace_figure.MARKER}<p>after</p>")
    assert page.startswith("<p>before</p><style>")
    assert page.count('<figure class="specdec-trace"') == 1
    assert page.count("<section ") == len(trace_figure.read()["steps"])
    assert trace_figure.on_page("<p>no marker</p>") == "<p>no marker</p>"
    assert trace_figure.MARKER in (ROOT / "docs" / "how-a-step-works.md").read_text(encoding="utf-8")


@pytest.fixture
def figure(chrome, tmp_path):
    page = tmp_path / "trace.html"
    page.write_text(trace_page([trace_figure.read()], "A trace"), encoding="utf-8")
    chrome.get(page.as_uri())
    assert not [entry for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]
    return chrome.find_element("css selector", ".specdec-trace")


def shown(figure, selector):
    return [one for one in figure.find_elements("css selector", selector) if one.is_displayed()]


@pytest.mark.slow
def test_keys_lead_through_steps_and_tokens(chrome, figure):
    from selenium.webdriver.common.keys import Keys

    steps = trace_figure.read()["steps"]

    def check(step, token):
        (section,) = shown(figure, "section")
        assert section.get_attribute("aria-label") == f"Step {step + 1}"
        items = steps[step]["items"]
        buttons = section.find_elements("css selector", "button")
        assert [one.get_attribute("class") for one in buttons] == [one["fate"] for one in items if "top" in one]
        pressed = [one.get_attribute("aria-pressed") for one in buttons]
        assert pressed == ["true" if index == token else "false" for index in range(len(buttons))]
        (detail,) = shown(figure, ".detail")
        tested = [one for one in items if "top" in one][token]
        name = "the bonus token" if tested["fate"] == "bonus" else tested["fate"]
        assert f"is {name}: " in detail.text
        assert f"{tested['r']:.4f}" in detail.text
        # What a screen reader says.
        status = figure.find_element("css selector", "[role=status]")
        assert status.get_attribute("aria-live") == "polite"
        assert status.text.startswith(f"Step {step + 1} of {len(steps)}: ")

    def press(*keys):
        for key in keys:
            chrome.switch_to.active_element.send_keys(key)

    check(0, 0)
    chrome.execute_script("document.activeElement.blur()")
    press(Keys.TAB)
    assert chrome.switch_to.active_element.text == "First", "the focus begins at the buttons"
    press(Keys.ARROW_LEFT)
    check(0, 0)
    press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    check(2, 1)
    press(Keys.ARROW_UP, Keys.ARROW_LEFT)
    check(1, 0)
    press(Keys.END, Keys.ARROW_RIGHT)
    check(len(steps) - 1, 0)
    press(Keys.HOME)
    check(0, 0)
    press(*[Keys.TAB] * 4)
    focused = chrome.switch_to.active_element
    assert focused.get_attribute("aria-pressed") == "true", "then come the tokens of the step"
    press(Keys.ARROW_RIGHT)
    check(1, 0)
    assert chrome.switch_to.active_element.get_attribute("aria-pressed") == "true", "the focus stays on a token"
    press(Keys.TAB, Keys.ENTER)
    check(1, 1)


def test_the_report_leads_to_the_figure_of_a_run_and_its_policy_allows_the_script(chrome, tmp_path):
    from selenium.webdriver.common.keys import Keys

    recorded = {"prompt": 0, **trace_figure.read()}
    runs = [baseline(), run("first"), run("second")]
    outputs = {(None, one.name): [output("Some text.")] for one in runs}
    prompts = {None: [PromptText("one", trace_figure.PROMPT)]}
    traces = {(None, "first"): recorded, (None, "second"): recorded}
    page = tmp_path / "report.html"
    page.write_text(report_page("study.yaml", runs, outputs, prompts, traces=traces), encoding="utf-8")
    chrome.get(page.as_uri())
    assert not [entry for entry in chrome.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    figures = chrome.find_elements("css selector", ".specdec-trace")
    assert [one.is_displayed() for one in figures] == [True, False]
    chrome.find_elements("link text", "Step by step")[1].send_keys(Keys.ENTER)
    assert [one.is_displayed() for one in figures] == [True, True]
    buttons = figures[1].find_element("css selector", "[data-go='first']")
    buttons.send_keys(Keys.ARROW_RIGHT)
    status = [one.find_element("css selector", "[role=status][aria-live=polite]").text[:6] for one in figures]
    assert status == ["Step 1", "Step 2"], "each figure has its own step"
    for one, step in zip(figures, (1, 2), strict=True):
        (section,) = shown(one, "section")
        assert section.get_attribute("aria-label") == f"Step {step}"
