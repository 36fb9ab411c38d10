"""Reversals of 200 digits by Transformers trained on up to 20, with each encoding of positions.

lenmem compare positions/reverse_small
lenmem compare positions/reverse_small --models sinusoidal rotary rotary_randomized

One seed after 5,000 steps: at length 40 79% of the tokens are right with randomised T5, 74 and 69% with FIRE
(randomised and not), 56% with randomised Transformer-XL, and less than 44% with all others. At 200 none is above 27%.
Two to six minutes a network on one shared core.
"""

from lenmem.tasks.lantm import Reverse

from ._recipe import networks, small

experiment = small(Reverse(vocabulary=10, train_lengths=(1, 20), test_lengths=(21, 200)))
models = networks()
