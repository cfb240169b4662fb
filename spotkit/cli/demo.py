"""`spotkit demo`: the same text in fewer passes, to be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotkit.cli import options, terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from spotkit.cli.compare import Comparison, Measured
    from spotkit.protocols import Target

_SHOWN = 3
_FOR_JSON = 20
_BLOCK_LENGTH = 16


def demo(
    problems: Annotated[
        int | None, typer.Option(help=f"Held-out problems. Default: {_SHOWN}, with --json {_FOR_JSON}.")
    ] = None,
    json_: options.Json = False,
) -> None:
    """Decode the same problems plainly and with drafts, and show when every token was written.

    Exit status 1 if any text differs from plain decoding's.
    """
    from spotkit.cli.compare import LINES, compare, held_out
    from spotkit.cli.targets import load_target

    chosen = held_out(problems if problems is not None else _FOR_JSON if json_ else _SHOWN)
    target = load_target("embedded", block_length=_BLOCK_LENGTH)
    with terminal.progress() as bars:
        task = bars.add_task("decoding", total=len(chosen) * len(LINES))
        found = compare(target, chosen, on_decoded=lambda: bars.advance(task))
    if json_:
        terminal.print_json({**found.fields(), "model": "embedded", "rule": "static", "block_length": _BLOCK_LENGTH})
    else:
        show(terminal.console(), target, found)
    if not found.identical:
        raise typer.Exit(1)


def show(page: Console, target: Target, found: Comparison) -> None:
    """The picture, the table, and what was seen."""
    from spotkit.cli.picture import legend

    last = max(row.stats.passes for row in found.plain.rows)
    page.print(f"The same problems, decoded in {len(found.lines)} ways. A pass is one call of the model.")
    page.print()
    page.print(legend(page, last))
    for index in range(min(_SHOWN, len(found.problems))):
        # All ways once; after that, the two ends are enough.
        drawn = found.lines if index == 0 else (found.plain, best(found))
        _show_problem(page, target, found, index, drawn, last)
    page.print()
    page.print(summary_table(found))
    page.print()
    page.print(verdict(found))


def _show_problem(
    page: Console, target: Target, found: Comparison, index: int, drawn: tuple[Measured, ...], last: int
) -> None:
    from spotkit.cli.picture import draw, pieces

    problem = found.problems[index]
    page.print()
    page.print(f"Problem {index + 1} (the answer is {problem.answer}): {problem.question}")
    for measured in drawn:
        row = measured.rows[index]
        page.print()
        page.print(f"{measured.line.label}: {row.stats.passes} passes")
        draw(page, pieces(target, row, found.prompt_lengths[index]), last)


def summary_table(found: Comparison) -> Table:
    """One row per way of decoding, over all problems."""
    table = terminal.table(
        "strategy", "budget", "passes", "steps\nper pass", "pass\nreduction", "tokens\nper second", "identical\ntext"
    )
    for measured in found.lines:
        stats = measured.stats
        table.add_row(
            measured.line.label,
            str(measured.line.budget),
            str(stats.passes),
            f"{stats.steps_per_pass:.2f}",
            f"{found.reduction(measured):.2f}x",
            f"{stats.tokens_per_second:.0f}",
            "yes" if measured.identical else "NO",
        )
    return table


def best(found: Comparison) -> Measured:
    """The way with the fewest passes."""
    return min(found.lines, key=lambda measured: measured.stats.passes)


def verdict(found: Comparison) -> str:
    """What was seen, in one sentence."""
    wrong = [measured.line.label for measured in found.lines if not measured.identical]
    if wrong:
        return f"NOT the text of plain decoding: {', '.join(wrong)}. This is a fault; please report it."
    fewest = best(found)
    count = len(found.problems)
    seen = (
        f"{fewest.line.label} wrote the same text in {fewest.stats.passes} passes where plain decoding took "
        f"{found.plain.stats.passes}, {found.reduction(fewest):.1f} times fewer, on {count} held-out "
        f"problem{'s' if count > 1 else ''} of which the model got {found.right} right."
    )
    if fewest.stats.tokens_per_second > found.plain.stats.tokens_per_second:
        return seen
    longer = fewest.stats.seconds / fewest.stats.passes * found.plain.stats.passes / found.plain.stats.seconds
    return (
        f"{seen} It was no faster here, as each of its passes took {longer:.1f} times as long: this machine pays for "
        f"every state that a pass scores."
    )
