"""BigramFlip as in Table 1b of Yang & Rush (2017).

lenmem train lantm/bigram_flip
lenmem reproduce lantm/bigram_flip --rows bigram_flip-lantm-L

Expected: 100% exact match at 17-32 bigrams in the best of 3 seeds, 81% in the median. Seen: 6 min on one core. By Adam
(`bigram_flip-lantm-adam-L`) 99.97% in the median.
"""

from lenmem.tasks.lantm import BigramFlip

from ._recipe import paper, table_rows

experiment = paper(BigramFlip())
rows = table_rows(BigramFlip(), "bigram_flip")
