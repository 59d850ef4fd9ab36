"""What the demo model can say: a closed vocabulary, and a grammar of things people say with it."""

from __future__ import annotations

import random
from collections.abc import Callable

DIGITS = "zero one two three four five six seven eight nine".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SCALES = "hundred thousand million".split()
ARITHMETIC = "point plus minus times equals percent".split()
COMMANDS = (
    "yes no okay stop go start pause play next back up down left right on off open close cancel "
    "hello goodbye please thanks help repeat continue save delete undo copy send call answer mute "
    "louder quieter record read write search print enter exit"
).split()
HOME = (
    "light lights lamp door window kitchen bedroom bathroom garage room music volume radio fan "
    "heating camera screen phone message mail"
).split()
COLOURS = "red green blue yellow black white orange purple".split()
TIME = (
    "second seconds minute minutes hour hours day week month year today tomorrow yesterday morning "
    "evening night noon midnight timer alarm clock"
).split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
MONTHS = (
    "january february march april may june july august september october november december"
).split()
NATO = (
    "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar "
    "papa quebec romeo sierra tango uniform victor whiskey xray yankee zulu"
).split()
RANKS = "two three four five six seven eight nine ten ace king queen jack".split()
SUITS = "clubs spades hearts diamonds".split()
DIRECTIONS = "north south east west".split()
NAMES = "computer alexa jarvis athena".split()
GLUE = (
    "oh the a and of for in at to set is it what what's time weather turn like how old you would "
    "thank good cold warm living"
).split()

#: Words that make sense on their own; each is cut out of read speech and spoken by every voice.
ALONE = list(
    dict.fromkeys(
        DIGITS + TEENS + TENS + SCALES + ARITHMETIC + COMMANDS + HOME + COLOURS + TIME + DAYS
        + MONTHS + NATO + RANKS[-4:] + SUITS + DIRECTIONS + NAMES
    )
)  # fmt: skip
#: Every word the model can write. Speech outside it is written as ``UNKNOWN``.
WORDS = sorted(set(ALONE + GLUE))
UNKNOWN = "..."


