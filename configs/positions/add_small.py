"""Sums of numbers of 200 digits by Transformers trained on up to 20, with each encoding of positions.

lenmem compare positions/add_small
lenmem compare positions/add_small --models sinusoidal rotary rotary_randomized

The digits of both numbers are interleaved, lowest first: 400 tokens at 200 digits.

One seed after 5,000 steps, tokens right at 5, 10, 20, 25 and 40 digits: relative positions of Transformer-XL 89, 65,
41, 17, 15%; T5 76, 50, 24, 15, 2%; randomised T5 55, 38, 23, 19, 14%; all others at most 49% at 5. Guessing: 10%. So
none has learnt to add at trained lengths, and what is left beyond them says little. From three minutes a network on one
core, with other work on the other.
"""

from lenmem.tasks.lantm import InterleavedAdd

from ._recipe import networks, small

experiment = small(InterleavedAdd(train_lengths=(1, 20), test_lengths=(21, 200)))
models = networks()
