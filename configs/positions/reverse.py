"""Reversals of 500 digits by Transformers trained on up to 40, with each position encoding, on a GPU.

lenmem compare positions/reverse
"""

from lenmem.tasks.lantm import Reverse

from ._recipe import large, networks

experiment = large(Reverse(vocabulary=10, train_lengths=(1, 40), test_lengths=(41, 500)))
models = networks(256)
