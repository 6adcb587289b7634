"""Word lists: everyday words to spell, opposites, plurals, rhymes, names and story topics. Data only."""

from __future__ import annotations

# Tables stay dense, and a list of words is easier to read without its quotes.
# fmt: off
# ruff: noqa: SIM905

WORDS: tuple[str, ...] = tuple((
    "apple banana cherry orange lemon grape peach bread butter cheese sugar honey water river ocean "
    "mountain forest garden flower "
    "tree leaf stone sand cloud rain snow storm wind light night morning evening summer winter spring "
    "autumn house window door table chair "
    "kitchen bottle glass plate spoon knife paper pencil book letter story poem music song piano guitar "
    "drum dance dog cat horse mouse "
    "rabbit tiger lion zebra monkey elephant bird eagle spider turtle dolphin whale shark fish train plane "
    "rocket wheel engine bridge street "
    "city village castle king queen prince dragon wizard friend mother father sister brother baby child "
    "teacher doctor farmer baker "
    "pilot sailor happy angry quick slow small large bright dark green yellow purple silver golden model "
    "token tensor worker gateway "
    "server client batch cache python rust code number simple open close start stop hello world planet star "
    "moon earth mars space "
    "dream sleep smile laugh heart hand finger shoulder button pocket jacket shirt shoe candle mirror clock "
    "basket ladder hammer "
    "island desert valley lake field beach harbor market school library museum theater office factory "
    "tunnel tower palace temple "
    "coffee cookie pepper onion carrot potato tomato noodle pizza salad soup rice cake pie milk juice plum "
    "pear melon mango "
    "winner runner player singer writer reader painter driver hunter ranger soldier captain robot camera "
    "screen keyboard radio phone "
    "north south east west left right before after under over between always never often maybe today "
    "tomorrow yesterday"
).split())

OPPOSITES: dict[str, str] = {
    "hot": "cold", "big": "small", "large": "small", "fast": "slow", "quick": "slow", "up": "down",
    "left": "right", "day": "night",
    "light": "dark", "happy": "sad", "good": "bad", "old": "young", "new": "old", "long": "short",
    "tall": "short", "high": "low",
    "open": "closed", "full": "empty", "hard": "soft", "wet": "dry", "rich": "poor", "strong": "weak",
    "early": "late", "first": "last",
    "black": "white", "yes": "no", "true": "false", "right": "wrong", "in": "out", "on": "off",
    "over": "under", "above": "below",
    "before": "after", "always": "never", "love": "hate", "win": "lose", "begin": "end", "start": "stop",
    "buy": "sell", "give": "take",
    "push": "pull", "come": "go", "inside": "outside", "clean": "dirty", "easy": "difficult", "loud": "quiet",
    "heavy": "light",
    "thick": "thin", "wide": "narrow", "deep": "shallow", "sweet": "sour", "near": "far", "north": "south",
    "east": "west",
    "summer": "winter", "friend": "enemy", "question": "answer", "cheap": "expensive", "brave": "afraid",
    "ugly": "beautiful",
    "alive": "dead", "awake": "asleep", "safe": "dangerous", "same": "different", "simple": "complicated",
    "warm": "cool",
    "male": "female", "positive": "negative", "more": "less", "many": "few", "front": "back", "top": "bottom",
}

PLURALS: dict[str, str] = {
    "mouse": "mice", "child": "children", "man": "men", "woman": "women", "foot": "feet", "tooth": "teeth",
    "goose": "geese",
    "person": "people", "sheep": "sheep", "fish": "fish", "leaf": "leaves", "knife": "knives",
    "wolf": "wolves", "wife": "wives",
    "life": "lives", "city": "cities", "baby": "babies", "story": "stories", "lady": "ladies",
    "party": "parties", "box": "boxes",
    "bus": "buses", "dish": "dishes", "church": "churches", "potato": "potatoes", "tomato": "tomatoes",
    "hero": "heroes", "fox": "foxes",
    "cherry": "cherries", "berry": "berries", "glass": "glasses", "watch": "watches", "ox": "oxen",
    "shelf": "shelves", "peach": "peaches",
    "cat": "cats", "dog": "dogs", "house": "houses", "car": "cars", "tree": "trees", "book": "books",
    "apple": "apples", "table": "tables",
    "token": "tokens", "worker": "workers", "friend": "friends", "song": "songs", "day": "days",
    "key": "keys", "boy": "boys", "girl": "girls",
    "bird": "birds", "river": "rivers", "flower": "flowers", "cloud": "clouds", "star": "stars",
    "dragon": "dragons", "king": "kings",
}

