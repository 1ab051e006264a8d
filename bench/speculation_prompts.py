"""Prompts of bench.speculation: ten that ask for a text again with one change, ten new ones."""

from __future__ import annotations

_TASKS = (
    (
        "Repeat the text below, but write 'blue' instead of 'red'.",
        "The red house stands at the end of the street. It was built by a carpenter who came "
        "from the north with two sons and a dog. In the summer the garden is full of roses, and "
        "in the winter the snow lies on the roof until March. Nobody has lived in the red house "
        "for many years, but the children of the village still tell stories about it.",
    ),
    (
        "Copy this text exactly, but change the name Anna to Maria.",
        "Anna works in a small bakery near the station. Every morning she gets up at four, puts "
        "on her apron and lights the oven. By six the first customers arrive, most of them "
        "workers from the factory across the river. They buy bread, coffee and sometimes a piece "
        "of apple cake. At noon the bakery closes and she walks home through the park.",
    ),
    (
        "Write this function again with the variable `total` renamed to `sum`.",
        "def average(values):\n    "
        "total = 0\n    "
        "count = 0\n    "
        "for value in values:\n        "
        "if value is None:\n            "
        "continue\n        "
        "total += value\n        "
        "count += 1\n    "
        "if count == 0:\n        "
        "return 0\n    "
        "return total / count",
    ),
    (
        "Repeat this list and replace apples by oranges.",
        "1. Buy two kilograms of apples at the market.\n"
        "2. Wash them and cut them into small pieces.\n"
        "3. Put the pieces into a large pot with a cup of water.\n"
        "4. Add sugar and a little cinnamon.\n"
        "5. Cook everything for twenty minutes and stir from time to time.\n"
        "6. Fill the glasses and close them while they are hot.",
    ),
    (
        "Correct the one spelling mistake in this text and repeat the rest unchanged.",
        "The meeting will take place on Monday at ten in the large room on the second floor. "
        "Please bring the figures of the last quarter and a short sumary of your projects. After "
        "the meeting there will be lunch for everybody in the canteen. If you cannot come, tell "
        "the office before Friday so that we can plan the seats.",
    ),
    (
        'Repeat this JSON with the value of "city" changed to "Rome".',
        '{"name": "Peter Smith", "age": 41, "city": "Paris", "languages": '
        '["English", "French", "German"], "address": {"street": "Long Road", '
        '"number": 12, "floor": 3}, "member": true, "orders": [{"id": 1001, "price": '
        '12.5}, {"id": 1002, "price": 99.0}]}',
    ),
    (
        "Say this again, but in the first sentence write 'evening' instead of 'morning'.",
        "It was a cold morning when the ship left the harbour. The captain stood on the bridge "
        "and looked at the grey sea. Behind him the lights of the town grew smaller and smaller. "
        "Below, the sailors were tying the last ropes and talking about the storm that everybody "
        "expected. Nobody knew how long the journey would take this time.",
    ),
    (
        "Repeat the following class, but name it Account instead of Wallet.",
        "class Wallet:\n    "
        "def __init__(self, owner, balance=0):\n        "
        "self.owner = owner\n        "
        "self.balance = balance\n"
        "\n    "
        "def deposit(self, amount):\n        "
        "self.balance += amount\n"
        "\n    "
        "def withdraw(self, amount):\n        "
        "if amount > self.balance:\n            "
        'raise ValueError("not enough money")\n        '
        "self.balance -= amount",
    ),
    (
        "Copy this letter and change the date to the 3rd of May.",
        "Dear Mr. Brown,\n"
        "\n"
        "thank you for your letter of the 12th of April. We are glad to hear that the machine "
        "has arrived and that it works as you hoped. Our technician will visit you next week to "
        "show your people how it is cleaned and which oil it needs. If you have any questions "
        "before then, please call our office.\n"
        "\n"
        "Yours sincerely,\n"
        "John Miller",
    ),
    (
        "Repeat this table, with 7 instead of 5 for the pears.",
        "| fruit | number | price |\n"
        "|---|---|---|\n"
        "| apples | 12 | 3.40 |\n"
        "| pears | 5 | 2.10 |\n"
        "| plums | 30 | 4.75 |\n"
        "| cherries | 100 | 6.20 |\n"
        "| bananas | 8 | 1.90 |\n"
        "| oranges | 14 | 3.85 |\n"
        "| lemons | 6 | 1.20 |",
    ),
)
COPYING = tuple(f"{task}\n\n{text}" for task, text in _TASKS)
FREE = (
    "Why is the sky blue?",
    "Tell me a story about a lighthouse keeper who finds a letter.",
    "Explain how a bicycle stays upright.",
    "What should I think about before I adopt a dog?",
    "Describe the streets of a big city early in the morning.",
    "Write a short speech for the birthday of a good friend.",
    "How does a computer store numbers?",
    "What was daily life like in ancient Rome?",
    "Give me advice for a job interview.",
    "Write a poem about autumn.",
)
