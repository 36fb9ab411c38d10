"""Registry."""
from lenmem.models.lantm import LANTM, SLANTM
from lenmem.models.lstm import LSTM
from lenmem.models.ram import RAM, RAMTape

_M = {"lantm": (LANTM, {}), "lantm_s": (LANTM, {"weighting": "softmax"}), "slantm": (SLANTM, {}), "slantm_s": (SLANTM, {"weighting": "softmax"}), "lstm": (LSTM, {}), "ram": (RAM, {}), "ram_tape": (RAMTape, {})}

def make(name, spec=None, **fields):
    kind, preset = _M[name]
    return kind(spec=spec, **(preset | fields))

def supports(model, spec):
    return model.supports(spec) if hasattr(model, "supports") else None
