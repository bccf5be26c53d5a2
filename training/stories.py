"""Small stories: a hero, a place, a trouble, an attempt and an ending, in many skeletons."""

import random
import re
from pathlib import Path

from words import FLYERS, FOODS, HOMES, PLACES, Person, person, thing, write

TEMPLATES = Path(__file__).parent / "templates"


def read_blocks(name: str) -> dict[str, list[list[str]]]:
    """The groups of lines under each `# heading` of a template file, groups parted by empty lines."""
    blocks: dict[str, list[list[str]]] = {}
    for block in re.split(r"^# ", (TEMPLATES / name).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, body = block.partition("\n")
        blocks[heading] = [group.split("\n") for group in body.strip().split("\n\n")]
    return blocks


FRAME = {heading: groups[0] for heading, groups in read_blocks("frame.txt").items()}
# Heading `name: lesson|lesson`; one group of options for each beat of the story.
SKELETONS = [(*heading.split(": "), beats) for heading, beats in read_blocks("stories.txt").items()]

FEARS = ["the dark", "loud thunder", "deep water", "high places", "big dogs", "the forest at night", "strangers"]
GOALS = [
    "the sea",
    "the highest mountain",
    "the end of the rainbow",
    "a falling star",
    "the city of lights",
    "the golden castle",
    "snow",
    "the biggest tree in the world",
]
SKILLS = [
    "swim",
    "bake bread",
    "ride a bike",
    "paint",
    "whistle",
    "skate",
    "dance",
    "play the drum",
    "climb trees",
    "read",
    "sing",
]


def _mentor(rng: random.Random, hero: Person) -> str:
    family = ["mother", "father", "grandmother", "grandfather"]
    if rng.random() < 0.7:
        return f"{hero.his} {rng.choice(family)}"
    return "the " + rng.choice(["old owl", "wise turtle", "old teacher", "baker", "old gardener"])


def _food(rng: random.Random) -> str:
    return f"a {rng.choice(['fresh', 'warm', 'big', 'sweet', 'small'])} {rng.choice(FOODS)}"


def cast(rng: random.Random, kind: str | None) -> dict[str, object]:
    """The words one story uses: hero, friend, mentor, places, things; the same pronouns all through."""
    hero = person(rng, kind)
    friend = person(rng, avoid=[hero])
    here, there = rng.sample(PLACES, 2)
    skills = SKILLS + (["fly"] * 3 if hero.kind in FLYERS and friend.kind in FLYERS else [])
    return {
        "h": hero,
        "f": friend,
        "m": _mentor(rng, hero),
        "p": here,
        "q": there,
        "o": thing(rng),
        "o2": thing(rng),
        "food": _food(rng),
        "home": rng.choice(HOMES),
        "fear": rng.choice(FEARS),
        "goal": rng.choice(GOALS),
        "skill": rng.choice(skills),
        "big": rng.choice(["wolf", "bear", "goose", "bull"]),
        "bhe": rng.choice(["he", "it"]),
        "old": rng.choice(["man", "woman"]),
        "self": hero.him.replace("her", "herself").replace("him", "himself"),
    }


def story(rng: random.Random, kind: str | None = None, *, short: bool = False) -> str:
    """One story of about 100 to 200 words; `kind` sets the hero, `short` leaves out the asides."""
    words = cast(rng, kind)
    name, lessons, beats = rng.choice(SKELETONS)
    upon_a_time = [line for line in FRAME["Openings"] if line.startswith("Once")]
    parts = [rng.choice(upon_a_time if rng.random() < 0.45 else FRAME["Openings"])]
    if not short and rng.random() < 0.75:
        parts.append(rng.choice([like for like in FRAME["Likes"] if "{f" not in like or name == "gift"]))
    parts += [rng.choice(options) for options in beats]
    parts.append(rng.choice(FRAME["Endings"]))
    if not short:
        parts.append(rng.choice(("", "The end.", f"{{h.name}} learned that [{lessons}].")))
    # `^`: a part may begin with a name in lower case after a quotation mark.
    paragraphs = [" ".join(f"^{part}" for part in group if part) for group in _paragraphs(rng, parts)]
    return write(rng, "\n".join(paragraphs), **words)


def _paragraphs(rng: random.Random, parts: list[str]) -> list[list[str]]:
    return [parts] if rng.random() < 0.6 else [parts[:2], parts[2:-3], parts[-3:]]
