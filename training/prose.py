"""Plain English besides stories: descriptions, days, facts, short talks, so that any simple prompt can go on."""

import random

from words import COLOURS, FOODS, PLACES, TOYS, person, thing, write

DESCRIPTIONS = (
    "The [morning|evening|afternoon] was [quiet|warm|cold|bright]. {p.at}, [birds were singing|the wind moved the leaves|nobody was in a hurry]. "
    "{h.name} [sat down|stood still] and looked at {p.sight}. It was a good day to [think|read|rest|dream].",
    "The sky was [blue|grey|full of clouds|clear]. [A bird|A leaf|A butterfly] flew over {p.name}. {h.name} [smiled|waved] and walked on.",
    "It was [summer. The days were long|spring. The air smelled of rain|winter. The nights were cold|winter. Everything was white with snow|"
    "autumn. The trees were full of colour|spring. The first flowers were out]. {h.name} [put on a coat|opened the window|went outside] and [took a deep breath|listened].",
    "My name is {h.name}. I am {n} years old, and I live {home}. I like [drawing|reading|football|swimming|music] and [cats|dogs|horses|birds]. "
    "My favourite colour is {o.colour}. [Every day|On Sundays], I [play|walk] with my friend {f.name}.",
    "I have {o.a}. My {o.name} is [old|new|small|very big], but I like it. [My grandmother gave it to me|I found it {p.at}|I got it for my birthday].",
    "[Today|Yesterday] I went to {p.name} with {f.name}. We [saw|looked at] {p.sight} and ate {food}. [It was fun|I want to go again|We came home late].",
    "{h.name} and {f.name} are [friends|neighbours]. {h.name} likes [tea|music|rain|books], and {f.name} likes [milk|dancing|sunshine|games]. "
    "[They are different, but they get on well|On Saturdays, they meet {p.at}].",
    "Every morning, {h.name} wakes up at [six|seven|eight] o'clock. {h.he} [washes {h.his} face|opens the window], eats {food}, and [goes to school|goes to work|feeds the animals].",
    "The [cat|dog|rabbit|bird] [sat|slept|played] [on the mat|by the window|in the sun|under the table]. It was [{o.colour} and soft|very happy|a little lazy]. "
    "When {h.name} came home, it [jumped up|opened one eye|ran to the door].",
    "To make [soup|pancakes|a cake|bread], you need [flour|water|eggs], [salt|butter|milk], and [time|a big bowl|a little love]. [First|At first], mix everything. "
    "Then [wait|heat the pan|put it in the oven]. [At the end|Last of all], share it with [a friend|somebody you like].",
    "There is {o.a} [on the table|by the door|in the box]. [Next to it|Under it] is {o2.a}. [Which one do you like best|Whose are they]?",
    'Dear {f.name},\n[Thank you for|I loved] your [letter|visit|gift]. I am [well|happy|a bit tired]. [The weather here is|It has been] [cold|warm|sunny|wet]. '
    "Please [come and see me|write] soon.\n[Love|Yours], {h.name}",
    "[The sun rises in the east and sets in the west|The moon goes around the earth|The earth goes around the sun|Water turns to ice when it is cold]. "
    "[Many people|Most children|Even small children] know this, but it is still [wonderful|worth a thought].",
    "A [good|small] [book|song|walk|friend] can [change a day|make you happy|teach you something]. [That is what {h.name} always says|Try it and see].",
    '"[Good morning|Hello|Hi]," said {h.name}. "[How are you|Did you sleep well]?"\n"[I am fine, thank you|Very well|A little tired]," said {f.name}. "And you?"\n'
    '"[I am happy today|Very well, thank you]," said {h.name}. "[Shall we go to {p.name}|Do you want to come to {p.name}]?"\n"[Yes, let us go|Not today|With pleasure]!"',
    "[Roses are red|The night is deep], [the sky is so blue|the stars are so bright],\n[the morning is quiet|the moon is a lantern], [and so are you|I wish you good night].",
    "[The old man|The old woman|The teacher|The baker|The farmer] [opened|closed] the door and said, \"[It will rain soon|What a fine day|Somebody has been here]!\"",
    "The future is [like a road|not written yet]. [Nobody knows|We can only guess] where it goes, but [every step counts|we can walk it together].",
    "In the city, there are [buses|trains|cars] and [tall houses|bright lights|many people]. In the country, there are [fields|farms|cows] and [quiet roads|clear nights]. "
    "{h.name} likes [the city|the country] best.",
)
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
SOUNDS = dict(
    cow="moo", dog="woof", cat="meow", duck="quack", sheep="baa", pig="oink", owl="hoot", horse="neigh", frog="croak", lion="roar", bee="buzz"
)  # fmt: skip
OPPOSITES = (
    "hot cold|big small|up down|day night|happy sad|fast slow|open closed|old new|light dark|wet dry|full empty|left right|early late|loud quiet|"
    "hard soft|near far|good bad|long short|high low|sweet sour|strong weak|rich poor|first last|clean dirty"
)
PAIRS = [tuple(pair.split()) for pair in OPPOSITES.split("|")]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()


def description(rng: random.Random) -> str:
    """One to three short pieces of prose in a row."""
    pieces = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        hero = person(rng, rng.choice(("girl", "boy")))
        words = {
            "h": hero, "f": person(rng, rng.choice(("girl", "boy")), [hero]), "p": rng.choice(PLACES), "o": thing(rng), "o2": thing(rng),
            "n": rng.randint(5, 12), "food": f"a {rng.choice(('fresh', 'warm', 'sweet'))} {rng.choice(FOODS)}",
            "home": rng.choice(("by the sea", "in a small town", "on a farm", "in a big city", "near a forest")),
        }  # fmt: skip
        pieces.append(write(rng, rng.choice(DESCRIPTIONS), **words))
    return "\n".join(pieces)


def statement(rng: random.Random) -> str:
    """A short run of true sentences: facts, opposites, sounds, days, sums."""
    small, large = rng.choice(PAIRS)
    animal, noise = rng.choice(list(SOUNDS.items()))
    i = rng.randrange(7)
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    options = (
        rng.choice(FACTS)[1], rng.choice(COUNTS)[1], rng.choice(FACTS)[1], rng.choice(COUNTS)[1],
        f"The opposite of {small} is {large}.", f"A {animal} says {noise}.",
        f"The day after {DAYS[i]} is {DAYS[(i + 1) % 7]}.", f"{a} + {b} = {a + b}.", f"{a} plus {b} is {a + b}.",
        f"The days of the week are {', '.join(DAYS[:-1])}, and {DAYS[-1]}.", f"The {rng.choice(TOYS)} is {rng.choice(COLOURS)}.",
        "One, two, three, four, five, six, seven, eight, nine, ten.",
    )  # fmt: skip
    return write(rng, " ".join(rng.sample(options, rng.randint(1, 4))))
