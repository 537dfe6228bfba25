"""The environment of processes that compute with foreign graphs: an allow-list.

Among the owner's other variables there may be anything: tokens, passwords, the address of a
database, proxies.
"""

import os
from pathlib import Path

from ravnest.api.work import ALLOWED_OPERATORS

_PERSONAL = frozenset(
    {"HOME", "USER", "LOGNAME", "USERNAME", "USERPROFILE", "APPDATA", "LOCALAPPDATA"}
    | {"TMPDIR", "TEMP", "TMP"}
)
_NEEDED = _PERSONAL | frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
    | {"VIRTUAL_ENV", "CONDA_PREFIX", ALLOWED_OPERATORS}
    | {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE"}
    | {"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "NUMBER_OF_PROCESSORS"}
)
_NEEDED_PREFIXES = (
    *("LC_", "PYTHON", "PYTORCH_", "TORCH_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("CUDA_", "CUDNN_", "NCCL_", "HIP_", "HSA_", "ROCR_"),
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH")
"""Whatever else a name begins with."""
_USER_NAME = "ravnest"


def compute_environment(threads: int, home: Path | None = None) -> dict[str, str]:
    """The threads it may have (0: as many as there are cores), and what it needs of the owner's
    variables. `home`: the folder of a foreign graph or script, and all that is its own."""
    kept = {name: value for name, value in os.environ.items() if _is_needed(name.upper())}
    if home is not None:
        kept = {name: value for name, value in kept.items() if name.upper() not in _PERSONAL}
        kept |= {"HOME": str(home), "USER": _USER_NAME, "LOGNAME": _USER_NAME}
    if threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            kept[name] = str(threads)
    return kept


def _is_needed(name: str) -> bool:
    if any(word in name for word in _SECRET):
        return False
    return name in _NEEDED or name.startswith(_NEEDED_PREFIXES)
