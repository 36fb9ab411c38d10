"""Pictures of curves, training and memory. The only package that imports matplotlib; it does not use its global state.

Every `plot_` function returns a `Figure` and, given `path`, also writes it (the suffix decides the format). `draw`
draws the traces of a network on an example, with the pictures that each paper's file registers
(`lenmem.evaluation.plots.registry`).
"""

from lenmem.evaluation.plots.curves import (
    plot_cross_table,
    plot_curve_grid,
    plot_curve_panels,
    plot_curves,
    plot_training,
)
from lenmem.evaluation.plots.dnc import plot_curvature, plot_modes, plot_states, plot_trials
from lenmem.evaluation.plots.figures import FIGURES, Trial, figure
from lenmem.evaluation.plots.lantm import plot_key_space, plot_rows
from lenmem.evaluation.plots.maps import plot_attention, plot_maps, plot_strips
from lenmem.evaluation.plots.nam import plot_tape
from lenmem.evaluation.plots.ndr import plot_ndr_attention, plot_ndr_gates, plot_steps_used
from lenmem.evaluation.plots.panm import plot_pointers
from lenmem.evaluation.plots.scene import Scene
from lenmem.evaluation.plots.scores import plot_against_paper, plot_reach, plot_sweep
from lenmem.evaluation.plots.sown import draw, draw_examples
from lenmem.evaluation.plots.two_way import plot_heads

__all__ = [
    "FIGURES",
    "Scene",
    "Trial",
    "draw",
    "draw_examples",
    "figure",
    "plot_against_paper",
    "plot_attention",
    "plot_cross_table",
    "plot_curvature",
    "plot_curve_grid",
    "plot_curve_panels",
    "plot_curves",
    "plot_heads",
    "plot_key_space",
    "plot_maps",
    "plot_modes",
    "plot_ndr_attention",
    "plot_ndr_gates",
    "plot_pointers",
    "plot_reach",
    "plot_rows",
    "plot_states",
    "plot_steps_used",
    "plot_strips",
    "plot_sweep",
    "plot_tape",
    "plot_training",
    "plot_trials",
]
