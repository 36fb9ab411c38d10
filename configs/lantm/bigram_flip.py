"""BigramFlip as in Table 1b of Yang & Rush (2017).

lenmem train lantm/bigram_flip
lenmem reproduce lantm/bigram_flip --rows bigram_flip-lantm-L

Records: `results/lantm/bigram_flip-lantm-L.json`, and with Adam `bigram_flip-lantm-adam-L.json`.
"""

from lenmem.tasks.lantm import BigramFlip

from ._recipe import paper, table_rows

experiment = paper(BigramFlip())
rows = table_rows(BigramFlip(), "bigram_flip")
