"""Stories are read by a reasoner that knows only their sentences, and finds the one answer."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import product

import pytest

from lenmem.data import stories

PERSON, ROOM, THING = r"(?P<p>\w+)", r"(?P<r>\w+)", r"(?P<t>\w+)"
ACTS = {
    "move": rf"{PERSON} (walks into|heads for|strolls to) the {ROOM} \.",
    "take": rf"{PERSON} (picks up|collects) the {THING} \.",
    "drop": rf"{PERSON} (puts down|leaves) the {THING} \.",
    "give": rf"{PERSON} passes the {THING} to (?P<q>\w+) \.",
    "hand": rf"{PERSON} hands (?P<q>\w+) the {THING} \.",
}


def timeline(story):
    """What happened, as (act, words of it); raises if a sentence has another form."""
    for sentence in story.sentences:
        found = [
            (act, match.groupdict()) for act, form in ACTS.items() if (match := re.fullmatch(form, " ".join(sentence)))
        ]
        (event,) = found
        yield event


def states(story):
    """After each sentence: (room of each person, holder of each thing, room of each thing), all by looking back."""
    events = list(timeline(story))
    for now in range(1, len(events) + 1):
        rooms = {words["p"]: words["r"] for act, words in events[:now] if act == "move"}
        holder = {}
        for act, words in events[:now]:
            if act != "move":
                holder[words["t"]] = {"take": words["p"], "drop": None}.get(act, words.get("q"))
        places = {}
        for thing in holder:
            touched = max(at for at, (act, words) in enumerate(events[:now]) if words.get("t") == thing)
            person, until = events[touched][1]["p"], now if holder[thing] else touched
            person = holder[thing] or person
            places[thing] = [words["r"] for act, words in events[:until] if act == "move" and words["p"] == person][-1]
        yield rooms, holder, places


def gifts(story):
    return {(w["p"], w["t"], w["q"]) for act, w in timeline(story) if act in ("give", "hand")}


def matched(form, story):
    match = re.fullmatch(form, " ".join(story.question))
    assert match, story.question
    return match.groups()


def one_fact(story):
    (person,) = matched(r"where is (\w+) \?", story)
    return {list(states(story))[-1][0][person]}


def two_facts(story):
    (thing,) = matched(r"where is the (\w+) \?", story)
    return {list(states(story))[-1][2][thing]}


def three_facts(story):
    thing, after = matched(r"where was the (\w+) before the (\w+) \?", story)
    rooms = [places[thing] for *_, places in states(story) if thing in places]
    visits = [room for room, before in zip(rooms, [None, *rooms], strict=False) if room != before]
    return {visits[at - 1] for at, room in enumerate(visits) if room == after and at}


def giving(story):
    text = " ".join(story.question)
    for form, asked in (
        (r"who handed the (?P<t>\w+) to (?P<q>\w+) \?", 0),
        (r"what did (?P<p>\w+) hand to (?P<q>\w+) \?", 1),
        (r"to whom did (?P<p>\w+) hand the (?P<t>\w+) \?", 2),
    ):
        if match := re.fullmatch(form, text):
            known = match.groupdict()
            fits = [g for g in gifts(story) if all(dict(zip("ptq", g, strict=True))[k] == v for k, v in known.items())]
            return {gift[asked] for gift in fits}
    raise AssertionError(text)


def yes_no(story):
    person, room = matched(r"is (\w+) in the (\w+) \?", story)
    return {"yes" if list(states(story))[-1][0][person] == room else "no"}


def counting(story):
    (person,) = matched(r"how many things does (\w+) carry \?", story)
    held = list(states(story))[-1][1]
    return {["none", "one", "two", "three"][list(held.values()).count(person)]}


def carrying(story):
    (person,) = matched(r"what does (\w+) carry \?", story)
    held = {thing for thing, holder in list(states(story))[-1][1].items() if holder == person}
    touched = {w["t"]: at for at, (_, w) in enumerate(timeline(story)) if "t" in w}
    return {" ".join(sorted(held, key=touched.__getitem__)) or "nothing"}


def deduction(story):
    (name,) = matched(r"what does (\w+) dread \?", story)
    text = " ".join(" ".join(sentence) for sentence in story.sentences)
    (beast,) = re.findall(rf"\b{name} is a (\w+)", text)
    plural = {"fox": "foxes", "goose": "geese", "lynx": "lynxes"}.get(beast, f"{beast}s")
    return set(re.findall(rf"\b{plural} dread (\w+)", text))


def path(story):
    start, goal = matched(r"how does one get from the (\w+) to the (\w+) \?", story)
    ways = {}
    other = {"north": "south", "south": "north", "east": "west", "west": "east"}
    for sentence in story.sentences:
        a, d, b = re.fullmatch(r"the (\w+) lies (\w+) of the (\w+) \.", " ".join(sentence)).groups()
        ways[b, d], ways[a, other[d]] = a, b
    assert start != goal and goal not in [ways.get((start, d)) for d in other]
    return {f"{d} {e}" for d, e in product(other, other) if ways.get((ways.get((start, d)), e)) == goal}


REASONERS = [one_fact, two_facts, three_facts, giving, yes_no, counting, carrying, deduction, path]


@pytest.mark.parametrize("reason", REASONERS, ids=lambda reason: reason.__name__)
def test_every_story_has_the_one_answer_that_follows(reason):
    kind, rng = reason.__name__, random.Random(0)
    least = stories.SHORTEST[kind]
    lengths = [least, least + 1, 8, 12, 20, stories.LONGEST]
    known, answers = set(stories.vocabulary()), Counter()
    for sentences in lengths * 15:
        story = stories.story(rng, kind, sentences)
        assert len(story.sentences) == sentences and len({*story.sentences}) > sentences / 3
        assert reason(story) == {" ".join(story.answer)}
        answers[story.answer] += 1
        words = [*story.sentences, story.question, story.answer]
        assert known >= {word for part in words for word in part}
        assert all(len(part) <= stories.LONGEST_SENTENCE for part in story.sentences)
        assert len(story.question) <= stories.LONGEST_QUESTION and len(story.answer) <= stories.LONGEST_ANSWER
    most = {"yes_no": 0.65, "counting": 0.75, "carrying": 0.75}.get(kind, 0.35)
    assert max(answers.values()) < most * len(lengths) * 15, "one answer fits most stories"


def test_people_act_where_things_are():
    """Nobody takes what another one holds or what lies elsewhere, or hands over what they lack, or to one far away."""
    rng = random.Random(1)
    for _ in range(40):
        story = stories.story(rng, rng.choice(["three_facts", "giving", "carrying"]), 30)
        before: tuple = ({}, {}, {})
        for (act, words), after in zip(timeline(story), states(story), strict=True):
            rooms, holder, places = before
            if act != "move":
                assert words["p"] in rooms
            if act == "move":
                assert rooms.get(words["p"]) != words["r"]
            elif act == "take":
                assert holder.get(words["t"]) is None and places.get(words["t"], rooms[words["p"]]) == rooms[words["p"]]
            else:
                assert holder[words["t"]] == words["p"]
            if act in ("give", "hand"):
                assert rooms[words["q"]] == rooms[words["p"]] and words["p"] != words["q"]
            assert max(Counter(person for person in after[1].values() if person).values(), default=0) <= 3
            before = after


def test_a_story_is_a_function_of_the_seed():
    assert len({stories.story(random.Random(3), "path", 9) for _ in range(3)}) == 1


@pytest.mark.parametrize("kind, sentences", [("giving", 3), ("one_fact", 0), ("path", 49)])
def test_too_few_or_too_many_sentences(kind, sentences):
    with pytest.raises(ValueError, match=rf"a story of '{kind}' has \d to 48 sentences, got {sentences}"):
        stories.story(random.Random(0), kind, sentences)


def test_words_are_not_ambiguous():
    """No word is both a name and a room, and so on."""
    groups = [stories.NAMES, stories.ROOMS, stories.THINGS, stories.BEASTS, tuple(stories.ONE_BEAST.values())]
    groups += [stories.NUMBERS, tuple(stories.DIRECTIONS)]
    assert all(count == 1 for count in Counter(word for group in groups for word in group).values())
