"""Sums of numbers with 200 digits by Transformers trained on up to 20, with each position encoding.

lenmem compare positions/add_small
lenmem compare positions/add_small --models sinusoidal rotary rotary_randomized

The digits of both numbers are interleaved, lowest first: 400 tokens at 200 digits.

Token accuracy and exact match by length, one seed: `results/positions/add_small/comparison.json`. No network has
learned to add at the trained lengths, so the results beyond them say little. Learned positions start as small as
BERT's, as they were measured; with the default of `Transformer`, `position_std=0.7`, they learn to copy faster.
"""

from lenmem.nn.linear import BERT_STD
from lenmem.tasks.lantm import InterleavedAdd

from ._recipe import networks, small

experiment = small(InterleavedAdd(train_lengths=(1, 20), test_lengths=(21, 200)))
models = networks(position_std=BERT_STD)
