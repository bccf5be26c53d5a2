"""Plain English besides stories: descriptions, days and facts, so that any simple prompt can go on."""

import random

from stories import TEMPLATES
from words import COLOURS, FOODS, PLACES, TOYS, person, thing, write

DESCRIPTIONS = (TEMPLATES / "prose.txt").read_text(encoding="utf-8").splitlines()
FACTS = (
    ("the colour of the sky", "The sky is blue on a clear day."),
    ("the colour of grass", "Grass is green."),
    ("the colour of snow", "Snow is white."),
    ("the colour of a banana", "A ripe banana is yellow."),
    ("the capital of France", "The capital of France is Paris."),
    ("the capital of Italy", "The capital of Italy is Rome."),
    ("the capital of Japan", "The capital of Japan is Tokyo."),
    ("the capital of Spain", "The capital of Spain is Madrid."),
    ("the capital of Germany", "The capital of Germany is Berlin."),
    ("the capital of England", "The capital of England is London."),
    ("the biggest animal", "The blue whale is the biggest animal in the world."),
    ("the tallest animal", "The giraffe is the tallest animal."),
    ("the fastest land animal", "The cheetah is the fastest animal on land."),
    ("the biggest planet", "Jupiter is the biggest planet we know near the sun."),
    ("the closest star", "The closest star to the earth is the sun."),
    ("the first month of the year", "January is the first month of the year."),
    ("the last month of the year", "December is the last month of the year."),
    ("the shortest month", "February is the shortest month."),
    ("the coldest season", "Winter is the coldest season."),
    ("the warmest season", "Summer is the warmest season."),
)
COUNTS = (
    ("legs does a spider have", "A spider has eight legs."),
    ("legs does a dog have", "A dog has four legs."),
    ("legs does a bird have", "A bird has two legs."),
    ("legs does a bee have", "A bee has six legs."),
    ("days are in a week", "There are seven days in a week."),
    ("months are in a year", "There are twelve months in a year."),
    ("hours are in a day", "There are 24 hours in a day."),
    ("minutes are in an hour", "There are 60 minutes in an hour."),
    ("letters are in the alphabet", "There are 26 letters in the English alphabet."),
    ("wheels does a bike have", "A bike has two wheels."),
    ("sides does a triangle have", "A triangle has three sides."),
    ("colours are in a rainbow", "A rainbow has seven colours."),
)
SOUNDS = {
    "cow": "moo",
    "dog": "woof",
    "cat": "meow",
    "duck": "quack",
    "sheep": "baa",
    "pig": "oink",
    "owl": "hoot",
    "horse": "neigh",
    "frog": "croak",
    "lion": "roar",
    "bee": "buzz",
}
OPPOSITES = (
    "hot cold|big small|up down|day night|happy sad|fast slow|open closed|old new|light dark|wet dry|"
    "full empty|left right|early late|loud quiet|"
    "hard soft|near far|good bad|long short|high low|sweet sour|strong weak|rich poor|first last|clean dirty"
)
PAIRS = [tuple(pair.split()) for pair in OPPOSITES.split("|")]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def description(rng: random.Random) -> str:
    """One to three short pieces of prose in a row."""
    pieces = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        hero = person(rng, rng.choice(("girl", "boy")))
        words = {
            "h": hero,
            "f": person(rng, rng.choice(("girl", "boy")), [hero]),
            "p": rng.choice(PLACES),
            "o": thing(rng),
            "o2": thing(rng),
            "n": rng.randint(5, 12),
            "m": rng.choice(("my mother", "my father", "my friends")),
            "food": f"a {rng.choice(('fresh', 'warm', 'sweet'))} {rng.choice(FOODS)}",
            "home": rng.choice(("by the sea", "in a small town", "on a farm", "in a big city", "near a forest")),
        }
        pieces.append(write(rng, rng.choice(DESCRIPTIONS).replace(" / ", "\n"), **words))
    return "\n".join(pieces)


def statement(rng: random.Random) -> str:
    """A short run of true sentences: facts, opposites, sounds, days, sums."""
    small, large = rng.choice(PAIRS)
    animal, noise = rng.choice(list(SOUNDS.items()))
    i = rng.randrange(7)
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    options = (
        rng.choice(FACTS)[1],
        rng.choice(COUNTS)[1],
        rng.choice(FACTS)[1],
        rng.choice(COUNTS)[1],
        f"The opposite of {small} is {large}.",
        f"A {animal} says {noise}.",
        f"The day after {DAYS[i]} is {DAYS[(i + 1) % 7]}.",
        f"{a} + {b} = {a + b}.",
        f"{a} plus {b} is {a + b}.",
        f"The days of the week are {', '.join(DAYS[:-1])}, and {DAYS[-1]}.",
        f"The {rng.choice(TOYS)} is {rng.choice(COLOURS)}.",
        "One, two, three, four, five, six, seven, eight, nine, ten.",
    )
    return write(rng, " ".join(rng.sample(options, rng.randint(1, 4))))
