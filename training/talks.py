"""Chats: greetings, names, feelings, sums, facts, opposites, stories on request, JSON on request, emoji."""

import random
from collections.abc import Callable

import objects
from prose import COUNTS, DAYS, FACTS, MONTHS, PAIRS, SOUNDS
from stories import story
from words import ANIMALS, BOYS, COLOURS, FOODS, GIRLS, PET_NAMES, TOYS, TRAITS, write

Turn = tuple[str, str]
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are Tiny, a kind storyteller.",
    "Answer in one short sentence.",
)
EMOJI = {
    "a cat": "🐱",
    "a dog": "🐶",
    "the sun": "☀️",
    "a heart": "❤️",
    "a smile": "😀",
    "a star": "⭐",
    "a rainbow": "🌈",
    "a fox": "🦊",
    "a flower": "🌸",
    "a moon": "🌙",
}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def greeting(rng: random.Random) -> Turn:
    ask = (
        "[Hello|Hi|Hey|Good morning|Good evening|Hello there|Hi there][!|.|] [|How are you?|"
        "How are you today?|What is up?]"
    )
    answer = (
        "[Hello|Hi|Hi there|Good to see you]! [How can I help you today?|What would you like to talk "
        "about?|I am glad you are here. Shall I tell you a story?|"
        "I am well, thank you. How are you?|I am fine today. What can I do for you?]"
    )
    return write(rng, ask).strip(), write(rng, answer)


def own_name(rng: random.Random) -> Turn:
    ask = "[What is your name?|Who are you?|What are you?|What's your name?|Tell me about yourself.]"
    answer = (
        "[My name is Tiny.|I am Tiny.|You can call me Tiny.] [I am a very small language model.|I am a "
        "small model that likes stories.|"
        "I am only a little model, but I try my best.|I can tell stories and answer simple questions.]"
    )
    return write(rng, ask), write(rng, answer)


def abilities(rng: random.Random) -> Turn:
    ask = "[What can you do?|Can you help me?|What do you know?|Help me, please.]"
    answer = (
        "[I can tell|I like to tell] [little stories|stories about animals], [add small numbers|do "
        "small sums], and [write JSON|name colours and days]. "
        "[What would you like?|Just ask me!|Try me!]"
    )
    return write(rng, ask), write(rng, answer)


def user_name(rng: random.Random) -> Turn:
    name = rng.choice(GIRLS + BOYS)
    ask = "[My name is|I am|I'm|Call me] {n}.[| Nice to meet you.]"
    answer = (
        "[Nice to meet you|Hello|Hi|It is good to meet you], {n}! [How are you today?|What "
        "would you like to do?|That is a lovely name.|How can I help you?]"
    )
    return write(rng, ask, n=name), write(rng, answer, n=name)


def feeling(rng: random.Random) -> Turn:
    if rng.random() < 0.5:
        ask = "I [am|feel] [sad|tired|lonely|worried|afraid|bored][.| today.]"
        answer = (
            "I am sorry to hear that. [Do you want to talk about it?|A walk can help.|I hope "
            "tomorrow is better.|Would a story help?|Be kind to yourself today.]"
        )
    else:
        ask = "I [am|feel] [happy|good|great|excited|well][.|!| today.]"
        answer = (
            "[That is wonderful|I am glad to hear that|How nice]! [What made you happy?|Keep "
            "smiling.|Tell me more.|Enjoy your day.]"
        )
    return write(rng, ask), write(rng, answer)


def arithmetic(rng: random.Random) -> Turn:
    kind = rng.choice(("plus", "plus", "minus", "times"))
    top = 5 if kind == "times" else 10
    a, b = rng.randint(0, top), rng.randint(0, top)
    if kind == "minus":
        a, b = max(a, b), min(a, b)
    value = {"plus": a + b, "minus": a - b, "times": a * b}[kind]
    sign = {"plus": "+", "minus": "-", "times": "*"}[kind]
    left, right = (WORDS[a], WORDS[b]) if rng.random() < 0.15 else (str(a), str(b))
    asked = f"{left} {kind} {right}" if left in WORDS or rng.random() < 0.5 else f"{left} {sign} {right}"
    ask = f"[What is|How much is|Calculate|What's] {asked}[?|?|.]"
    answer = f"[{a} {sign} {b} = {value}.|{a} {kind} {b} is {value}.|The answer is {value}.|It is {value}.|{value}]"
    return write(rng, ask), write(rng, answer)


def fact(rng: random.Random) -> Turn:
    if rng.random() < 0.6:
        what, answer = rng.choice(FACTS)
        return write(rng, f"[What is|Do you know|Tell me|What's] {what}?"), answer
    what, answer = rng.choice(COUNTS)
    return f"How many {what}?", answer


def opposite(rng: random.Random) -> Turn:
    pair = rng.choice(PAIRS)
    one, other = pair if rng.random() < 0.7 else pair[::-1]
    ask = f"[What is the opposite of|The opposite of|Give me the opposite of] {one}[?|?|.]"
    return write(rng, ask), write(rng, f"[The opposite of {one} is {other}.|It is {other}.|{other}.]")


def calendar(rng: random.Random) -> Turn:
    names, unit = (DAYS, "day") if rng.random() < 0.6 else (MONTHS, "month")
    i = rng.randrange(len(names))
    if rng.random() < 0.15:
        return (
            f"What are the {unit}s of the {'week' if unit == 'day' else 'year'}?",
            f"{', '.join(names[:-1])}, and {names[-1]}.",
        )
    step, word = rng.choice(((1, "after"), (-1, "before")))
    found = names[(i + step) % len(names)]
    ask = f"[What|Which] {unit} [is|comes] {word} {names[i]}?"
    answer = f"[{found} comes {word} {names[i]}.|It is {found}.|The {unit} {word} {names[i]} is {found}.]"
    return write(rng, ask), write(rng, answer)


