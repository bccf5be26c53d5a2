"""The word lists and the small template language that every text in the corpus is written with."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

GIRLS = [
    "Mia",
    "Lily",
    "Anna",
    "Rosa",
    "Nora",
    "Ella",
    "Ruby",
    "Zoe",
    "Ivy",
    "Clara",
    "Maya",
    "Lucy",
    "Emma",
    "Sara",
    "Hana",
    "Tess",
    "Nina",
    "Olive",
    "Pearl",
    "Wren",
    "Ada",
    "Bella",
    "Chloé",
]
BOYS = [
    "Tom",
    "Leo",
    "Sam",
    "Max",
    "Finn",
    "Ben",
    "Noah",
    "Oscar",
    "Hugo",
    "Theo",
    "Jack",
    "Eli",
    "Omar",
    "Ravi",
    "Luca",
    "Otto",
    "Felix",
    "Adam",
    "Milo",
    "Toby",
    "Kai",
    "Ned",
    "José",
]
PET_NAMES = [
    "Pip",
    "Bramble",
    "Hazel",
    "Rusty",
    "Willow",
    "Clover",
    "Pebble",
    "Maple",
    "Biscuit",
    "Daisy",
    "Nutmeg",
    "Poppy",
    "Acorn",
    "Fern",
    "Button",
    "Mossy",
    "Teddy",
    "Juniper",
]
ANIMALS = [
    "fox",
    "rabbit",
    "bear",
    "owl",
    "mouse",
    "hedgehog",
    "squirrel",
    "duck",
    "frog",
    "turtle",
    "cat",
    "dog",
    "lion",
    "elephant",
    "penguin",
    "deer",
    "badger",
    "otter",
    "wolf",
    "horse",
    "lamb",
    "pig",
    "goat",
    "monkey",
    "kitten",
    "puppy",
    "bee",
    "snail",
    "dragon",
    "robin",
]
FLYERS = ("owl", "bee", "robin", "dragon", "duck", "penguin")
TRAITS = [
    "little",
    "kind",
    "curious",
    "brave",
    "shy",
    "clever",
    "cheerful",
    "gentle",
    "quiet",
    "playful",
    "young",
    "small",
    "friendly",
    "careful",
    "lonely",
    "happy",
    "sleepy",
    "funny",
    "busy",
    "proud",
]
COLOURS = ["red", "blue", "green", "yellow", "orange", "purple", "pink", "white", "black", "brown", "silver", "golden"]
TOYS = [
    "ball",
    "kite",
    "hat",
    "scarf",
    "book",
    "bell",
    "drum",
    "boat",
    "lantern",
    "key",
    "basket",
    "button",
    "cup",
    "whistle",
    "ribbon",
    "spoon",
    "blanket",
    "bag",
]
FOODS = [
    "apple",
    "pear",
    "honey cake",
    "bread roll",
    "berry pie",
    "carrot",
    "cookie",
    "pancake",
    "sandwich",
    "plum",
    "muffin",
    "bowl of soup",
    "orange",
    "cupcake",
]
HOMES = [
    "in a small house by the sea",
    "near a quiet river",
    "in a cosy house in the forest",
    "on a green hill",
    "in a little village",
    "at the edge of a big forest",
    "in a tiny cottage with a red door",
    "on a farm",
    "beside a blue lake",
    "under an old oak tree",
    "in a warm house at the end of the road",
    "in a sunny valley",
    "in a town full of flowers",
    "near the mountains",
]


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    at: str
    sight: str
    hiding: str


PLACES = [
    Place(*row.split(";"))
    for row in (
        "the forest;in the forest;the tall trees;under a pile of leaves",
        "the garden;in the garden;the bright flowers;behind a rose bush",
        "the river;by the river;the clear water;between two smooth stones",
        "the beach;on the beach;the white waves;half buried in the sand",
        "the meadow;in the meadow;the long grass;in the long grass",
        "the market;at the market;the busy stalls;under a table of fruit",
        "the hill;on the hill;the valley far below;next to a grey rock",
        "the park;in the park;the children on the swings;under a wooden bench",
        "the pond;by the pond;the green lily pads;among the reeds",
        "the barn;in the barn;the stacks of hay;behind a stack of hay",
        "the old mill;near the old mill;the big wooden wheel;on a dusty shelf",
        "the library;in the library;the rows of books;between two big books",
    )
]


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    kind: str
    trait: str
    he: str
    him: str
    his: str
    is_animal: bool

    @property
    def a(self) -> str:
        return f"a {self.trait} {self.kind}"

    @property
    def the(self) -> str:
        return f"the {self.kind}"

    @property
    def full(self) -> str:
        return f"{self.name} the {self.kind}" if self.is_animal else f"a {self.kind} named {self.name}"


@dataclass(frozen=True, slots=True)
class Thing:
    name: str
    colour: str

    @property
    def a(self) -> str:
        return f"a {self.colour} {self.name}"

    @property
    def the(self) -> str:
        return f"the {self.colour} {self.name}"


def person(rng: random.Random, kind: str | None = None, avoid: Sequence[Person] = ()) -> Person:
    """A character; `kind` fixes what it is, and no name or animal of `avoid` comes back."""
    female = rng.random() < 0.5
    kind = kind or (rng.choice(ANIMALS) if rng.random() < 0.55 else ("girl" if female else "boy"))
    if kind in ("girl", "woman", "princess", "boy", "man", "prince"):
        female = kind in ("girl", "woman", "princess")
    is_animal = kind in ANIMALS
    names = PET_NAMES + (GIRLS if female else BOYS) if is_animal else (GIRLS if female else BOYS)
    pronouns = ("she", "her", "her") if female else ("he", "him", "his")
    made = Person(rng.choice(names), kind, rng.choice(TRAITS), *pronouns, is_animal)
    clash = any(made.name == other.name or (is_animal and made.kind == other.kind) for other in avoid)
    return person(rng, kind if kind not in ANIMALS else None, avoid) if clash else made


def thing(rng: random.Random) -> Thing:
    return Thing(rng.choice(TOYS), rng.choice(COLOURS))


_CHOICE = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")
_START = re.compile(r'(^|[.!?] |\n|(?:^|[ \n])")([a-z])')
_AN = re.compile(r"\b([Aa]) (?=[aei]|o(?!ne\b)|u(?!ni|se))")


def write(rng: random.Random, template: str, **words: object) -> str:
    """The template as English: `[a|b]` picks one, `{x.y}` looks up, `^` raises the next letter, a/an agree."""
    while (match := _CHOICE.search(template)) is not None:
        pick = rng.choice(match.group(1).split("|"))
        template = template[: match.start()] + pick + template[match.end() :]
    text = template.format(**words)
    text = re.sub(r"\^(.)", lambda m: m.group(1).upper(), text)
    text = _START.sub(lambda m: m.group(1) + m.group(2).upper(), text)
    return _AN.sub(r"\1n ", text)
