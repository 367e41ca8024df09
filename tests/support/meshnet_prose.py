"""Prompts of any length from real prose, each beginning elsewhere in it."""

from __future__ import annotations

from collections.abc import Callable

PROSE = """
The lighthouse keeper of the northern point had counted ships for thirty years before he counted his first whale. He
wrote the number in the same ledger, under the same date, in the same hand, and thought no more of it until the
harbour master came to ask why the tally of vessels did not agree with the customs books. It was a cold morning in
March, the ice had just left the bay, and the two men stood over the ledger while the kettle boiled. A machine that
counts, said the harbour master, would have known the difference. A machine that counts, said the keeper, would not
have looked up.

In the spring the company sent an engineer to measure the lamp. She carried a case of brass instruments and a notebook
ruled in millimetres; she measured the lens, the height of the gallery above the mean tide, the speed of the clockwork
and the quantity of oil that it burned between dusk and dawn. On the fourth day she asked the keeper what he did when
the clockwork stopped. I turn it by hand, he said. For how long? Until it is mended, or until it is day. She wrote
down the answer and underlined it twice, for none of the tables that she had been given had a column for it.

To build a bridge one needs three things: a river, a reason, and someone who will not leave before it stands. The
river is usually there already. The reason changes with the price of grain. The third is the difficulty, and every
account of a great work is in truth the account of a person who stayed. The masons of the old town knew this, and cut
their marks on the inner faces of the stones, where no traveller would see them and no flood would wear them away.

def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

The recipe is simple: two eggs, a spoon of flour, half a cup of milk, salt. Beat the eggs first. Let the pan grow hot
before the butter goes in, and let the butter stop singing before the batter follows it. What remains is patience,
which is not in the list because it cannot be bought. Q: How many moons has Mars? A: Two, Phobos and Deimos. Q: Who
wrote the first program for a machine that was never finished? A: Ada Lovelace, in the notes to a translation. Q: What
is the boiling point of water at sea level? A: One hundred degrees Celsius. The committee met on Tuesday and adjourned
without a vote; the minutes record that the window was opened at four and closed at five, and that nobody spoke of the
budget.
"""


def prompt_maker(encode: Callable[[str], list[int]]) -> Callable[[int, int], list[int]]:
    """A function (length, start) -> ids: `length` tokens of the prose from a place that depends on `start`."""
    ids = encode(PROSE.strip())

    def make(length: int, start: int = 0) -> list[int]:
        first = (start * 37) % len(ids)
        repeated = ids[first:] + ids * (length // len(ids) + 1)
        return repeated[:length]

    return make
