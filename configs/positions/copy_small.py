"""Copies of 200 digits by Transformers trained on up to 20, with each encoding of positions.

lenmem compare positions/copy_small
lenmem compare positions/copy_small --models sinusoidal rotary rotary_randomized

One seed after 5,000 steps: at length 20 all tokens are right with sinusoidal positions, FIRE and randomised T5; at 25
it is 94% with the latter two, at 40 66% with randomised T5, 58 and 55% with FIRE (randomised and not), and less than
46% with all others. At 200 none is above 26%. Two to six minutes a network on one shared core.
"""

from lenmem.tasks.lantm import Copy

from ._recipe import networks, small

experiment = small(Copy(vocabulary=10, train_lengths=(1, 20), test_lengths=(21, 200)))
models = networks()
