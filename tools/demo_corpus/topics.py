"""Turns the tables of knowledge into exchanges: concepts, Inflight, small talk, facts, the unknown.

Pure: an author in, an exchange out.
"""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
from . import knowledge
from .author import Author, Exchange, capitalized, casual
from .concepts_learning import LEARNING
from .concepts_serving import SERVING
from .inflight_facts import INFLIGHT
from .small_talk import SMALL_TALK
from .words import CONSONANTS, NAMES, TOPICS, VOWELS, WORDS

CONCEPTS = LEARNING + SERVING

PLAIN = (
    "What is {x}?", "What is {x}?", "What is {x} exactly?", "Explain {x}.", "Explain {x} to me.",
    "Can you explain {x}?", "Tell me about {x}.",
    "Describe {x}.", "Define {x}.", "What does {x} mean?", "What do you know about {x}?",
    "How does {x} work?", "I want to learn about {x}.",
    "Please explain what {x} is.", "Could you tell me what {x} is?", "Give me an explanation of {x}.",
    "Do you know what {x} is?",
    "What is meant by {x}?", "{x}?", "{x}", "I do not understand {x}.", "Help me understand {x}.",
    "What exactly is {x}?",
    "Teach me about {x}.", "Why is {x} useful?", "Why does {x} matter?", "What is the idea behind {x}?",
    "What is {x} good for?",
    "Say something about {x}.", "What are {x}?", "Explain {x} like I am five.",
    "Explain {x} in simple words.", "Can you tell me about {x}?",
    "Can you tell me what {x} means?", "I would like to know what {x} is.", "Give me a definition of {x}.",
    "What do people mean by {x}?",
    "Have you heard of {x}?", "How would you explain {x}?", "How would you define {x}?",
    "What can you tell me about {x}?",
    "Could you explain {x} please?", "I keep hearing about {x}. What is it?", "What is {x} used for?",
    "Let's talk about {x}.",
    "Describe {x} to a beginner.", "What's the point of {x}?", "Explain the concept of {x}.",
    "My question is about {x}.",
    "Write a paragraph about {x}.", "What is {x} and why does it matter?",
    "What is {x} and how does it work?",
    "What is {x} and why is it useful?", "What is {x} and what is it used for?",
    "Explain what {x} is and why it is important.", "I am new here. What is {x}?",
    "What is {x} and why should I care?", "My boss asked me about {x}.",
    "We learned about {x} at school. What is it?", "Tell me something about {x}.",
    "I read about {x} today.", "What would you say about {x}?", "Explain {x} to a child.",
    "Explain {x} to me like I'm 5.", "Can you describe {x}?", "How do {x} work?",
    "What makes {x} important?", "Who uses {x}?", "When do I need {x}?", "Do I need {x}?",
    "Is {x} important?", "Please describe {x} for me.", "Introduce me to {x}.",
    "Do you know anything about {x}?", "Why do people use {x}?", "Why do we need {x}?",
)
BRIEF = (
    "What is {x} in one sentence?", "Briefly, what is {x}?", "Give me a short definition of {x}.",
    "Explain {x} in one sentence.",
    "Explain {x} briefly.", "In short, what is {x}?", "Define {x} in one sentence.",
    "In one sentence, what is {x}?", "Summarize {x} in one sentence.",
    "What is {x}? Keep it short.", "What is {x}? Be brief.", "What is {x}, in a nutshell?",
    "Describe {x} in one sentence.",
)
DETAILED = (
    "Explain {x} in detail.", "Tell me everything about {x}.", "Give me a detailed explanation of {x}.",
    "What is {x}? Please explain in detail.",
    "Tell me everything you know about {x}.", "Write a long explanation of {x}.", "Explain {x} at length.",
    "Describe {x} in detail.",
)
COMPARE = (
    "What is the difference between {x} and {y}?", "Compare {x} and {y}.", "How does {x} differ from {y}?",
    "Explain {x} and {y}.",
    "What are {x} and {y}?", "{x} vs {y}", "{x} or {y}?", "Tell me about {x} and {y}.",
    "What is {x} and what is {y}?",
)


