"""A model as files: handed over without its code, and planned from that.

`write_model` is the owner's side, `study_package` the side of whoever plans it. See
docs/decisions/012-models-without-code.md.
"""

from ravnest.planning.handover.card import ModelCard
from ravnest.planning.handover.giving import model_files, write_model
from ravnest.planning.handover.studying import study_package, weights_of
from ravnest.planning.handover.taking import ModelLimits, take_model

__all__ = [
    "ModelCard",
    "ModelLimits",
    "model_files",
    "study_package",
    "take_model",
    "weights_of",
    "write_model",
]
