"""Small stories: a hero, a place, a trouble, an attempt and an ending, in many skeletons."""

import random

from words import FLYERS, FOODS, HOMES, PLACES, Person, person, thing, write

OPENINGS = (
    "Once upon a time, there [was|lived] {h.a} named {h.name}. {h.he} lived {home}.",
    "Once upon a time, there [was|lived] {h.a} named {h.name} who lived {home}.",
    "Once upon a time, {h.a} named {h.name} lived {home}.",
    "Once upon a time, {home}, there lived {h.a} [named|called] {h.name}.",
    "Once upon a time there was {h.a}. {h.his} name was {h.name}, and {h.he} lived {home}.",
    "Once upon a time, in a land far away, there lived {h.a} named {h.name}.",
    "Long ago, {home}, there lived {h.a} [named|called] {h.name}.",
    "There was once {h.a} [named|called] {h.name} who lived {home}.",
    "{h.name} was {h.a} who lived {home}.",
    "This is the story of {h.name}, {h.a} who lived {home}.",
    "{h.full} lived {home}.",
    "One [sunny|cold|bright|quiet|windy] [morning|day|afternoon], {h.a} named {h.name} woke up and [smiled|stretched|yawned].",
)
LIKES = (
    "{h.he} loved to [play|sing|explore|run|read|dance] {p.at}.",
    "Every [day|morning|afternoon], {h.he} [walked to|played near|ran to|went to] {p.name}.",
    "{h.he} was [very|always|often] [curious|cheerful|busy|kind], and everyone {p.at} [knew|liked|loved] {h.him}.",
    "More than anything, {h.he} loved [the sound of rain|warm bread|old stories|the smell of flowers|the evening stars].",
    "{h.he} had a best friend named {f.name}, and they did everything together.",
    "",
    "",
)
ENDINGS = (
    "From that day on, {h.name} and {f.name} were [best|good|great] friends.",
    "{h.name} [went|walked] home with a [warm|happy|full] heart.",
    "That night, {h.name} fell asleep with a [big|small|happy] smile.",
    "And they all lived happily ever after.",
    "{h.name} never forgot that day.",
    "[Everyone was happy|They laughed and danced] until the [sun went down|stars came out|moon was high].",
    "And every [year|spring|summer] after that, they [told|remembered] the story [together|again].",
    "It was the best day of {h.his} life.",
)
LOST = (
    [
        "One day, {h.name} could not find {h.his} {o.colour} {o.name}. {h.he} had lost it somewhere.",
        "One [windy|busy|rainy] day, {h.he} lost {h.his} favourite {o.name}. It was {o.colour}, and {h.he} loved it very much.",
        'One morning, {h.he} looked around and gasped. "[Oh no!|Oh dear!] My {o.colour} {o.name} is gone!"',
    ],
    [
        "{h.he} looked [under the bed|behind the door|in every corner|on the roof], but it was not there. Then {h.he} went to {q.name} and looked "
        "[carefully|everywhere|up and down].",
        "{h.he} searched {p.at} and {q.at}, but {h.he} found [nothing|only leaves|only an old shoe].",
        "{h.name} felt [sad|worried|very sad]. {h.he} sat down {q.at} and began to cry.",
    ],
    [
        '{f.full} saw {h.him} and asked, "[What is wrong?|Why are you so sad?|What are you looking for?]" '
        '"I lost my {o.name}," said {h.name}. "[Let us look together|I will help you|Do not worry, we will find it]," said {f.name}.',
        'Then {h.he} met {f.full}. "Have you seen {o.a}?" asked {h.name}. "[Maybe|I think so|Yes]," said {f.name}. "[Come with me|Follow me|Let me show you]!"',
    ],
    [
        "They looked and looked. At last, they found it {q.hiding}!",
        "Together they went back to {q.name}. There, {q.hiding}, was {o.the}!",
        "{f.name} had [sharp eyes|a good idea|a very good nose]. Soon {f.he} found {o.the} {q.hiding}.",
    ],
    [
        '"[Thank you|Thank you so much|You are a true friend]!" said {h.name}. {h.he} [hugged|thanked] {f.name} [and laughed|with all {h.his} heart].',
        "{h.name} was so happy that {h.he} [danced|jumped|cheered]. {h.he} [gave {f.name} a big hug|shared {food} with {f.name}].",
    ],
)
FRIEND = (
    [
        "{h.he} had no one to play with, and {h.he} often felt lonely.",
        "But {h.name} was shy, and it was hard for {h.him} to make friends.",
        "{h.he} had just moved to a new home, and {h.he} did not know anyone.",
    ],
    [
        "One [sunny|cloudy|warm] day, {h.he} saw {f.a} {p.at}. {f.he} was playing with {o.a}, all alone.",
        "One [morning|afternoon], {f.a} named {f.name} came to {p.name} with {o.a}.",
        "Then one day, {h.he} heard a small voice {p.at}. It was {f.a} with {o.a}.",
    ],
    [
        '{h.name} took a deep breath. "[Hello|Hi]," {h.he} said [softly|quietly]. "My name is {h.name}. [May I play with you|Do you want to play|What is your name]?"',
        'At first, {h.name} hid behind a tree. Then {h.he} [stepped out|waved] and said, "[That is a lovely|I like your] {o.name}!"',
    ],
    [
        '{f.name} [smiled|laughed|nodded]. "[Yes, please|Of course|I was hoping you would ask]!" {f.he} said. "I am {f.name}."',
        '"[Thank you|Oh, hello]!" said {f.name} with a [big|shy|bright] smile. "I am {f.name}. [I wanted a friend, too|Let us play together]."',
    ],
    [
        "They played with {o.the} all [day|afternoon|morning]. Then they [sat down|rested] and shared {food}.",
        "They [ran|walked|raced] to {q.name} and looked at {q.sight}. They [talked|laughed|sang] until it was time to go home.",
        'They built a [small house|tall tower|tiny boat] out of [sticks|stones|leaves]. "[This is fun|You are good at this]," said {f.name}.',
    ],
)
FEAR = (
    [
        "But {h.name} was afraid of {fear}. {h.he} did not want anyone to know.",
        "There was only one problem. {h.name} was [very|so] afraid of {fear}.",
        "{h.he} was [happy|brave] most of the time, but {fear} made {h.him} [shake|hide|cry].",
    ],
    [
        "One [night|evening|day], {f.full} called for help {p.at}. {h.name} heard {f.him}, but {h.he} could not move.",
        "One [evening|day], {f.name} asked {h.him} to come to {p.name}. {h.name} looked at {h.his} feet and said nothing.",
        "All {h.his} friends went to {p.name}, but {h.name} stayed at home.",
    ],
    [
        '{m} sat down next to {h.him}. "[Everyone is afraid of something|I was afraid once, too]," said {m}. "[Take one small step|Hold my hand|Breathe in and count to three]."',
        '"I am scared," {h.name} told {m}. "That is all right," said {m}. "[You can be scared and brave at the same time|Being brave means trying]."',
    ],
    [
        "So {h.name} [took a deep breath|closed {h.his} eyes|counted to three]. {h.he} took one step, and then another. Nothing bad happened!",
        "{h.name} thought about this for a long time. Then {h.he} stood up, held {h.his} {o.name} tight, and went to {p.name}.",
        "{h.name} tried once and [ran back|stopped]. {h.he} tried again. The third time, {h.he} [did it|was not so afraid]!",
    ],
    [
        '"[You did it|I knew you could do it|How brave you are]!" said {f.name}. {h.name} [laughed|smiled|felt proud].',
        "After that, {fear} did not seem so bad. {h.name} and {f.name} [played|laughed|sat] {p.at} until late.",
    ],
)
SHARE = (
    [
        "One day, {h.name} had {food}. It [smelled|looked] [wonderful|so good], and {h.he} was [very|a little] hungry.",
        "{m} gave {h.him} {food} for lunch. {h.name} carried it to {p.name} to eat.",
    ],
    [
        "On the way, {h.he} saw {f.a} named {f.name}. {f.he} looked [thin|cold|tired] and sad.",
        "Just then, {f.full} came by. {f.he} had not eaten [all day|since morning].",
        '"[Excuse me|Hello]," said a small voice. It was {f.full}, all alone. "[I am so hungry|I have nothing to eat]."',
    ],
    [
        "At first, {h.name} wanted to keep it all. But then {h.he} saw how hungry {f.name} was. "
        '"Please take [half|some of mine]," {h.he} said.',
        '{h.name} [thought for a moment|smiled]. "[We can share|There is enough for two|Sit with me]," {h.he} said.',
    ],
    [
        "They sat {p.at} and ate together. It tasted even better than before.",
        '{f.name} ate [slowly|every bite|quickly]. "That was the best food I ever had!" {f.he} said.',
    ],
    [
        "The next day, {f.name} came back with {o.a}. \"This is for you,\" {f.he} said. \"You were kind to me.\"",
        "Later, {h.name} got lost {q.at}, and it was {f.name} who showed {h.him} the way home.",
        "The next morning, there was {o.a} at {h.name}'s door. It was a gift from {f.name}.",
    ],
)
BROKEN = (
    [
        "One day, {h.name} was [running|jumping|dancing] in the house. Crash! {h.he} broke {m}'s {o.colour} {o.name}.",
        "One afternoon, {h.he} borrowed {o.a} from {m}. But {h.he} was not careful, and it broke.",
    ],
    [
        "{h.name} hid it {p.hiding}. {h.his} heart felt heavy.",
        "{h.he} [felt awful|did not know what to do|wanted to hide]. {h.he} could not eat, and {h.he} could not sleep.",
    ],
    [
        'Then {h.he} told {f.full} about it. "[You should tell the truth|Say what happened]," said {f.name}. "[I will come with you|It will be all right]."',
        '{f.full} said, "A mistake is not the end of the world. [Tell the truth|Say you are sorry]."',
    ],
    [
        '{h.name} went to {m} and said, "I broke your {o.name}. I am [so|very] sorry."',
        '"I have to tell you something," {h.name} said to {m}. "I broke {o.the}."',
    ],
    [
        '^{m} was quiet for a moment. Then came a smile. "Thank you for telling me. [Let us fix it together|You were brave]."',
        '"I am glad you told me," said {m}. They [got some glue|found a needle and thread|worked all evening], and soon the {o.name} was [as good as new|fixed].',
    ],
)
QUEST = (
    [
        "More than anything, {h.name} wanted to see {goal}.",
        "{h.he} had [a big|one] dream. {h.he} wanted to see {goal}.",
        'One night, {m} told {h.him} about {goal}. "I want to see it," said {h.name}.',
    ],
    [
        "So one morning, {h.he} packed {food} and {o.a} and set off.",
        "The next day, {h.he} put {food} in {h.his} bag, said goodbye to {m}, and left.",
    ],
    [
        "{h.he} walked past {p.name}, where {h.he} met {f.full}. \"Where are you going?\" asked {f.name}. \"To see {goal},\" said {h.name}. "
        '"[May I come too|Can I go with you]?" asked {f.name}.',
        "Near {p.name}, {h.he} found {f.a} [stuck in the mud|asleep on the road|crying]. {h.name} helped {f.him}. "
        '"I am {f.name}," said {f.the}. "I know the way. Let me go with you!"',
    ],
    [
        "They crossed a [river|bridge|field] and climbed a [hill|wall|mountain]. It [began to rain|got dark|was a long way], but they did not [stop|give up].",
        "The road was long. When {h.name} was tired, {f.name} sang. When {f.name} was cold, {h.name} [gave {f.him} a blanket|made a small fire].",
        'Then they came to a wide river. "We cannot cross," said {h.name}. "[Look, there is a log|We can build a boat]!" said {f.name}.',
    ],
    [
        "At last, they [saw it|were there]. It was [more beautiful than a dream|bigger than they had thought|bright and wonderful]. They [sat|stood] still for a long time.",
        'And then, one [morning|evening], there it was! "[It is beautiful|We made it]," whispered {h.name}.',
    ],
)
LEARN = (
    [
        "{h.name} wanted to learn to {skill}. {h.he} had watched others do it, and it looked [easy|like fun|wonderful].",
        "One day, {h.he} saw {f.full} {p.at}. {f.he} could {skill} very well. \"I want to do that!\" said {h.name}.",
    ],
    [
        "{h.he} tried, but it did not work. {h.he} tried again and [fell down|got it wrong|made a mess]. \"I will never learn,\" {h.he} said.",
        "The first time, {h.he} [fell over|failed]. The second time was [no better|even worse]. Everyone laughed, and {h.name} [went red|wanted to stop].",
    ],
    [
        '"[Do not give up|It takes time|Try a little every day]," said {f.name}. "[I can show you|When I started, I could not do it, either]."',
        '{m} said, "You cannot do it yet. Yet is a small word, but it [means a lot|is very strong]."',
    ],
    [
        "So {h.name} practised every [day|morning|evening] {p.at}. Little by little, {h.he} got better.",
        "Day after day, {h.he} went to {p.name} and practised. Some days were good, and some days were [bad|hard].",
    ],
    [
        "Then one [fine|bright|spring] day, {h.he} could {skill}! \"Look at me!\" {h.he} [shouted|called|cried].",
        "At last, {h.he} could {skill} all by {self}. {f.name} clapped and cheered.",
    ],
)
RESCUE = (
    [
        "One [cold|windy|bright] day, {h.name} heard a [cry|noise|voice] {p.at}. \"Help! Help!\"",
        "One day, {h.he} was walking {p.at} when {h.he} heard someone call for help.",
    ],
    [
        "It was {f.a}! {f.he} was stuck [in the mud|in a deep hole|high in a tree|between two rocks] and could not get out.",
        "There was {f.full}, stuck [in a net|under a fallen branch|in a deep hole].",
    ],
    [
        'A big {big} came by, but {bhe} only laughed. "You are too small to help," said the {big}.',
        "{h.name} pulled and pulled, but {h.he} was not strong enough. {h.he} had to think.",
    ],
    [
        "Then {h.name} had an idea. {h.he} found [a long rope|a strong branch|a piece of wood] and [pulled|pushed] with all {h.his} might. Pop! {f.name} was free!",
        "{h.name} ran to get {m}. Together they pulled, and slowly, slowly, {f.name} came out.",
    ],
    [
        '"You saved me!" said {f.name}. "[How can I thank you|How can I ever pay you back]?"',
        '{f.name} gave {h.him} {o.a} to say thank you. "[Small friends can be great friends|You are the bravest {h.kind} I know]," {f.he} said.',
    ],
)
STORM = (
    [
        "One afternoon, dark clouds came over {p.name}. The wind blew, and the rain [began to fall|came down hard].",
        "One day, a [big|loud|terrible] storm came. [Thunder rolled over the hills|Lightning lit up the sky].",
    ],
    [
        "{h.name} ran to find a dry place. {h.he} found [an empty cave|a hollow tree|an old hut] and crept inside.",
        "{h.he} was far from home, so {h.he} hid [under a big leaf|in a hollow tree|in an old hut].",
    ],
    [
        'Soon there was a knock. It was {f.full}, wet and cold. "May I come in?" {f.he} asked. "[Of course|Yes, there is room for two]," said {h.name}.',
        'Inside, {h.he} saw two bright eyes in the dark. "[Do not be afraid|Hello]," said a voice. "I am {f.name}. [I am hiding from the rain, too|The storm scares me]."',
    ],
    [
        "They sat close together, ate {food}, and told [funny stories|stories|jokes] until the storm [was over|passed].",
        "To pass the time, they sang [every song they knew|an old song]. Soon the thunder did not sound so loud.",
    ],
    [
        "When the rain stopped, they went outside. A [big|bright|beautiful] rainbow was shining over {q.name}.",
        "In the morning, the sky was blue again. The whole world looked [clean|new|fresh].",
    ],
)
GIFT = (
    [
        "It was almost {f.name}'s birthday. {h.name} wanted to give {f.him} something special.",
        "Tomorrow was a special day. {f.name}, {h.his} best friend, was turning [five|six|seven|eight].",
    ],
    [
        "{h.he} had no [money|coins], so {h.he} went to {p.name} to look for something nice.",
        "{h.he} thought and thought. Should it be {o.a}? Or maybe {food}?",
    ],
    [
        "{p.at}, {h.he} found {o.a}, but it was old and dirty. {h.name} washed it, fixed it, and painted it {o2.colour}.",
        '"What should I give {f.him}?" {h.he} asked {m}. "Give something made with your own hands," said {m}. So {h.name} made {o2.a}.',
    ],
    [
        "The next day, {h.he} gave the gift to {f.name}. {h.his} heart was beating fast.",
        'On the birthday, all the friends came with big gifts. {h.name} held out {h.his} small one. "It is not much," {h.he} said.',
    ],
    [
        '"[I love it|It is beautiful|This is the best gift of all]!" said {f.name}, and {f.he} gave {h.name} a big hug.',
        "{f.name} opened it and [smiled|laughed] with joy. \"You made this for me?\" {f.he} asked. \"Thank you!\"",
    ],
)
SEED = (
    [
        "One spring day, {h.name} found a [tiny|small|strange] seed {p.at}. \"What will it be?\" {h.he} wondered.",
        "One day, {m} gave {h.him} a [tiny|small|round] seed. \"Take good care of it,\" said {m}.",
    ],
    [
        "{h.he} dug a little hole, put the seed inside, and covered it with [soft|dark|warm] earth.",
        "{h.he} planted it {q.at} and gave it some water.",
    ],
    [
        "{h.he} waited one day. Nothing happened. {h.he} waited [two|three|ten] more days. Still nothing.",
        '"It will never grow," said {f.full}. But {h.name} watered it every day and [sang to it|waited].',
    ],
    [
        "Then one morning, there was a small green [leaf|shoot]! {h.name} [jumped for joy|could not believe it|called all {h.his} friends].",
        "After a week of rain, the sun came out. And there it was, a [tiny|bright] green shoot!",
    ],
    [
        "It grew and grew until it was a [tall sunflower|beautiful {o.colour} rose|strong apple tree]. {f.name} came to see it. \"You were right to wait,\" {f.he} said.",
        "By summer, it was [taller than {h.name}|full of {o.colour} flowers]. Everyone came to look at it.",
    ],
)
WISH = (
    [
        "One [night|evening], {h.name} found {o.a} {p.at}. It was [glowing|warm|shining], and when {h.he} touched it, it spoke!",
        "One day, {h.he} helped an old {old} cross the road. \"Take this {o.colour} {o.name},\" said the {old}. \"It is magic.\"",
    ],
    [
        '"I can give you one wish," said the {o.name}. "Think well!"',
        "\"You may make one wish,\" said a [soft|deep|tiny] voice.",
    ],
    [
        "{h.name} thought about [gold|a castle|a mountain of cake] and [a crown|a flying horse|new shoes]. Then {h.he} thought of {f.full}, who was [sick|far away|always alone].",
        "{h.he} could ask for anything! But then {h.he} saw {f.full}, who was [crying|cold|very sad] {q.at}.",
    ],
    [
        '"I wish for {f.name} to be happy," said {h.name}. There was a flash of {o2.colour} light.',
        '{h.he} closed {h.his} eyes. "Please help {f.name}," {h.he} said. The wind blew, and the stars [danced|shone].',
    ],
    [
        "The next morning, {f.name} was at the door, smiling. The magic was gone, but {h.name} did not mind.",
        "When {h.he} opened {h.his} eyes, {f.name} was laughing. The {o.name} was just a {o.name} again, but {h.name} had [a friend|all {h.he} wanted].",
    ],
)
SLEEP = (
    [
        "One night, {h.name} could not sleep. {h.he} turned to the left and {h.he} turned to the right.",
        "The moon was high, but {h.name} was still awake.",
    ],
    [
        "{h.he} counted [sheep|stars|to one hundred], but it did not help. The house was [quiet|dark|too quiet].",
        "{h.he} drank some [warm milk|water] and looked out of the window. A [big|bright|round] moon looked back.",
    ],
    [
        'Outside, {h.he} saw {f.full}. "[Can you not sleep, either|Are you awake, too]?" asked {f.name}. "No," said {h.name}. "[My head is full of thoughts|I miss the sun]."',
        '{m} heard {h.him} and came in. "Shall I tell you a story?" asked {m}. "[Yes, please|Yes, a long one]," said {h.name}.',
    ],
    [
        "They [sat|lay] on the soft grass and named the stars. One looked like {o.a}, and one looked like {food}.",
        "It was a story about a [boat|train|balloon] that sailed to the moon. It was {o.colour} and very slow.",
    ],
    [
        "Little by little, {h.his} eyes began to close. \"Good night,\" said the moon.",
        "Before the end of the story, {h.name} was fast asleep.",
    ],
)
RACE = (
    [
        'One day, there was a big race {p.at}. "I will win," said {f.full}. "[I am the fastest of all|Nobody can beat me]!"',
        "Every year, there was a race from {p.name} to {q.name}. {f.full} [always won|had won three times].",
    ],
    [
        "{h.name} was not fast, but {h.he} wanted to try. Some of the others laughed at {h.him}.",
        '"I want to race, too," said {h.name}. "You?" laughed {f.name}. "You are too slow!"',
    ],
    [
        '"Ready, set, go!" {f.name} ran ahead like the wind. {h.name} ran slowly but [did not stop|kept going].',
        "When the race began, {f.name} was soon far ahead. {h.name} took [one step at a time|small, steady steps].",
    ],
    [
        "Half way, {f.name} [stopped to eat {food}|lay down to sleep|tripped over a stone]. {h.name} could have run past, but {h.he} "
        "[kept running|helped {f.him} up|waved and went on].",
        "Near the end, {f.name} [fell into a ditch|hurt {f.his} foot]. {h.name} stopped. \"Lean on me,\" {h.he} said.",
    ],
    [
        'They crossed the line [together|side by side]. "[You are the real winner|Next year, let us run together]," said {f.name}.',
        "Everyone [cheered|clapped]. {h.name} got {o.a} as a prize, and {f.name} said [well done|sorry].",
    ],
)
# Each skeleton with the lessons that fit it.
SKELETONS = (
    (LOST, "it is all right to ask for help|two pairs of eyes are better than one|it is good to take care of things"),
    (FRIEND, "a friend can be found anywhere|one small word can start a friendship|it is good to say hello first"),
    (FEAR, "being brave means trying|fear gets smaller when you look at it|small steps lead far"),
    (SHARE, "it is good to share|kindness always comes back|food tastes better with a friend"),
    (BROKEN, "the truth is always best|it is brave to say sorry|a mistake can be fixed"),
    (QUEST, "small steps lead far|a long road is short with a friend|dreams are worth a long walk"),
    (LEARN, "patience is worth it|nobody is good at first|small steps lead far|it is good to try again"),
    (RESCUE, "even the smallest can help|a good idea is stronger than big arms|it is good to help others"),
    (STORM, "no storm lasts forever|a friend makes the rain sound soft|there is always room for one more"),
    (GIFT, "the best gifts come from the heart|a small gift can bring great joy"),
    (SEED, "patience is worth it|good things take time|small things can grow big"),
    (WISH, "friends are better than gold|the best wish is for somebody else"),
    (SLEEP, "the night is a good friend|a story is the best pillow"),
    (RACE, "kindness is better than winning|slow and steady can win, too|it is good to try"),
)

