"""Sums of numbers with up to 20 digits by Transformers trained on up to 6 digits, with the positions of the task.

lenmem compare positions/sums_small
lenmem compare positions/sums_small --models coupled rotary

The format is that of position coupling (Cho et al. 2024): numbers padded to the same length, the sum with its lowest
digit first. The task gives all digits of the same place value the same position (`Addition(positions="coupled")`), and
`coupled` uses it (`Transformer(positions="given")`); in training all positions of a row are shifted by a random number.
The shift goes up to `max_positions`, so it should be little more than the largest position of the test: each position
is learned separately. The paper trains on 30 digits for 50,000 steps, answers symbol by symbol, and reaches 100.

Measured: `results/positions/sums_small/comparison.json`. Exact match at 7, 9, 12 and 20 digits, in the median of two
seeds: coupled 95, 68, 47 and 2; rotary, with 98 at 6 digits, 0; alibi, with 94 at 6 digits, 23 at 7 and 0 beyond;
without positions the network has not learned 3 digits.
"""

from lenmem.experiment import Evaluation, Experiment
from lenmem.tasks.addition import Addition
from lenmem.training import Cosine, Optimizer, Training

from ._recipe import network

LAYERS = 3
kinds = {"coupled": "given", "rotary": "rotary", "alibi": "alibi", "none": "none"}
models = {name: network(kind).clone(layers=LAYERS) for name, kind in kinds.items()}
models["coupled"] = models["coupled"].clone(max_positions=32)
task = Addition("reversed_answer", padded=True, positions="coupled", train_lengths=(1, 6), test_lengths=(7, 20))
training = Training(
    steps=8000,
    batch_size=64,
    seeds=2,
    optimizer=Optimizer("adam", learning_rate=2e-3, schedule=Cosine(warmup=200), clip_norm=1.0),
)
experiment = Experiment(task, models["coupled"], training, Evaluation((3, 6, 7, 8, 9, 10, 12, 15, 20)))
