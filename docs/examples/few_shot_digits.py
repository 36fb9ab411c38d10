"""Digits from a few pictures of each, by writes to a matrix alone: no loss, no gradient, each picture seen once.

python docs/examples/few_shot_digits.py      writes docs/pictures/few_shot_digits.png (needs scikit-learn)
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lenmem import ops
from lenmem.data import digits

WAYS = {
    "sum of outer products": (1.0, 0.0),
    "exact writes": (1.0, 1.0),
    "writes by a tenth": (0.1, 0.1),
}
"""Name -> p_w and p_e."""


@jax.jit
def learn(inputs: jax.Array, outputs: jax.Array, write: float, erase: float) -> jax.Array:
    """W after one write for each pair."""
    return ops.few_shot(jnp.zeros((outputs.shape[-1], inputs.shape[-1])), inputs, outputs, write, erase)


def episode(shots: int, seed: int) -> dict[str, float]:
    """Accuracies on the pictures that were not shown, after `shots` random ones of each digit in random order."""
    pictures, labels = digits.read()
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    place = [shuffled[labels[shuffled] == digit] for digit in range(10)]
    shown = rng.permutation(np.concatenate([own[:shots] for own in place]))
    others = np.concatenate([own[shots:] for own in place])
    pixels = pictures.reshape(len(pictures), -1) / 16
    pixels = pixels - pixels[shown].mean(axis=0)
    targets = np.eye(10)[labels] - 0.1
    found = {}
    for name, (write, erase) in WAYS.items():
        weight = learn(pixels[shown], targets[shown], write, erase)
        found[name] = float(np.mean(np.argmax(pixels[others] @ np.asarray(weight).T, axis=1) == labels[others]))
    means = np.stack([pixels[own[:shots]].mean(axis=0) for own in place])
    nearest = np.argmin(np.sum(np.square(pixels[others, None] - means), axis=-1), axis=1)
    return found | {"nearest mean (no memory)": float(np.mean(nearest == labels[others]))}


def accuracies(shots: tuple[int, ...], episodes: int) -> dict[str, np.ndarray]:
    """Name -> float[shots, episodes]."""
    results = [[episode(count, seed) for seed in range(episodes)] for count in shots]
    return {name: np.array([[each[name] for each in row] for row in results]) for name in results[0][0]}


def draw(shots: tuple[int, ...], found: dict[str, np.ndarray], path: Path) -> None:
    """Mean accuracy by number of pictures, with the deviation over episodes."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    ax = figure.subplots()
    for (name, values), style in zip(found.items(), ("o-", "s-", "^-", "k:"), strict=True):
        mean, deviation = values.mean(axis=1), values.std(axis=1)
        ax.plot(shots, mean, style, label=name, markersize=4)
        ax.fill_between(shots, mean - deviation, mean + deviation, alpha=0.15)
    ax.axhline(0.1, color="grey", linewidth=0.8)
    ax.text(shots[-1], 0.11, "chance", ha="right", fontsize=8, color="grey")
    ax.set(
        xscale="log", xticks=shots, xticklabels=shots, ylim=(0, 1), xlabel="pictures of each digit", ylabel="accuracy"
    )
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    counts, episodes = (1, 2, 5, 10, 20, 50), 20
    table = accuracies(counts, episodes)
    print(f"{'pictures of each digit':26}", *(f"{count:>6}" for count in counts))
    for name, values in table.items():
        print(f"{name:26}", *(f"{100 * mean:6.1f}" for mean in values.mean(axis=1)))
    draw(counts, table, Path(__file__).parents[1] / "pictures/few_shot_digits.png")