FEARS = "the dark|loud thunder|deep water|high places|big dogs|the forest at night|strangers".split("|")
GOALS = (
    "the sea|the highest mountain|the end of the rainbow|a falling star|the city of lights|the golden castle|snow|the biggest tree in the world"
).split("|")
SKILLS = "swim|bake bread|ride a bike|paint|whistle|skate|dance|play the drum|climb trees|read|sing".split("|")


def _mentor(rng: random.Random, hero: Person) -> str:
    family = "mother father grandmother grandfather".split()
    if rng.random() < 0.7:
        return f"{hero.his} {rng.choice(family)}"
    return "the " + rng.choice(["old owl", "wise turtle", "old teacher", "baker", "old gardener"])


def _food(rng: random.Random) -> str:
    return f"a {rng.choice('fresh warm big sweet small'.split())} {rng.choice(FOODS)}"


def cast(rng: random.Random, kind: str | None) -> dict[str, object]:
    """The words one story uses: hero, friend, mentor, places, things; the same pronouns all through."""
    hero = person(rng, kind)
    friend = person(rng, avoid=[hero])
    here, there = rng.sample(PLACES, 2)
    skills = SKILLS + (["fly"] * 3 if hero.kind in FLYERS and friend.kind in FLYERS else [])
    return {
        "h": hero, "f": friend, "m": _mentor(rng, hero), "p": here, "q": there, "o": thing(rng), "o2": thing(rng),
        "food": _food(rng), "home": rng.choice(HOMES), "fear": rng.choice(FEARS), "goal": rng.choice(GOALS),
        "skill": rng.choice(skills), "big": rng.choice(["wolf", "bear", "goose", "bull"]), "bhe": rng.choice(["he", "it"]),
        "old": rng.choice(["man", "woman"]), "self": hero.him.replace("her", "herself").replace("him", "himself"),
    }  # fmt: skip


def story(rng: random.Random, kind: str | None = None, *, short: bool = False) -> str:
    """One story of about 120 to 220 words; `kind` sets the hero, `short` leaves out the asides."""
    words = cast(rng, kind)
    skeleton, lessons = rng.choice(SKELETONS)
    parts = [rng.choice(OPENINGS[:6] if rng.random() < 0.45 else OPENINGS)]
    if not short:
        parts.append(rng.choice([like for like in LIKES if "{f" not in like or skeleton is GIFT]))
    parts += [rng.choice(options) for options in skeleton]
    parts.append(rng.choice(ENDINGS))
    if not short:
        parts.append(rng.choice(("", "The end.", f"{{h.name}} learned that [{lessons}].")))
    paragraphs = [" ".join(part for part in group if part) for group in _paragraphs(rng, parts)]
    return write(rng, "\n".join(p for p in paragraphs if p), **words)


def _paragraphs(rng: random.Random, parts: list[str]) -> list[list[str]]:
    if rng.random() < 0.6:
        return [parts]
    return [parts[:2], parts[2:-3], parts[-3:]]
