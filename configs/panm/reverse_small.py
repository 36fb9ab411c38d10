"""Reverse of Le et al. (2024) at width 128, for a CPU.

lenmem train panm/reverse_small
lenmem reproduce panm/reverse_small --rows reverse-panm-small

Token accuracy in % at lengths 9, 10, 20, 40 and 80, median of 3 seeds after 2,000 steps (the paper's after 50,000):

    panm               100  100   95   47   32    (100  100   84   51   33)
    neural_stack       100  100  100  100   83    (100   96   64   35   19)
    content_attention  100  100   71   31   19    (100   81   38   23   16)
    lstm                93   90   57   31   20    (100   96   53   33   22)
    ptrnet              53   63   17   13   12    (100   77   32   22   12)
    transformer         39   28   18   14   12    (100   18   15   13   11)

What was pushed is popped in reverse order, whatever the length: the stack needs no pointers here.
"""

from lenmem.tasks.panm import PanmReverse

from ._recipe import small, small_rows

experiment = small(PanmReverse(), steps=2000)
rows = small_rows(PanmReverse(), "reverse", steps=2000)
