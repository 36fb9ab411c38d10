"""Sums of numbers with 500 digits by Transformers trained on up to 40, with each position encoding, on a GPU.

lenmem compare positions/add
"""

from lenmem.tasks.lantm import InterleavedAdd

from ._recipe import large, networks

experiment = large(InterleavedAdd(train_lengths=(1, 40), test_lengths=(41, 500)))
models = networks(256)