def concept(author: Author) -> Exchange:
    """A question about machine learning or serving: plain, brief, detailed, or comparing two concepts."""
    names, definition, details, more = author.pick(CONCEPTS)
    # The first two names are the ones people use.
    name = author.pick(names[:2]) if author.maybe(0.5) else author.pick(names)
    roll = author.random()
    if roll < 0.74:
        frame = PLAIN[:6] if author.maybe(0.35) and not author.evaluating else PLAIN
        question, answer = author.phrase(frame, x=name), f"{definition} {details}"
    elif roll < 0.84:
        question, answer = author.phrase(BRIEF, x=name), definition
    elif roll < 0.92:
        question, answer = author.phrase(DETAILED, x=name), f"{definition} {details} {more}"
    else:
        others = [record for record in CONCEPTS if record[0] is not names]
        other_names, other_definition, _, _ = author.pick(others)
        question = author.phrase(COMPARE, x=name, y=author.pick(other_names))
        answer = f"{definition} {other_definition}"
    return Exchange(casual(author, capitalized(question)), answer, short=definition, more=more)


def inflight(author: Author) -> Exchange:
    """A question about Inflight itself."""
    phrasings, answer, more = author.pick(INFLIGHT)
    first = answer.split(". ")[0].rstrip(".") + "."
    return Exchange(casual(author, author.phrase(phrasings)), answer,
                    short=first if "`" not in first else None, more=more)


def small_talk(author: Author) -> Exchange:
    """A greeting, thanks, a farewell or a question about the model."""
    phrasings, answers = author.pick(SMALL_TALK)
    return Exchange(casual(author, author.phrase(phrasings)), answers[0], accept=answers[1:])


def fact(author: Author) -> Exchange:
    """A small fact of the world."""
    frames: tuple[str, ...]
    kind = author.randrange(6)
    if kind in (0, 1):
        country = author.pick(tuple(knowledge.CAPITALS))
        city = knowledge.CAPITALS[country]
        if author.maybe(0.15) and country != "the USA" and country not in ("England", "the United Kingdom"):
            frames = ("Where is {c}?", "In which country is {c}?", "{c} is the capital of which country?",
                      "Which country has the capital {c}?")
            return Exchange(casual(author, author.phrase(frames, c=city)),
                            f"{city} is the capital of {country}.", short=f"{capitalized(country)}.")
        frames = ("What is the capital of {x}?", "What's the capital of {x}?", "Capital of {x}?",
                  "Tell me the capital of {x}.", "Which city is the capital of {x}?",
                  "Name the capital of {x}.", "Do you know the capital of {x}?", "What is {x}'s capital?",
                  "What is the capital city of {x}?")
        return Exchange(casual(author, author.phrase(frames, x=country)),
                        f"The capital of {country} is {city}.", short=f"{city}.")
    if kind == 2:
        thing = author.pick(tuple(knowledge.COLOURS))
        colour = knowledge.COLOURS[thing]
        frames = ("What colour is {x}?", "What color is {x}?", "Which colour does {x} have?",
                  "What is the colour of {x}?", "Tell me the color of {x}.")
        return Exchange(casual(author, author.phrase(frames, x=thing)), f"{capitalized(thing)} is {colour}.",
                        short=f"{capitalized(colour)}.")
    if kind == 3:
        animal = author.pick(tuple(knowledge.SOUNDS))
        sound = knowledge.SOUNDS[animal]
        frames = ("What sound does a {x} make?", "What does a {x} say?", "Which sound does a {x} make?",
                  "How does a {x} sound?", "What noise does the {x} make?")
        return Exchange(casual(author, author.phrase(frames, x=animal)),
                        f"A {animal} says {sound}.".replace("A owl", "An owl"),
                        short=f"{capitalized(sound)}.")
    if kind == 4:
        language = author.pick(tuple(knowledge.TRANSLATIONS))
        word = author.pick(tuple(knowledge.TRANSLATIONS[language]))
        there = knowledge.TRANSLATIONS[language][word]
        frames = ("How do you say {w} in {l}?", "What is {w} in {l}?", "Translate {w} to {l}.",
                  "Translate {w} into {l}.", "Say {w} in {l}.",
                  "What does {w} mean in {l}?", "What is the {l} word for {w}?", "How do I say {w} in {l}?",
                  "{w} in {l}?")
        quoted = author.pick((word, word, f'"{word}"', f"'{word}'"))
        question = capitalized(author.phrase(frames, w=quoted, l=language))
        return Exchange(casual(author, question), f'In {language} you say "{there}".',
                        short=f"{capitalized(there)}.")
    if author.maybe(0.3):
        language = author.pick(tuple(knowledge.HELLO_WORLD))
        frames = ("Write hello world in {l}.", "Show me a hello world program in {l}.", "Hello world in {l}",
                  "How do I print hello world in {l}?",
                  "Write a hello world program in {l}.", "Give me a {l} hello world.",
                  "Write a simple {l} program.", "Print hello world in {l}.")
        program = f"```{language.lower()}\n{knowledge.HELLO_WORLD[language]}\n```"
        return Exchange(casual(author, author.phrase(frames, l=language), typos=False),
                        f"Here it is in {language}:\n\n{program}")
    phrasings, answer = author.pick(knowledge.TRIVIA)
    return Exchange(casual(author, author.phrase(phrasings)), answer)