def below_hundred(n: int) -> str:
    """Spell 0..99."""
    if n < 10:
        return DIGITS[n]
    if n < 20:
        return TEENS[n - 10]
    return TENS[n // 10 - 2] + (f" {DIGITS[n % 10]}" if n % 10 else "")


def number(r: random.Random) -> str:
    """Spell a random number the way people say it; small ones are likelier."""
    kind = r.random()
    if kind < 0.25:
        return below_hundred(r.randrange(1, 20))
    if kind < 0.75:
        return below_hundred(r.randrange(20, 100))
    if kind < 0.88:
        rest = r.randrange(0, 100)
        joint = r.choice([" ", " ", " ", " and ", " and "])
        return f"{DIGITS[r.randrange(1, 10)]} hundred" + (joint + below_hundred(rest)) * (rest > 0)
    if kind < 0.95:
        tail = "" if r.random() < 0.5 else f" {DIGITS[r.randrange(1, 10)]} hundred"
        return f"{below_hundred(r.randrange(1, 100))} thousand{tail}"
    if kind < 0.98:
        return f"{below_hundred(r.randrange(1, 100))} point {digits(r, 1, 3)}"
    return f"{below_hundred(r.randrange(1, 100))} million"


def digits(r: random.Random, least: int, most: int) -> str:
    """Say a run of digits; one half of the runs say "oh" for zero."""
    zero = r.choice(["zero", "oh"])
    picked = (r.choice(DIGITS) for _ in range(r.randint(least, most)))
    return " ".join(zero if d == "zero" else d for d in picked)


def _numbers(r: random.Random) -> str:
    pick = r.choice
    return pick(
        [
            digits(r, 2, 7),
            digits(r, 3, 10),
            number(r),
            f"{number(r)} {pick(['plus', 'minus', 'times'])} {number(r)}",
            f"{number(r)} {pick(['plus', 'minus', 'times'])} {number(r)} equals {number(r)}",
            f"{number(r)} percent",
            f"{pick(['it is', 'in', ''])} {number(r)} {pick(TIME[:10])}",
            f"{pick(DAYS)} {pick(MONTHS)} {number(r)}",
        ]
    )


def _home(r: random.Random) -> str:
    pick = r.choice
    polite = pick(["please", "would you please", "would you", "", "", ""])
    place = pick(["", "", "living room", "kitchen", "bedroom", "bathroom", "garage"])
    thing = pick("light lights lamp fan radio music heating camera screen".split())
    to = pick(
        [
            "{} in the morning",
            "{} in the evening",
            "{} tomorrow",
            "{} today",
            f"{{}} {pick(DAYS)}",
            "{}",
        ]
    ).format(number(r))
    return pick(
        [
            f"{polite} turn {pick(['on', 'off'])} the {place} {thing}",
            f"turn {pick(['on', 'off', 'up', 'down'])} the {place} {thing}",
            f"{pick(['open', 'close'])} the {place} {pick(['door', 'window'])} "
            f"{pick(['', 'please'])}",
            f"set {pick(['a', 'the'])} {pick(['timer', 'alarm'])} {pick(['for', 'to'])} "
            f"{number(r)} {pick(['seconds', 'minutes', 'hours'])}",
            f"set the alarm {pick(['for', 'at'])} {to}",
            f"set the {pick(['volume', 'screen', 'radio', 'heating', 'light'])} to {number(r)} "
            f"{pick(['', 'percent'])}",
            f"{pick(COLOURS)} {pick(['light', 'lamp', 'door', 'window', 'phone', 'screen'])}",
        ]
    )


def _talk(r: random.Random) -> str:
    pick = r.choice
    return pick(
        [
            f"{pick(['play', 'stop', 'pause', 'repeat', 'start'])} {pick(['the', ''])} "
            f"{pick(['music', 'radio', 'message', 'timer', 'clock', 'alarm'])}",
            f"{pick(['read', 'send', 'delete', 'save', 'answer', 'copy', 'print'])} the "
            f"{pick(['message', 'mail', 'phone', 'screen'])}",
            pick(["what time is it", "what day is it", "what is the time", "what's the time"]),
            pick(["what is the weather like", "what's the weather like", "what is the weather"])
            + pick(["", " today", " tomorrow", f" on {pick(DAYS)}"]),
            f"how old {pick(['is it', 'are you', 'is the phone', 'is the lamp'])}".replace(
                "are you", "is the camera"
            ),
            pick(["good morning", "good evening", "good night", "thank you", "no thank you"]),
            f"{pick(['hello', 'goodbye', 'okay'])} {pick(NAMES)}",
            f"{pick(NAMES)} {pick(['turn on the lights', 'stop', 'next', 'play music', 'help'])}",
            pick(["yes please", "no thanks", "it is cold", "it is warm"])
            + pick(["", " today", " tomorrow"]),
            f"{pick(['on', ''])} {pick(DAYS)} {pick(['morning', 'evening', 'night', 'at noon'])}",
            f"go {pick(['left', 'right', 'back', 'up', 'down', *DIRECTIONS])}",
        ]
    )


def _lists(r: random.Random) -> str:
    pick = r.choice

    def some(words: list[str], least: int, most: int) -> str:
        return " ".join(pick(words) for _ in range(r.randint(least, most)))

    card = "{} of {}".format
    return pick(
        [
            some(NATO, 2, 6),
            f"call {some(NATO, 2, 2)}",
            some(COLOURS, 2, 4),
            some(ALONE, 2, 5),
            some(COMMANDS, 2, 4),
            " ".join(card(pick(RANKS), pick(SUITS)) for _ in range(r.randint(1, 3))),
        ]
    )


def phrase(r: random.Random) -> str:
    """Make up something to say, of words in ``WORDS`` only."""
    kinds: list[Callable[[random.Random], str]] = [_numbers, _home, _talk, _lists]
    return " ".join(r.choices(kinds, [0.3, 0.28, 0.18, 0.24])[0](r).split())
