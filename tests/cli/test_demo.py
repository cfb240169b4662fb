from __future__ import annotations

import json

import attrs
import pytest

from spotkit.cli import compare as compare_module
from spotkit.cli.compare import LINES, Comparison, Measured
from spotkit.cli.demo import verdict
from spotkit.embedded import Problem
from spotkit.results import RowResult, Stats

FIELDS = {
    "strategy": str, "budget": int, "window": int, "passes": int, "steps_per_pass": float, "pass_reduction": float,
    "tokens_per_second": float, "identical": bool,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _short(tiny, monkeypatch):
    monkeypatch.setattr(compare_module, "MAX_NEW_TOKENS", 20)


def differ(monkeypatch):
    """Makes FreeDave write another last token."""
    original = compare_module.decode

    def decode(target, prompts, *, strategy, config):
        result = original(target, prompts, strategy=strategy, config=config)
        if type(strategy.drafter).__name__ == "FreeDave":
            row = result.rows[0]
            changed = attrs.evolve(row, tokens=(*row.tokens[:-1], row.tokens[-1] ^ 1))
            return attrs.evolve(result, rows=(changed,))
        return result

    monkeypatch.setattr(compare_module, "decode", decode)


def test_json_is_one_object_with_every_strategy(spotkit):
    result = spotkit("demo", "--json", "--problems", 2)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["prompts"], found["identical"]) == (2, True)
    assert 0 <= found["accuracy"] <= 1
    assert [(s["strategy"], s["window"]) for s in found["strategies"]] == [(line.name, line.window) for line in LINES]
    for strategy in found["strategies"]:
        assert {name: type(value) for name, value in strategy.items()} == FIELDS
        assert strategy["identical"]
        assert strategy["pass_reduction"] == found["strategies"][0]["passes"] / strategy["passes"]
    plain, *others = found["strategies"]
    assert (plain["budget"], plain["steps_per_pass"]) == (1, 1.0)
    assert {s["budget"] for s in others} == {16}
    assert any(s["passes"] < plain["passes"] for s in others)


def test_the_page_fits_80_columns_and_needs_no_colour(spotkit):
    result = spotkit("demo", "--problems", 1)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for line in LINES:
        assert any(text.startswith(f"{line.label}: ") for text in lines)
    assert "wrote the same text in" in result.stdout
    assert "Problem 1 (the answer is 0): Ana has 0 pears." in result.stdout


def test_colours_where_the_terminal_has_them(spotkit, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    result = spotkit("demo", "--problems", 1, color=True)
    assert "\x1b[30;48;" in result.stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[30;48;" not in spotkit("demo", "--problems", 1, color=True).stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_exit_status_1_when_a_text_differs(spotkit, monkeypatch, options):
    differ(monkeypatch)
    result = spotkit("demo", "--problems", 1, *options)
    assert result.exit_code == 1
    if options:
        found = json.loads(result.stdout)
        assert [s["strategy"] for s in found["strategies"] if not s["identical"]] == ["freedave"]
        assert found["identical"] is False
    else:
        assert "NOT the text of plain decoding: freedave" in result.stdout
        assert "wrote the same text" not in result.stdout


@pytest.mark.parametrize("count", [0, 6])
def test_more_problems_than_there_are(spotkit, count):
    result = spotkit("demo", "--problems", count)
    assert result.exit_code == 2
    assert result.stderr == f"error: problems={count}: give a number from 1 to 5\n"


@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_the_verdict_says_so_when_fewer_passes_were_no_faster(seconds):
    def measured(line, passes, seconds):
        stats = Stats(passes=passes, steps=40, new_tokens=40, seconds=seconds)
        return Measured(line, (RowResult((), "eos", (), (), stats),), True)

    lines = (measured(LINES[0], 40, 1.0), measured(LINES[4], 10, seconds))
    sentence = verdict(Comparison((Problem("", "", 1),), (1,), lines, 1))
    assert sentence.startswith(
        "spot, window 2 wrote the same text in 10 passes where plain decoding took 40, 4.0 times fewer, "
        "on 1 held-out problem of which the model got 1 right."
    )
    assert ("each of its passes took 20.0 times as long" in sentence) == (seconds == 5.0)
