"""Copies of 500 digits by Transformers trained on up to 40, with each position encoding, on a GPU.

lenmem compare positions/copy
"""

from lenmem.tasks.lantm import Copy

from ._recipe import large, networks

experiment = large(Copy(vocabulary=10, train_lengths=(1, 40), test_lengths=(41, 500)))
models = networks(256)
