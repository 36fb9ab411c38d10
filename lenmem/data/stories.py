"""Short stories with a question, of the kinds of bAbI (Weston et al. 2015, https://arxiv.org/abs/1502.05698).

A small world is simulated: people walk between rooms, pick things up, put them down and hand them over; animals dread
each other; rooms lie next to each other. Worlds, words and sentences are our own, so scores on these stories are not
scores on bAbI. A story can have any number of sentences from `SHORTEST[kind]` to `LONGEST`.

    kind          bAbI  question                                  answer
    one_fact         1  where is ada ?                            the room that ada entered last
    two_facts        2  where is the lamp ?                       the room of the lamp, or of its holder
    three_facts      3  where was the lamp before the attic ?     the room before; the lamp was in the attic only once
    giving           5  who handed the lamp to ben ? and others   giver, thing or receiver, if there was only one
    yes_no           6  is ada in the attic ?                     yes or no, equally often
    counting         7  how many things does ada carry ?          none, one, two or three
    carrying         8  what does ada carry ?                     the things in the order in which she got them; nothing
    deduction       15  what does ada dread ?                     what animals of her kind dread
    path            19  how does one get from the attic to ...    two directions; no other two lead there
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["one_fact", "two_facts", "three_facts", "giving", "yes_no", "counting", "carrying", "deduction", "path"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BABI = dict(zip(KINDS, (1, 2, 3, 5, 6, 7, 8, 15, 19), strict=True))
"""kind -> number of the similar bAbI task."""
SHORTEST: dict[Kind, int] = dict(zip(KINDS, (1, 2, 3, 4, 1, 1, 1, 2, 2), strict=True))
"""The fewest sentences of a story of each kind."""
LONGEST = 48
"""Most sentences of a story; there are not enough names and rooms for more."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "ada ben cleo dan eve finn gus hana iris jon kit lena max nora otto pia quin rosa sam tess uma vera walt xaver "
    "yara zoe abel bea carl dora emil fay greta hugo ida jack klara leo mia nils"
)
ROOMS = _words(
    "attic barn cellar chapel den forge harbour library mill nursery office pantry quarry stable tower vault arcade "
    "bakery cabin depot embassy foyer gallery hut inn jetty kiosk loft market oratory porch refectory shed tavern "
    "utility veranda workshop yard bridge court"
)
THINGS = _words("lamp rope map coin key drum vase quilt")
BEASTS = _words("foxes owls geese hares lynxes moths newts otters ravens toads voles weasels")
ONE_BEAST = dict(zip(BEASTS, _words("fox owl goose hare lynx moth newt otter raven toad vole weasel"), strict=True))
NUMBERS = ("none", "one", "two", "three")
PEOPLE, PLACES = NAMES[:6], ROOMS[:8]
"""The people and the places of stories in which people act."""
MOST_CARRIED = 3
DIRECTIONS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}

MOVES = ("{p} walks into the {r} .", "{p} heads for the {r} .", "{p} strolls to the {r} .")
TAKES = ("{p} picks up the {t} .", "{p} collects the {t} .")
DROPS = ("{p} puts down the {t} .", "{p} leaves the {t} .")
GIFTS = ("{p} passes the {t} to {q} .", "{p} hands {q} the {t} .")
FEAR, MEMBER, LIES = "{a} dread {b} .", "{p} is a {a} .", "the {a} lies {d} of the {b} ."
LONGEST_SENTENCE, LONGEST_QUESTION = 8, 12
"""Most words of a sentence and of a question, including the mark at the end."""
LONGEST_ANSWER = 3


class Story(NamedTuple):
    """Words; sentences end with `.` and the question with `?`."""

    sentences: tuple[tuple[str, ...], ...]
    question: tuple[str, ...]
    answer: tuple[str, ...]


def story(rng: random.Random, kind: Kind, sentences: int) -> Story:
    """A random story with that many sentences. Raises ValueError if stories of this kind cannot have that many."""
    if not SHORTEST[kind] <= sentences <= LONGEST:
        raise ValueError(f"a story of {kind!r} has {SHORTEST[kind]} to {LONGEST} sentences, got {sentences}")
    draw = {"deduction": _deduction, "path": _path}.get(kind)
    while True:
        drawn = draw(rng, sentences) if draw else _acted(rng, kind, sentences)
        if drawn is not None:
            lines, question, answer = drawn
            return Story(tuple(tuple(line.split()) for line in lines), tuple(question.split()), tuple(answer.split()))


