from __future__ import annotations

import json
from pathlib import Path

import pytest

CASES = Path(__file__).parent.parent / "data" / "conformance" / "cases"


def test_official_cases_pass(spotkit):
    result = spotkit("conformance", CASES / "sdar.json", CASES / "trado.json")
    assert result.exit_code == 0, result.output
    first, second, last = result.stdout.splitlines()
    passed = [int(line.split(": ")[1].split(" passed")[0]) for line in (first, second)]
    assert last == f"{sum(passed)} passed, 0 failed"


def test_a_failure_shows_the_first_difference_and_gives_status_1(spotkit, tmp_path):
    content = json.loads((CASES / "sdar.json").read_text())
    content["checkpoint"] = str((CASES.parent / content["checkpoint"]).resolve())
    content["cases"] = content["cases"][:2]
    content["cases"][1]["expected_ids"][-1] += 1
    (tmp_path / "cases").mkdir()
    file = tmp_path / "cases" / "changed.json"
    file.write_text(json.dumps(content))
    result = spotkit("conformance", file)
    assert result.exit_code == 1
    first, last = result.stdout.splitlines()
    assert first.startswith(f"{content['family']}: 1 passed, 1 failed; first: {content['cases'][1]['id']}: position")
    assert last == "1 passed, 1 failed"


def test_what_is_no_case_file_is_refused(spotkit, tmp_path):
    (tmp_path / "x.json").write_text("[]")
    result = spotkit("conformance", tmp_path / "x.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert spotkit("conformance", tmp_path / "none.json").exit_code == 2


@pytest.fixture
def changed(tmp_path):
    """Writes the first official SDAR case to a file, its content and its case changed."""

    def write(content, case):
        given = json.loads((CASES / "sdar.json").read_text())
        given["checkpoint"] = str((CASES.parent / given["checkpoint"]).resolve())
        given["cases"] = [{**given["cases"][0], **case}]
        file = tmp_path / "cases" / "changed.json"
        file.parent.mkdir()
        file.write_text(json.dumps({**given, **content}))
        return file

    return write


@pytest.mark.parametrize(
    "content",
    [{"cases": 5}, {"cases": [{}]}, {"cases": ["a"]}, {"cases": [{"id": 1}]}, {"checkpoint": 5}, {"family": 1}],
)
def test_a_file_of_wrong_types_is_refused(spotkit, changed, content):
    result = spotkit("conformance", changed(content, {}))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "case" in result.stderr


@pytest.mark.parametrize(
    "case",
    [
        {"prompt_ids": 5},
        {"prompt_ids": None},
        {"expected_ids": 5},
        {"block_length": "four"},
        {"block_length": None},
        {"gen_length": [4]},
        {"forward_calls": "many"},
        {"rule": 5},
        {"denoising_steps": {}},
        {"temperature": "hot"},
    ],
)
def test_a_case_of_wrong_types_is_named(spotkit, changed, case):
    result = spotkit("conformance", changed({}, case))
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "case " in result.stderr or str(*case) in result.stderr
