"""Options that take several words at once: ``--include mean per_tok``, ``--repr-layers 0 -1``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import click

Accepts = Callable[[str], bool]


def is_integer(word: str) -> bool:
    """Whether a word is a whole number, negative ones included."""
    return word.removeprefix("-").isdigit()


def one_of(*words: str) -> Accepts:
    """Accept exactly these words."""
    return lambda word: word in words


def spread_words(args: Sequence[str], options: Mapping[str, Accepts]) -> list[str]:
    """Rewrite ``--option a b c`` to ``--option=a --option=b --option=c``.

    After an option, words are taken as long as they can be its values, so that a path that follows stays a path.
    Commas separate too: ``--include mean,per_tok``. Nothing after ``--`` is touched.

    Examples
    --------
    >>> spread_words(["--layers", "0", "-1", "in.fasta", "-o", "x"], {"--layers": is_integer})
    ['--layers=0', '--layers=-1', 'in.fasta', '-o', 'x']
    """
    out: list[str] = []
    place = 0
    while place < len(args):
        word = args[place]
        place += 1
        if word == "--":
            return [*out, *args[place - 1 :]]
        name, equals, value = word.partition("=")
        if name not in options:
            out.append(word)
            continue
        values = [value] if equals else []
        # Without "=" the next word is the value whatever it is, so that a wrong one is named in click's message.
        if not equals and place < len(args):
            values.append(args[place])
            place += 1
        while place < len(args) and all(options[name](part) for part in args[place].split(",")):
            values.append(args[place])
            place += 1
        if not values:
            out.append(word)
        out += [f"{name}={part}" for group in values for part in group.split(",")]
    return out


class WordsCommand(click.Command):
    """A command whose `words` options take several words; each such option is declared with ``multiple=True``."""

    words: Mapping[str, Accepts] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread_words(args, self.words))