SORRY = (
    "I am sorry, I do not know that. I am a tiny demo model and know only a little about machine learning, "
    "serving language models and Inflight."
)
CANNOT = (
    "I am sorry, I cannot do that. I am a tiny demo model and can only chat a little, explain machine "
    "learning "
    "and do simple word tasks."
)

PEOPLE = ("Napoleon", "Julius Caesar", "Albert Einstein", "Isaac Newton", "Mozart", "Beethoven",
                "Shakespeare", "Leonardo da Vinci", "Cleopatra", "Marie Curie", "Picasso", "Gandhi",
                "Taylor Swift", "the president", "the pope", "Darwin", "Galileo", "Aristotle", "Plato",
                "Columbus", "Tesla", "Edison", "Mandela", "Einstein", "Lionel Messi", "Elon Musk",
                "Socrates")
THINGS = ("photosynthesis", "quantum physics", "the stock market", "gravity", "democracy", "philosophy",
                "the Roman Empire", "World War II", "climate change", "inflation", "blockchain", "bitcoin",
                "evolution", "DNA", "the immune system", "relativity", "a black hole", "plate tectonics",
                "economics", "politics", "religion", "chess", "football", "cricket", "opera", "jazz",
                "architecture", "medicine", "cancer", "vitamin C", "aspirin", "law", "tax", "a mortgage",
                "insurance", "electricity", "magnetism", "a laser", "nuclear energy", "a volcano",
                "an earthquake", "the Great Wall of China", "the Eiffel Tower", "the Renaissance",
                "the French Revolution", "the Cold War", "poetry", "sushi", "lasagna", "beer", "wine", "yoga",
                "knitting", "gardening", "astronomy", "geology", "biology", "chemistry", "algebra",
                "calculus", "geometry", "the Higgs boson", "string theory", "antibiotics", "a vaccine",
                "the ozone layer", "recycling", "solar power", "an electric car", "a jet engine",
                "a submarine", "a telescope", "a microscope", "psychology", "sociology", "Java beans",
                "the Mona Lisa", "Hamlet", "Harry Potter", "Star Wars", "Mount Fuji", "the Nile",
                "the Amazon", "Antarctica", "penguins", "dinosaurs", "cheese making", "origami", "a sonnet")
