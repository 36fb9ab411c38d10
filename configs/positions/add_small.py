"""Sums of numbers with 200 digits by Transformers trained on up to 20, with each position encoding.

lenmem compare positions/add_small
lenmem compare positions/add_small --models sinusoidal rotary rotary_randomized

The digits of both numbers are interleaved, lowest first: 400 tokens at 200 digits.

Token accuracy and exact match by length, one seed: `results/positions/add_small/comparison.json`. No network has
learned to add at the trained lengths, so the results beyond them say little.
"""

from lenmem.tasks.lantm import InterleavedAdd

from ._recipe import networks, small

experiment = small(InterleavedAdd(train_lengths=(1, 20), test_lengths=(21, 200)))
models = networks()
