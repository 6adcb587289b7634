"""Small facts of the world as tables: capitals, colours, sounds, translations, programs. Data only."""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off

CAPITALS: dict[str, str] = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "England": "London",
    "the United Kingdom": "London", "Ireland": "Dublin", "Scotland": "Edinburgh", "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen", "Finland": "Helsinki", "Poland": "Warsaw", "Austria": "Vienna",
    "Switzerland": "Bern", "Greece": "Athens",
    "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv", "Hungary": "Budapest",
    "the Czech Republic": "Prague",
    "the Netherlands": "Amsterdam", "Belgium": "Brussels", "Romania": "Bucharest", "Bulgaria": "Sofia",
    "Croatia": "Zagreb",
    "Japan": "Tokyo", "China": "Beijing", "South Korea": "Seoul", "India": "New Delhi", "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Morocco": "Rabat", "Canada": "Ottawa",
    "the United States": "Washington",
    "the USA": "Washington", "Mexico": "Mexico City", "Brazil": "Brasília", "Argentina": "Buenos Aires",
    "Chile": "Santiago",
    "Peru": "Lima", "Cuba": "Havana", "Australia": "Canberra", "New Zealand": "Wellington",
    "Iceland": "Reykjavik",
}

COLOURS: dict[str, str] = {
    "the sky": "blue", "grass": "green", "snow": "white", "blood": "red", "a banana": "yellow",
    "a tomato": "red", "coal": "black",
    "an orange": "orange", "the sun": "yellow", "a lemon": "yellow", "milk": "white", "chocolate": "brown",
    "the sea": "blue",
    "a strawberry": "red", "a cucumber": "green", "an elephant": "grey", "a frog": "green",
    "a carrot": "orange", "a flamingo": "pink",
}

SOUNDS: dict[str, str] = {
    "dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "duck": "quack", "pig": "oink",
    "horse": "neigh", "lion": "roar",
    "bee": "buzz", "frog": "croak", "owl": "hoot", "snake": "hiss", "mouse": "squeak",
    "rooster": "cock-a-doodle-doo",
}

TRANSLATIONS: dict[str, dict[str, str]] = {
    "French": {"hello": "bonjour", "thank you": "merci", "goodbye": "au revoir", "yes": "oui", "no": "non",
               "water": "eau", "cat": "chat",
               "dog": "chien", "house": "maison", "bread": "pain", "good morning": "bonjour",
               "please": "s'il vous plaît"},
    "German": {"hello": "hallo", "thank you": "danke", "goodbye": "auf Wiedersehen", "yes": "ja",
               "no": "nein", "water": "Wasser",
               "cat": "Katze", "dog": "Hund", "house": "Haus", "bread": "Brot",
               "good morning": "guten Morgen", "please": "bitte"},
    "Spanish": {"hello": "hola", "thank you": "gracias", "goodbye": "adiós", "yes": "sí", "no": "no",
                "water": "agua", "cat": "gato",
                "dog": "perro", "house": "casa", "bread": "pan", "good morning": "buenos días",
                "please": "por favor"},
    "Italian": {"hello": "ciao", "thank you": "grazie", "goodbye": "arrivederci", "yes": "sì", "no": "no",
                "water": "acqua", "cat": "gatto",
                "dog": "cane", "house": "casa", "bread": "pane", "good morning": "buongiorno",
                "please": "per favore"},
    "Japanese": {"hello": "こんにちは", "thank you": "ありがとう", "goodbye": "さようなら", "yes": "はい",
                 "no": "いいえ",
                 "cat": "猫", "dog": "犬"},
    "Russian": {"hello": "привет", "thank you": "спасибо", "goodbye": "до свидания", "yes": "да",
                "no": "нет"},
    "Chinese": {"hello": "你好", "thank you": "谢谢", "goodbye": "再见",
                "yes": "是", "cat": "猫", "dog": "狗"},
}

HELLO_WORLD: dict[str, str] = {
    "Python": 'print("Hello, world!")',
    "Rust": 'fn main() {\n    println!("Hello, world!");\n}',
    "C": '#include <stdio.h>\n\nint main(void) {\n    printf("Hello, world!\\n");\n    return 0;\n}',
    "JavaScript": 'console.log("Hello, world!");',
    "Go": 'package main\n\nimport "fmt"\n\nfunc main() {\n    fmt.Println("Hello, world!")\n}',
    "Bash": 'echo "Hello, world!"',
    "Java": 'class Hello {\n    public static void main(String[] args) {\n        '
            'System.out.println("Hello, world!");\n    }\n}',
}

