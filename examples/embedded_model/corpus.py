"""Multi-step arithmetic word problems with worked solutions, written by a seeded generator.

A problem follows one running quantity through two or three changes. Numbers stay small (results up to
99), so that a model of two million parameters can learn the arithmetic and not only the prose.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import attrs

NAMES = {
    "she": ["Mia", "Ana", "Lena", "Ruth", "Nora", "Ivy", "Clara", "Zoe", "Eva", "Maya", "Olga", "Sara"],
    "he": ["Tom", "Ben", "Leo", "Omar", "Max", "Jack", "Noah", "Finn", "Paul", "Hugo", "Sam", "Eli"],
}
PLACES = ["market", "school", "farm", "library", "park", "shop", "beach", "fair", "garden", "museum"]
THINGS = {
    "apples": "basket",
    "pears": "basket",
    "plums": "bag",
    "eggs": "box",
    "cookies": "tin",
    "muffins": "tray",
    "candies": "jar",
    "marbles": "bag",
    "stickers": "sheet",
    "coins": "purse",
    "stamps": "album",
    "books": "shelf",
    "pencils": "case",
    "crayons": "box",
    "cards": "deck",
    "shells": "bucket",
    "stones": "sack",
    "flowers": "vase",
    "roses": "vase",
    "beads": "jar",
    "buttons": "box",
    "balloons": "pack",
    "tickets": "roll",
    "toys": "chest",
}
PLURALS = {
    "box": "boxes", "vase": "vases", "shelf": "shelves", "purse": "purses", "case": "cases", "tray": "trays",
}  # fmt: skip
WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}

GAINS = [
    ("buys", "at the {place}", "buying"),
    ("finds", "at the {place}", "finding"),
    ("gets", "from {friend}", "getting"),
    ("wins", "at the {place}", "winning"),
    ("collects", "at the {place}", "collecting"),
    ("receives", "as a present", "receiving"),
    ("borrows", "from {friend}", "borrowing"),
]
LOSSES = [
    ("gives", "to {friend}", "giving away"),
    ("loses", "at the {place}", "losing"),
    ("sells", "at the {place}", "selling"),
    ("lends", "to {friend}", "lending"),
    ("drops", "on the way to the {place}", "dropping"),
    ("leaves", "at the {place}", "leaving behind"),
    ("trades", "with {friend}", "trading away"),
]


@attrs.frozen
class Problem:
    """One question, its worked solution and the number it ends in."""

    question: str
    solution: str
    answer: int


@attrs.frozen
class _Scene:
    """Who and what a problem is about; every sentence is filled from it."""

    name: str
    pronoun: str
    friend: str
    thing: str
    holder: str
    style: int

    @property
    def holders(self) -> str:
        return PLURALS.get(self.holder, self.holder + "s")

    @property
    def subject(self) -> str:
        return self.pronoun.capitalize()


def _scene(rng: random.Random) -> _Scene:
    pronoun = rng.choice(["she", "he"])
    name = rng.choice(NAMES[pronoun])
    friend = rng.choice([n for group in NAMES.values() for n in group if n != name])
    thing = rng.choice(list(THINGS))
    return _Scene(name, pronoun, friend, thing, THINGS[thing], rng.choice([0, 0, 1, 2, 2]))


def _opening(rng: random.Random, scene: _Scene) -> tuple[str, str, int]:
    """The first sentence of the question, the first of the solution, and the starting quantity."""
    s = scene
    if rng.random() < 0.4:
        count, each = rng.randint(2, 5), rng.randint(2, 9)
        word, total = WORDS[count], count * each
        text = rng.choice(
            [
                f"{s.name} has {word} {s.holders} with {each} {s.thing} in each.",
                f"{s.name} fills {word} {s.holders} and puts {each} {s.thing} in each {s.holder}.",
                f"There are {word} {s.holders} on {s.name}'s table, and each {s.holder} holds {each} {s.thing}.",
            ]
        )
        sum_ = f"{count} * {each} = {total}"
        work = [
            f"{word.capitalize()} {s.holders} of {each} {s.thing} make {sum_} {s.thing}.",
            f"Start: {sum_}.",
            f"First we count the {s.holders}: {sum_}, so {s.name} starts with {total} {s.thing}.",
        ][s.style]
        return text, work, total
    total = rng.randint(4, 30)
    text = rng.choice(
        [
            f"{s.name} has {total} {s.thing}.",
            f"{s.name} starts the day with {total} {s.thing}.",
            f"There are {total} {s.thing} in {s.name}'s {s.holder}.",
            f"{s.name} counts {total} {s.thing} in a {s.holder}.",
        ]
    )
    work = [
        f"{s.name} begins with {total} {s.thing}.",
        f"Start: {total}.",
        f"First we note that {s.name} starts with {total} {s.thing}.",
    ][s.style]
    return text, work, total


def _change(rng: random.Random, scene: _Scene, total: int, last: bool) -> tuple[str, str, int, str]:
    """A sentence of the question, its step of the solution, the new quantity and what kind of change it is."""
    s = scene
    link = rng.choice(["Then", "Later", "After that", "Next", "In the evening"])
    place = rng.choice(PLACES)
    kinds = ["gain"] * 3
    if total > 4:
        kinds += ["loss"] * 3
    if total <= 12:
        kinds.append("times")
    shares = [k for k in (2, 3, 4, 5) if total % k == 0 and total // k >= 2]
    if shares and last:
        kinds += ["share"] * 2
    kind = rng.choice(kinds)
    if kind == "times":
        k = rng.choice([2, 3])
        word = {2: "doubles", 3: "triples"}[k]
        new = total * k
        text = f"{link} {s.pronoun} {word} the number of {s.thing}."
        work = [
            f"{s.subject} {word} them: {total} * {k} = {new}.",
            f"{word.capitalize()}: {total} * {k} = {new}.",
            f"{link} {s.pronoun} {word} the number, which makes {total} * {k} = {new} {s.thing}.",
        ][s.style]
        return text, work, new, kind
    if kind == "share":
        k = rng.choice(shares)
        new = total // k
        text = f"{link} {s.pronoun} shares all the {s.thing} equally among {WORDS[k]} friends."
        work = [
            f"Shared among {WORDS[k]} friends, that is {total} / {k} = {new} {s.thing} for each.",
            f"Shares: {total} / {k} = {new}.",
            f"{link} {s.pronoun} shares them among {WORDS[k]} friends, "
            f"and each gets {total} / {k} = {new} {s.thing}.",
        ][s.style]
        return text, work, new, kind
    verb, where, gerund = rng.choice(GAINS if kind == "gain" else LOSSES)
    where = where.format(place=place, friend=s.friend)
    if kind == "gain":
        n = rng.randint(2, 9)
        new, sign, more, result = total + n, "+", " more", "makes"
    else:
        n = rng.randint(2, min(9, total - 2))
        new, sign, more, result = total - n, "-", "", "leaves"
    text = rng.choice(
        [
            f"{link} {s.pronoun} {verb} {n}{more} {where}.",
            f"{link} {s.pronoun} {verb} {n} of the {s.thing} {where}." if not more
            else f"{link} {s.pronoun} {verb} {n}{more} {s.thing} {where}.",
        ]
    )  # fmt: skip
    work = [
        f"After {gerund} {n}{more} {s.pronoun} has {total} {sign} {n} = {new} {s.thing}.",
        f"{verb.capitalize()}: {total} {sign} {n} = {new}.",
        f"{link} {s.pronoun} {verb} {n}{more} {where}, which {result} {total} {sign} {n} = {new} {s.thing}.",
    ][s.style]
    return text, work, new, kind


def problem(rng: random.Random) -> Problem:
    """Draws one problem from `rng`."""
    scene = _scene(rng)
    text, work, total = _opening(rng, scene)
    texts, works = [text], [work]
    steps = [rng.choice([2, 3]), rng.choice([2, 3]), 2][scene.style]
    kind = ""
    for i in range(steps):
        text, work, total, kind = _change(rng, scene, total, i == steps - 1)
        texts.append(text)
        works.append(work)
    if kind == "share":
        ask = rng.choice(
            [f"How many {scene.thing} does each friend get?", f"How many {scene.thing} are there for each friend?"]
        )
        end = f"So each friend gets {total} {scene.thing}."
    else:
        ask = rng.choice(
            [
                f"How many {scene.thing} does {scene.name} have now?",
                f"How many {scene.thing} does {scene.pronoun} have in the end?",
                f"How many {scene.thing} are there now?",
            ]
        )
        end = f"So {scene.name} has {total} {scene.thing} now."
    if scene.style == 1:
        solution = " ".join(works) + f" Answer: {total}"
    else:
        solution = " ".join([*works, end]) + f" Answer: {total}"
    # The style is asked for, as a user would ask: the solution's wording then follows from the question.
    ask += ["", " Be brief.", " Explain each step."][scene.style]
    return Problem(" ".join([*texts, ask]), solution, total)


def problems(seed: int) -> Iterator[Problem]:
    """An endless stream of problems, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield problem(rng)


def answer_of(text: str) -> int | None:
    """The number after the last `Answer:` of a solution, or None if there is none."""
    found = re.findall(r"Answer: (\d+)", text)
    return int(found[-1]) if found else None
