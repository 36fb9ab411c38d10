"""Reversals of 200 digits by Transformers trained on up to 20, with each position encoding.

lenmem compare positions/reverse_small
lenmem compare positions/reverse_small --models sinusoidal rotary rotary_randomized

Token accuracy and exact match by length, one seed: `results/positions/reverse_small/comparison.json`.
"""

from lenmem.tasks.lantm import Reverse

from ._recipe import networks, small

experiment = small(Reverse(vocabulary=10, train_lengths=(1, 20), test_lengths=(21, 200)))
models = networks()