UNKNOWN_FRAMES = (
    "What is {t}?", "Explain {t}.", "Tell me about {t}.", "How does {t} work?", "What do you know about {t}?",
    "Who invented {t}?", "What is the history of {t}?",
    "Why is {t} important?", "Can you explain {t}?", "Describe {t}.", "Who discovered {t}?",
    "When did {t} begin?", "{t}?", "What does {t} mean?",
    "Who was {p}?", "When was {p} born?", "What did {p} do?", "Where did {p} live?", "Tell me about {p}.",
    "Is {p} still alive?", "Why is {p} famous?",
    "How old is {p}?", "When did {p} die?", "What is the population of {c}?", "Who is the president of {c}?",
    "Who is the king of {c}?",
    "What is the weather in {c}?", "How is the weather in {c} today?", "Will it rain in {c} tomorrow?",
    "How far is {c} from here?", "How do I get to {c}?",
    "What is a good restaurant in {c}?", "Who won the world cup in {n}?", "What happened in {n}?",
    "Who won the election in {n}?", "How tall is {p}?",
    "What is the price of {t}?", "How much does {t} cost?", "What is the best book about {t}?",
    "Give me the latest news about {t}.",
    "What is the news today?", "What is the stock price of {z}?", "Who is {z}?", "What is {z}?",
    "What is a {z}?", "Where is {z}?", "Who is {m} {z}?",
    "Do you know {z}?", "Explain {z}.", "How do I cook {t}?", "What are the symptoms of {t}?",
    "How do I fix my {w}?", "What is the recipe for {t}?",
    "What is the phone number of {p}?", "How many people live in {c}?", "What is the currency of {c}?",
    "How deep is the {w}?", "Tell me about {z}.",
    "What is the square root of {n}?", "Is {t} good or bad?", "What is the best {w} in {c}?",
    "Who sings {t}?", "How many {w}s are there?", "Why is the {w} so {z}?", "What do you think about {t}?",
    "Do you like {p}?", "Is {p} better than {p}?",
    "What is the difference between {t} and {z}?", "What is the name of the {w} in {t}?",
    "Where can I buy a {w}?", "When does the {w} open?", "Who wrote {t}?",
    "Who painted {t}?", "Who lives in {c}?", "What language do they speak in {c}?",
    "Which river flows through {c}?", "What did {m} do yesterday?", "Where is my {w}?",
    "Where did I put my {w}?", "How long does it take to learn {t}?", "Does {m} like {t}?",
    "Why did {p} leave {c}?", "What is a {w}?", "How is a {w} made?",
    "What is the best {w}?", "Tell me about {c}.", "What is {c} famous for?",
    "What is the largest city of {c}?", "Is it cold in {c}?", "Why is the sky blue?",
    "Why do cats purr?", "How do birds fly?", "What is love?", "Is there life on Mars?",
    "How far away is the moon?", "Who was the first man on the moon?", "Which {w} should I buy?",
)
UNABLE_FRAMES = (
    "Book a flight to {c}.", "Order a pizza.", "Open the {w}.", "Call {m}.", "Send an email to {m}.",
    "Play some music.", "Set an alarm for {n}.",
    "Draw a {w}.", "Paint a picture of {p}.", "Search the web for {t}.", "Buy a {w} for me.",
    "Turn on the light.", "Write an essay about {t}.",
    "Write a program that sorts {w} objects.", "Translate this book.", "Solve this equation: {n}x = {n}.",
    "Book a table in {c}.", "Remind me to call {m}.",
    "Write a 10 page report about {t}.", "Summarize the book {t}.", "Make me a {w}.", "Cook dinner for {m}.",
    "Drive me to {c}.", "Show me a picture of {t}.",
    "Write a Python function that adds two numbers.", "Write a {l} function that {v}.",
    "Write a {l} program that {v}.", "Write a {l} script which {v}.",
    "How do I write a {l} function that {v}?", "Give me {l} code that {v}.", "Implement {t} in {l}.",
    "Write a {l} class for a {w}.", "Write code that {v}.",
    "Create a website for a {w}.", "Write a letter to {m}.", "Write a song about {t} in French.",
    "Translate this text: {z} {z} {z}", "Plan a trip to {c}.",
    "Give me a recipe for {t}.", "Write a business plan for {t}.", "Write a review of {t}.",
    "Write an email to my boss.", "Correct this sentence: {z} {w} {w}.",
    "Predict the weather in {c}.", "Predict the stock market.", "Read this file: {w}.txt", "Do my homework.",
    "Generate an image of a {w}.", "Show me a map of {c}.",
    "Write a sorting algorithm.", "Write a quicksort function.", "Fix the bug in my code.",
    "Write SQL to join two tables.", "Design a {w}.",
)


KNOWN = {"python", "rust", "model", "token", "tensor", "worker", "gateway", "server", "client", "batch",
             "cache", "code", "computer", "planet"}
UNRELATED = tuple(word for word in WORDS + TOPICS if word not in KNOWN)
DEEDS = ("adds two numbers", "sorts a list", "reads a file", "prints the primes", "reverses a string",
         "downloads a page", "counts words", "computes the factorial",
         "parses JSON", "finds the largest number", "draws a circle", "sends an email", "checks a password",
         "plays chess", "opens a window", "multiplies two matrices")


def pseudo_word(author: Author, syllables: int) -> str:
    """A word that does not exist but can be pronounced."""
    parts = [author.pick(CONSONANTS) + author.pick(VOWELS) for _ in range(syllables)]
    return "".join(parts) + (author.pick(CONSONANTS) if author.maybe(0.5) else "")


def unknown(author: Author) -> Exchange:
    """A question outside the model's small world, and the honest answer."""
    slots = {
        "t": author.pick(THINGS), "p": author.pick(PEOPLE), "c": author.pick(tuple(knowledge.CAPITALS)),
        "n": str(author.randrange(1000, 2030)),
        "z": capitalized(pseudo_word(author, author.randrange(2, 4))), "m": author.pick(NAMES),
        "w": author.pick(UNRELATED),
        "l": author.pick(("Python", "Rust", "C", "Java", "JavaScript", "Go", "Bash", "SQL")),
        "v": author.pick(DEEDS),
    }
    if author.maybe(0.25):
        return Exchange(casual(author, author.phrase(UNABLE_FRAMES, **slots)), CANNOT, accept=(SORRY,))
    return Exchange(casual(author, capitalized(author.phrase(UNKNOWN_FRAMES, **slots))), SORRY,
                    accept=(CANNOT,))