RHYMES: tuple[tuple[str, ...], ...] = (
    ("cat", "hat", "bat"), ("dog", "fog", "log"), ("house", "mouse", "blouse"), ("light", "night", "bright"),
    ("day", "way", "play"),
    ("tree", "bee", "sea"), ("star", "car", "far"), ("moon", "spoon", "soon"), ("rain", "train", "plain"),
    ("book", "cook", "look"),
    ("cake", "lake", "snake"), ("ring", "king", "sing"), ("ball", "wall", "tall"), ("boat", "coat", "goat"),
    ("snow", "blow", "slow"),
    ("bread", "red", "bed"), ("time", "rhyme", "lime"), ("fish", "dish", "wish"), ("heart", "art", "start"),
    ("sun", "fun", "run"),
    ("blue", "true", "new"), ("gold", "cold", "old"), ("bear", "chair", "hair"), ("sky", "fly", "high"),
    ("stone", "phone", "bone"),
    ("love", "dove", "glove"), ("green", "queen", "seen"), ("wind", "pinned", "grinned"),
    ("fast", "last", "past"), ("dream", "cream", "stream"),
)

NAMES: tuple[str, ...] = tuple((
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Maria Noah Olivia Paul Rosa Sam Tina "
    "Victor Wendy Alice Bob Carol Daniel "
    "Eva Frank Gina Hugo Irene Jonas Karl Laura Max Nina Oscar Peter Rita Simon Tom Ursula Vera Will Zoe "
    "Amir Chen Diego Fatima Kenji "
    "Lena Mateo Omar Priya Raj Sofia Yuki Lucas Mia Ella Adam Sarah James Mary John Julia Robert Linda "
    "Michael Susan Alex Sasha Robin"
).split())

TOPICS: tuple[str, ...] = tuple((
    "cat dog dragon robot fox rabbit mouse bear wolf owl whale turtle horse lion tiger elephant monkey "
    "penguin frog bee butterfly knight "
    "princess wizard pirate sailor farmer baker pilot king queen giant ghost fairy mermaid astronaut "
    "detective teacher doctor painter "
    "river mountain forest ocean castle lighthouse garden village train ship rocket star moon cloud snowman "
    "tree flower clock book "
    "violin computer gateway server token spider squirrel hedgehog parrot crow dolphin unicorn gardener "
    "fisherman"
).split())

CITIES: tuple[str, ...] = (
    "Paris", "London", "Berlin", "Rome", "Madrid", "Tokyo", "New York", "Boston", "Chicago", "Sydney",
    "Cairo", "Lima", "Oslo", "Vienna",
    "Prague", "Dublin", "Toronto", "Seoul", "Mumbai", "Nairobi", "Lisbon", "Athens", "Warsaw", "Munich",
    "Hamburg", "San Francisco",
    "Los Angeles", "Helsinki", "Stockholm", "Zurich", "Geneva", "Milan", "Barcelona", "Brussels", "Amsterdam",
    "Istanbul", "Moscow",
    "Beijing", "Shanghai", "Singapore", "Bangkok", "Jakarta", "Delhi", "Dubai", "Denver", "Seattle", "Miami",
    "Dallas", "Austin", "Quebec",
)

CONSONANTS = "bcdfghklmnprstvwz"
VOWELS = "aeiou"