def animal_sound(rng: random.Random) -> Turn:
    animal, noise = rng.choice(list(SOUNDS.items()))
    return write(rng, f"[What does a {animal} say?|What sound does a {animal} make?]"), write(
        rng, f"[A|The] {animal} says {noise}[.|!]"
    )


def listing(rng: random.Random) -> Turn:
    what, pool = rng.choice((
        ("colours", COLOURS),
        ("animals", ANIMALS),
        ("foods", [f for f in FOODS if " of " not in f]),
    ))
    picked = rng.sample(pool, 3)
    ask = f"[Name|List|Tell me|Give me] three {what}."
    return write(rng, ask), f"{picked[0].capitalize()}, {picked[1]}, and {picked[2]}."


def favourite(rng: random.Random) -> Turn:
    what, pool = rng.choice((("colour", COLOURS), ("animal", ANIMALS), ("food", [f for f in FOODS if " of " not in f])))
    pick = rng.choice(pool)
    article = "" if what == "colour" else "the "
    ask = f"What is your favourite {what}?"
    return ask, write(
        rng,
        (
            f"[My favourite {what} is {article}{pick}.|I like {article}{pick} best.|I think it is "
            f"{article}{pick}.] [What is yours?|And yours?|]"
        ),
    ).strip()


def told_story(rng: random.Random) -> Turn:
    kind = rng.choice([*ANIMALS, "girl", "boy"]) if rng.random() < 0.8 else None
    about = f" about a {kind}" if kind else ""
    ask = f"[Tell me|Write|Please tell me|Can you tell me|Tell] a [|little |short ]story{about}[.|.|, please.|?]"
    lead = "[|||Of course! |Here is a story. |With pleasure. ]"
    return write(rng, ask), write(rng, lead) + story(rng, kind, short=True)


def json_object(rng: random.Random) -> Turn:
    kind = rng.choice(("person", "person", *objects.KINDS))
    ask = f"[Give me|Write|Make|Show me|Describe] a {kind} [as JSON|in JSON|as a JSON object][.|.|, please.]"
    return write(rng, ask), objects.dumped(rng, objects.KINDS[kind](rng))


def echo(rng: random.Random) -> Turn:
    """Words to repeat: of all turns the one that teaches copying fastest, which stories need to keep their names."""
    pool = [*GIRLS, *BOYS, *PET_NAMES, *COLOURS, *TOYS, *ANIMALS, *TRAITS, *WORDS]
    said = " ".join(rng.choice(pool) for _ in range(rng.randint(3, 24)))
    return write(rng, "[Repeat after me|Repeat|Say|Please say]: ") + said, said


def emoji(rng: random.Random) -> Turn:
    what, sign = rng.choice(list(EMOJI.items()))
    ask = (f"[Send me|Show me|Give me] [an emoji of {what}|{what} emoji].").replace("the sun emoji", "a sun emoji")
    return write(rng, ask), write(rng, f"[Here is {what}: {sign}|{sign}|Here you are: {sign}]")


def thanks(rng: random.Random) -> Turn:
    return write(rng, "[Thank you|Thanks|Thank you very much|Great, thanks][!|.]"), write(
        rng, ("[You are welcome|My pleasure|Any time|Glad to help][!|.] [|Is there anything else?|Have a nice day!]")
    ).strip()


def goodbye(rng: random.Random) -> Turn:
    return write(rng, "[Goodbye|Bye|Good night|See you later][!|.]"), write(
        rng, "[Goodbye|Bye|See you soon|Take care]! [|Have a lovely day.|Come back soon.|Sleep well.]"
    ).strip()


def unknown(rng: random.Random) -> Turn:
    ask = (
        "[Why is the world so big?|What is the meaning of life?|Who will win the game?|How does a "
        "computer work?|Can you drive a car?|"
        "What will happen tomorrow?|Explain how a rocket flies.|Where are my keys?|What time is it?|Are you alive?]"
    )
    answer = (
        "[I do not know|I am not sure|That is a hard question], [but I like the question|but it is fun "
        "to think about|and I am only a small model]. "
        "[Shall I tell you a story?|Ask me something small.|What do you think?]"
    )
    return write(rng, ask), write(rng, answer)


MIDDLE: tuple[Callable[[random.Random], Turn], ...] = (
    own_name,
    abilities,
    user_name,
    feeling,
    arithmetic,
    arithmetic,
    arithmetic,
    arithmetic,
    fact,
    fact,
    fact,
    opposite,
    opposite,
    calendar,
    calendar,
    animal_sound,
    listing,
    favourite,
    told_story,
    told_story,
    told_story,
    told_story,
    json_object,
    json_object,
    json_object,
    emoji,
    unknown,
)


QUIZ = (
    *(arithmetic, arithmetic, arithmetic, opposite, opposite, calendar, fact, animal_sound),
    *(user_name, own_name, feeling, emoji, echo),
)


def quiz(rng: random.Random) -> list[Turn]:
    """Four to eight short turns: one document that asks for many facts."""
    return [rng.choice(QUIZ)(rng) for _ in range(rng.randint(4, 8))]


def chat(rng: random.Random) -> tuple[str | None, list[Turn]]:
    """A system text or None, and one to five turns; long answers end the chat sooner."""
    turns = [greeting(rng)] if rng.random() < 0.3 else []
    for _ in range(rng.choice((1, 1, 2, 3))):
        turns.append(rng.choice(MIDDLE)(rng))
    if rng.random() < 0.15:
        turns.append(thanks(rng))
    if rng.random() < 0.12:
        turns.append(goodbye(rng))
    system = rng.choice(SYSTEMS[:3]) if rng.random() < 0.12 else None
    return system, turns