LISTS: dict[str, tuple[str, ...]] = {
    "fruits": ("apple", "banana", "cherry", "orange", "pear", "grape", "lemon", "mango", "peach", "plum"),
    "vegetables": ("carrot", "potato", "tomato", "onion", "cabbage", "spinach", "pepper", "cucumber", "bean",
                   "pea"),
    "animals": ("dog", "cat", "horse", "elephant", "lion", "rabbit", "bear", "mouse", "fox", "sheep"),
    "birds": ("eagle", "sparrow", "owl", "robin", "swan", "parrot", "pigeon", "crow", "penguin", "stork"),
    "colours": ("red", "blue", "green", "yellow", "orange", "purple", "black", "white", "brown", "pink"),
    "colors": ("red", "blue", "green", "yellow", "orange", "purple", "black", "white", "brown", "pink"),
    "countries": ("France", "Japan", "Brazil", "Canada", "Egypt", "India", "Norway", "Italy", "Kenya",
                  "Peru"),
    "cities": ("Paris", "Tokyo", "London", "Cairo", "Rome", "Berlin", "Lima", "Sydney", "Toronto", "Oslo"),
    "languages": ("English", "Spanish", "French", "German", "Chinese", "Arabic", "Hindi", "Japanese",
                  "Italian", "Russian"),
    "programming languages": ("Python", "Rust", "C", "Java", "Go", "JavaScript", "Ruby", "Swift", "Kotlin",
                              "Julia"),
    "instruments": ("piano", "violin", "guitar", "flute", "drum", "trumpet", "cello", "harp", "clarinet",
                    "organ"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"),
    "flowers": ("rose", "tulip", "daisy", "lily", "sunflower", "violet", "orchid", "poppy", "iris",
                "jasmine"),
    "trees": ("oak", "pine", "birch", "maple", "willow", "beech", "cedar", "ash", "elm", "fir"),
    "sports": ("football", "tennis", "swimming", "running", "basketball", "cycling", "hockey", "golf",
               "rowing", "skiing"),
    "drinks": ("water", "tea", "coffee", "milk", "juice", "lemonade", "cocoa", "cider", "soda", "broth"),
}

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")
SEASONS = ("spring", "summer", "autumn", "winter")

TRIVIA: tuple[tuple[tuple[str, ...], str], ...] = (
    (("How many days are in a week?", "How many days does a week have?", "How long is a week?"),
     "A week has seven days."),
    (("How many months are in a year?", "How many months does a year have?"), "A year has twelve months."),
    (("How many days are in a year?", "How long is a year?", "How many days does a year have?"),
     "A year has 365 days, and a leap year has 366."),
    (("How many hours are in a day?", "How long is a day?", "How many hours does a day have?"),
     "A day has 24 hours."),
    (("How many minutes are in an hour?", "How many minutes does an hour have?", "How long is an hour?"),
     "An hour has 60 minutes."),
    (("How many seconds are in a minute?", "How many seconds does a minute have?", "How long is a minute?"),
     "A minute has 60 seconds."),
    (("How many letters are in the alphabet?", "How many letters does the English alphabet have?"),
     "The English alphabet has 26 letters."),
    (("How many legs does a spider have?", "How many legs has a spider?"), "A spider has eight legs."),
    (("How many legs does a dog have?", "How many legs does a cat have?", "How many legs does a horse have?"),
     "It has four legs."),
    (("How many legs does an insect have?", "How many legs does an ant have?",
      "How many legs does a bee have?"), "It has six legs."),
    (("How many planets are there?", "How many planets are in the solar system?"),
     "There are eight planets in the solar system."),
    (("What are the seasons?", "Name the seasons.", "What are the four seasons?"),
     "The seasons are spring, summer, autumn and winter."),
    (("What is the largest planet?", "Which planet is the biggest?"),
     "The largest planet of the solar system is Jupiter."),
    (("At what temperature does water boil?", "When does water boil?"),
     "Water boils at 100 degrees Celsius."),
    (("At what temperature does water freeze?", "When does water freeze?"),
     "Water freezes at 0 degrees Celsius."),
    (("What is the largest ocean?", "Which ocean is the biggest?"),
     "The largest ocean is the Pacific Ocean."),
    (("What is the highest mountain?", "Which mountain is the tallest in the world?"),
     "The highest mountain in the world is Mount Everest."),
    (("What is the fastest animal?", "Which animal is the fastest on land?"),
     "The fastest animal on land is the cheetah."),
    (("What is pi?", "What is the value of pi?", "How much is pi?"),
     "Pi is about 3.14159. It is the circumference of a circle divided by its diameter."),
    (("Is the earth flat?", "Is the earth round?", "What shape is the earth?"),
     "The earth is round, almost like a ball."),
    (("Name the primary colours.", "What are the primary colours?", "What are the primary colors?"),
     "The primary colours are red, yellow and blue."),
    (("Recite the alphabet.", "Say the alphabet.", "Write the alphabet.", "What is the alphabet?",
      "Can you say the alphabet?"),
     "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"),
)
