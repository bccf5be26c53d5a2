"""JSON texts about people, animals, things and places, with and without a question before them."""

import json
import random

from words import ANIMALS, BOYS, COLOURS, FOODS, GIRLS, PET_NAMES, TOYS

CITIES = ["Paris", "Rome", "London", "Madrid", "Berlin", "Tokyo", "Oslo", "Lisbon", "Vienna", "Dublin"]
PETS = ["cat", "dog", "rabbit", "fish", "hamster", "bird", "turtle", "horse"]
HOBBIES = ["reading", "drawing", "swimming", "music", "football", "dancing", "cooking", "chess"]
JOBS = ["baker", "teacher", "farmer", "doctor", "pilot", "gardener", "painter", "nurse"]


def human(rng: random.Random) -> dict[str, object]:
    """A person: `name` first, then age and one to three of city, pet, hobbies, colour, happy, job."""
    age = rng.randint(4, 60)
    extra: dict[str, object] = {
        "city": rng.choice(CITIES),
        "pet": rng.choice(PETS),
        "hobbies": rng.sample(HOBBIES, rng.randint(1, 3)),
        "colour": rng.choice(COLOURS),
        "happy": rng.random() < 0.7,
    }
    if age > 20:
        extra["job"] = rng.choice(JOBS)
    keys = rng.sample(list(extra), rng.randint(1, 3))
    return {"name": rng.choice(GIRLS + BOYS), "age": age} | {key: extra[key] for key in keys}


def animal(rng: random.Random) -> dict[str, object]:
    """An animal with a name, a kind and a colour, sometimes its age and its food."""
    made: dict[str, object] = {
        "name": rng.choice(PET_NAMES),
        "kind": rng.choice(ANIMALS),
        "colour": rng.choice(COLOURS),
    }
    if rng.random() < 0.6:
        made["age"] = rng.randint(1, 12)
    if rng.random() < 0.4:
        made["food"] = rng.choice(FOODS)
    return made


def product(rng: random.Random) -> dict[str, object]:
    """A thing in a shop: name, colour, price, stock."""
    made: dict[str, object] = {"item": rng.choice(TOYS), "colour": rng.choice(COLOURS), "price": rng.randint(1, 40)}
    if rng.random() < 0.6:
        made["in_stock"] = rng.random() < 0.6
    return made


def weather(rng: random.Random) -> dict[str, object]:
    """A city's weather today."""
    sky = rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy"])
    degrees = rng.randint(-5, 3) if sky == "snowy" else rng.randint(5, 30)
    return {"city": rng.choice(CITIES), "weather": sky, "degrees": degrees}


KINDS = {"person": human, "animal": animal, "thing": product, "weather report": weather}


def dumped(rng: random.Random, value: object) -> str:
    """The value as JSON on one line, or now and then on indented lines."""
    return json.dumps(value, indent=2 if rng.random() < 0.15 else None, ensure_ascii=False)


def document(rng: random.Random) -> str:
    """JSON text: a few objects one per line, or one list of objects, or one object that holds another."""
    make = rng.choice(list(KINDS.values()))
    shape = rng.random()
    if shape < 0.6:
        return "\n".join(json.dumps(make(rng), ensure_ascii=False) for _ in range(rng.randint(1, 4)))
    if shape < 0.8:
        return dumped(rng, [make(rng) for _ in range(rng.randint(2, 3))])
    return dumped(rng, human(rng) | {"friend": human(rng)} if rng.random() < 0.5 else make(rng))