Drawn = tuple[list[str], str, str] | None
"""(sentences, question, answer); None if no question of its kind can be asked about the drawn story."""


class _World:
    """The state of a story in which people act, and its sentences so far."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.lines: list[str] = []
        self.room: dict[str, str] = {}
        self.carried: dict[str, list[str]] = {person: [] for person in PEOPLE}
        self.lies = {thing: rng.choice(PLACES) for thing in THINGS}
        self.been: dict[str, list[str]] = {thing: [] for thing in THINGS}
        """The rooms in which a thing is known to have been, in order."""
        self.gifts: list[tuple[str, str, str]] = []

    def tell(self, templates: tuple[str, ...], **words: str) -> None:
        self.lines.append(self.rng.choice(templates).format(**words))

    def move(self) -> bool:
        person = self.rng.choice(PEOPLE)
        room = self.rng.choice([place for place in PLACES if place != self.room.get(person)])
        self.room[person] = room
        for thing in self.carried[person]:
            self.been[thing].append(room)
        self.tell(MOVES, p=person, r=room)
        return True

    def take(self) -> bool:
        able = [
            (person, thing)
            for person, room in self.room.items()
            for thing, place in self.lies.items()
            if place == room and len(self.carried[person]) < MOST_CARRIED
        ]
        if not able:
            return False
        person, thing = self.rng.choice(able)
        self.carried[person].append(thing)
        del self.lies[thing]
        if self.been[thing][-1:] != [self.room[person]]:
            self.been[thing].append(self.room[person])
        self.tell(TAKES, p=person, t=thing)
        return True

    def drop(self) -> bool:
        able = [(person, thing) for person in self.room for thing in self.carried[person]]
        if not able:
            return False
        person, thing = self.rng.choice(able)
        self.carried[person].remove(thing)
        self.lies[thing] = self.room[person]
        self.tell(DROPS, p=person, t=thing)
        return True

    def give(self) -> bool:
        able = [
            (giver, thing, taker)
            for giver in self.room
            for thing in self.carried[giver]
            for taker, room in self.room.items()
            if taker != giver and room == self.room[giver] and len(self.carried[taker]) < MOST_CARRIED
        ]
        if not able:
            return False
        giver, thing, taker = gift = self.rng.choice(able)
        self.carried[giver].remove(thing)
        self.carried[taker].append(thing)
        self.gifts.append(gift)
        self.tell(GIFTS, p=giver, t=thing, q=taker)
        return True


_ACTS: dict[Kind, dict[str, float]] = {
    "one_fact": {"move": 1},
    "yes_no": {"move": 1},
    "giving": {"move": 4, "take": 3, "give": 6},
}
_USUAL = {"move": 4, "take": 3, "drop": 1.5}


def _acted(rng: random.Random, kind: Kind, sentences: int) -> Drawn:
    world = _World(rng)
    acts = _ACTS.get(kind, _USUAL)
    while len(world.lines) < sentences:
        chosen = rng.choices(list(acts), list(acts.values()))[0]
        getattr(world, chosen)()
    asked = _QUESTIONS[kind](world)
    return None if asked is None else (world.lines, *asked)


def _where_person(world: _World) -> tuple[str, str]:
    person = world.rng.choice(list(world.room))
    return f"where is {person} ?", world.room[person]


def _where_thing(world: _World) -> tuple[str, str] | None:
    known = [thing for thing, rooms in world.been.items() if rooms]
    if not known:
        return None
    thing = world.rng.choice(known)
    return f"where is the {thing} ?", world.been[thing][-1]


def _where_before(world: _World) -> tuple[str, str] | None:
    able = [
        (thing, before, after)
        for thing, rooms in world.been.items()
        for before, after in itertools.pairwise(rooms)
        if rooms.count(after) == 1
    ]
    if not able:
        return None
    thing, before, after = world.rng.choice(able)
    return f"where was the {thing} before the {after} ?", before


def _gift(world: _World) -> tuple[str, str] | None:
    able: list[tuple[str, str]] = []
    for hidden in range(3):
        seen = Counter(gift[:hidden] + gift[hidden + 1 :] for gift in set(world.gifts))
        for giver, thing, taker in set(world.gifts):
            known = [(thing, taker), (giver, taker), (giver, thing)][hidden]
            asked = (
                f"who handed the {thing} to {taker} ?",
                f"what did {giver} hand to {taker} ?",
                f"to whom did {giver} hand the {thing} ?",
            )
            if seen[known] == 1:
                able.append((asked[hidden], (giver, thing, taker)[hidden]))
    return world.rng.choice(sorted(able)) if able else None


def _is_in(world: _World) -> tuple[str, str]:
    person = world.rng.choice(list(world.room))
    right = world.room[person]
    others = sorted(set(world.room.values()) - {right}) or [place for place in PLACES if place != right]
    yes = world.rng.random() < 0.5
    return f"is {person} in the {right if yes else world.rng.choice(others)} ?", "yes" if yes else "no"


def _how_many(world: _World) -> tuple[str, str]:
    person = world.rng.choice(list(world.room))
    return f"how many things does {person} carry ?", NUMBERS[len(world.carried[person])]


def _what(world: _World) -> tuple[str, str]:
    person = world.rng.choice(list(world.room))
    return f"what does {person} carry ?", " ".join(world.carried[person]) or "nothing"


_QUESTIONS: dict[Kind, Callable[[_World], tuple[str, str] | None]] = {
    "one_fact": _where_person,
    "two_facts": _where_thing,
    "three_facts": _where_before,
    "giving": _gift,
    "yes_no": _is_in,
    "counting": _how_many,
    "carrying": _what,
}


def _deduction(rng: random.Random, sentences: int) -> Drawn:
    """Some kinds of animals, each of which dreads another; each name belongs to one of these kinds."""
    least, most = max(1, sentences - len(NAMES)), min(len(BEASTS), sentences - 1)
    kinds = rng.sample(BEASTS, rng.randint(least, most))
    dreaded = {kind: rng.choice([other for other in BEASTS if other != kind]) for kind in kinds}
    members = {name: rng.choice(kinds) for name in rng.sample(NAMES, sentences - len(kinds))}
    lines = [FEAR.format(a=kind, b=other) for kind, other in dreaded.items()]
    lines += [MEMBER.format(p=name, a=ONE_BEAST[kind]) for name, kind in members.items()]
    rng.shuffle(lines)
    name = rng.choice(list(members))
    return lines, f"what does {name} dread ?", dreaded[members[name]]


def _path(rng: random.Random, sentences: int) -> Drawn:
    """Rooms on a grid; each sentence relates two neighbours."""
    cells: list[Any] = [(0, 0)]
    pairs: list[Any] = []
    while len(pairs) < sentences:
        free = sorted({_next(cell, step) for cell in cells for step in DIRECTIONS.values()} - {*cells})
        new = rng.choice(free)
        pairs += [(new, cell) for cell in cells if abs(new[0] - cell[0]) + abs(new[1] - cell[1]) == 1]
        cells.append(new)
    if len(cells) > len(ROOMS):
        return None
    pairs = rng.sample(pairs, sentences)
    room = dict(zip(cells, rng.sample(ROOMS, len(cells)), strict=True))
    lines, step_of = [], {}
    for one, other in pairs:
        name = next(d for d, step in DIRECTIONS.items() if _next(other, step) == one)
        back = next(d for d, step in DIRECTIONS.items() if _next(one, step) == other)
        step_of[other, one], step_of[one, other] = name, back
        first, second, direction = rng.choice([(one, other, name), (other, one, back)])
        lines.append(LIES.format(a=room[first], b=room[second], d=direction))
    routes: dict[Any, list[str]] = {}
    for start, middle in step_of:
        for step in DIRECTIONS.values():
            goal = _next(middle, step)
            if (middle, goal) in step_of and goal != start:
                routes.setdefault((start, goal), []).append(f"{step_of[start, middle]} {step_of[middle, goal]}")
    able = sorted((ends, found[0]) for ends, found in routes.items() if len(found) == 1)
    if not able:
        return None
    (start, goal), way = rng.choice(able)
    return lines, f"how does one get from the {room[start]} to the {room[goal]} ?", way


def _next(cell: Any, step: Any) -> Any:
    return cell[0] + step[0], cell[1] + step[1]


def vocabulary() -> tuple[str, ...]:
    """All words of stories, questions and answers, sorted."""
    templates = " ".join((*MOVES, *TAKES, *DROPS, *GIFTS, FEAR, MEMBER, LIES))
    words = {word for word in templates.split() if not word.startswith("{")}
    asked = "where is the was before who handed to what did hand whom in how many things does carry dread one get from"
    words |= {*asked.split(), *NAMES, *ROOMS, *THINGS, *BEASTS, *ONE_BEAST.values(), *NUMBERS, *DIRECTIONS}
    return tuple(sorted(words | {"?", "yes", "no", "nothing"}))
