"""Copies of 200 digits by Transformers trained on up to 20, with each position encoding.

lenmem compare positions/copy_small
lenmem compare positions/copy_small --models sinusoidal rotary rotary_randomized

Token accuracy and exact match by length, one seed: `results/positions/copy_small/comparison.json`.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import networks, small

experiment = small(Copy(vocabulary=10, train_lengths=(1, 20), test_lengths=(21, 200)))
models = networks()
