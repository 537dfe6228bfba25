"""A sweep over the architectures that transformers and timm have, in settings made small by rule.

Each one is built, run as it is, planned for three providers, cut, written to packages and read
back, and trained for some steps beside the whole model. What comes of it is one of

    cut         three stages, or as many as there are places to cut; outputs, gradients, evaluation
                and the fused state_dict are the model's
    refused     an error that says why, or no end in time; like ones are counted together
    wrong       the stages compute something else, which is a fault of Ravnest without excuse
    failed      something other than Ravnest's own error came out of planning: a fault as well
    unsuitable  no small setting was found by rule or given by hand (sweep_settings.py), or the
                model itself does not run in it

    python tests/sweep.py [--only NAME …] [--slice I/N] [--library NAME] [--log FILE]

(`python3 dev.py soak sweep`). The exit code is 1 if any architecture was wrong or failed. One
process, one model after the other; each gets a few minutes at most.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import functools
import inspect
import io
import json
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "parity")]

import torch  # noqa: E402
from harness import compare, even_cuts, in_float64, load_stages  # noqa: E402
from sweep_settings import BY_HAND  # noqa: E402
from torch import nn  # noqa: E402
from torchvision_shim import import_torchvision  # noqa: E402
from zoo_models.entry import Inputs, output_loss  # noqa: E402

from ravnest.errors import RavnestError  # noqa: E402
from ravnest.planning.selfcheck import OneRowError, SelfCheck, as_it_runs  # noqa: E402
from ravnest.planning.study import Study, study  # noqa: E402
from ravnest.stage import structure  # noqa: E402
from ravnest.stage.local import LocalPipeline  # noqa: E402

STAGES = 3
ROWS = 2
MODEL_S = 150
MOST_PARAMETERS = 100_000_000
TOLERANCE, FINER = 1e-4, 1e-7
"""In single precision, and in double where rounding may be what differs."""

VOCABULARY, LENGTH, IMAGE = 99, 12, 64

WIDTH, LAYERS, HEADS = 32, 2, 4
SMALL: dict[str, Any] = (
    dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "encoder_hidden_size",
         "decoder_hidden_size", "word_embed_proj_dim", "embedding_size", "projection_dim",
         "emb_dim", "d_embed", "output_hidden_size"), WIDTH)
    | dict.fromkeys(
        ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
         "decoder_layers", "num_encoder_layers", "num_decoder_layers", "depth",
         "encoder_num_hidden_layers", "decoder_num_hidden_layers"), LAYERS)
    | dict.fromkeys(
        ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads",
         "decoder_attention_heads", "encoder_num_attention_heads", "decoder_num_heads"), HEADS)
    | dict.fromkeys(
        ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner",
         "ffn_hidden_size", "feed_forward_size", "d_inner"), 2 * WIDTH)
    | dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"),
        WIDTH)
    | dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
    | dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2)
    | {
        "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "d_head": 8, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "image_size": IMAGE,
        "patch_size": 16, "num_labels": 5, "layerdrop": 0.0, "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0, "apply_spec_augment": False, "use_cache": False,
        "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1, "n_group": 1, "topk_group": 1,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
        "v_head_dim": 8, "num_mel_bins": 16, "max_source_positions": 20,
        "max_target_positions": 32, "attention_window": 4, "sliding_window": 8,
        "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_num_heads": 8,
        "mamba_head_dim": 8, "mamba_chunk_size": 4,
        "rotary_dim": 4,
    }
)  # fmt: skip
"""What names of settings mean small; most configurations use some of these."""

KINDS = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION", "CTC", "SPEECH_SEQ_2_SEQ", "SEQUENCE_CLASSIFICATION",
    "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION", "DEPTH_ESTIMATION", "VIDEO_CLASSIFICATION",
    "MASKED_IMAGE_MODELING", "IMAGE_TEXT_TO_TEXT", "PRETRAINING",
)  # fmt: skip
"""Heads, in the order in which a model is given one."""


_SIZES_OF_HEADS = {
    "head_dim", "d_kv", "d_head", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "num_key_value_heads",
}  # fmt: skip
KEPT: tuple[frozenset[str], ...] = tuple(
    frozenset(names)
    for names in (
        set(),
        _SIZES_OF_HEADS,
        {"sliding_window", "attention_window"},
        {"image_size", "patch_size"},
        {"num_hidden_layers", "num_layers"},
        {key for key, value in SMALL.items() if value == WIDTH and key != "vocab_size"},
    )
)
"""Settings that stay as they are by default, where the small ones do not fit each other: none, and
then those of one kind after the other."""
MOST_HEADS = 2


@dataclass(frozen=True)
class Outcome:
    name: str
    kind: str
    detail: str = ""


class UnsuitableError(Exception):
    """This architecture cannot be tried."""


class TimeUpError(BaseException):
    """Not an `Exception`, so that nobody takes it for a failure of the model."""


# ---- small models ------------------------------------------------------------------------------


def transformers_models() -> dict[str, Callable[[], tuple[nn.Module, Callable[[int], Inputs]]]]:
    import transformers  # noqa: F401
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    tables = [getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES") for kind in KINDS]
    tables.append(modeling_auto.MODEL_MAPPING_NAMES)
    found = {}
    for kind in CONFIG_MAPPING_NAMES:
        names = [table[kind] for table in tables if kind in table]
        plain = [name if isinstance(name, str) else name[0] for name in names]
        if plain:
            heads = tuple(dict.fromkeys(plain))
            found[f"hf:{kind}"] = lambda kind=kind, heads=heads: _of_transformers(kind, heads)
    return found


def _of_transformers(
    kind: str, heads: tuple[str, ...]
) -> tuple[nn.Module, Callable[[int], Inputs]]:
    """By hand, or with the first settings, head and inputs with which it runs."""
    if kind in BY_HAND:
        model, make = BY_HAND[kind]()
        _without_cache(model)
        return model.train(), make
    first: Exception | None = None
    for kept in KEPT:
        for head in heads[:MOST_HEADS]:
            try:
                model, make = _with_settings(kind, head, kept)
                _check_suitable(copy.deepcopy(model), make)
                return model, make
            except Exception as error:
                first = first or error
    raise first or UnsuitableError("no head")


def _with_settings(
    kind: str, head: str, kept: frozenset[str]
) -> tuple[nn.Module, Callable[[int], Inputs]]:
    import transformers

    config = small_config(transformers.CONFIG_MAPPING[kind], kept)
    if kept:  # which may be large: counted without memory for it
        with torch.device("meta"):
            _refuse_large(getattr(transformers, head)(config))
        config = small_config(transformers.CONFIG_MAPPING[kind], kept)
    model = getattr(transformers, head)(config)
    _without_cache(model)
    return model.train(), inputs_of(model, config)


def _without_cache(model: nn.Module) -> None:
    """As planning itself does while it captures: here the model is run beside its stages."""
    pending = [module.config for module in model.modules() if hasattr(module, "config")]
    seen: set[int] = set()
    while pending:
        config = pending.pop()
        if id(config) in seen or not hasattr(config, "to_dict"):
            continue
        seen.add(id(config))
        if hasattr(config, "use_cache"):
            config.use_cache = False
        pending += vars(config).values()


def small_config(kind: Any, kept: frozenset[str] = frozenset()) -> Any:
    """The default configuration with what has a known name made small, inner ones included; but
    for those that are `kept`."""
    default = kind()
    return kind(**_small(default, kept))


def _small(config: Any, kept: frozenset[str] = frozenset()) -> dict[str, Any]:
    values = config.to_dict()
    found = {key: SMALL[key] for key, value in values.items() if key in SMALL.keys() - kept}
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if not values.get(key):
            found.pop(key, None)
    if isinstance(values.get("patch_size"), list | tuple) or isinstance(
        values.get("image_size"), list | tuple
    ):
        for key in ("patch_size", "image_size"):
            if isinstance(values.get(key), list | tuple):
                found[key] = [SMALL[key]] * len(values[key])
    for key, value in values.items():
        if key in found and not isinstance(value, type(SMALL[key])) and value is not None:
            del found[key]
        if isinstance(value, dict) and {"mrope_section", "rope_type"} & value.keys():
            found[key] = {**value, "mrope_section": [2, 1, 1]}
            if "partial_rotary_factor" in value:
                found[key]["partial_rotary_factor"] = 1.0
    if "num_key_value_heads" in found and (
        values["num_key_value_heads"] == values.get("num_attention_heads")
    ):
        found["num_key_value_heads"] = HEADS
    for key in ("q_lora_rank", "sliding_window", "num_key_value_heads"):
        if key in found and values[key] is None:
            del found[key]
    found |= {
        key: min(value, VOCABULARY - 1)
        for key, value in values.items()
        if key.endswith(("_token_id", "_token_index")) and isinstance(value, int)
        and value >= VOCABULARY
    }  # fmt: skip
    for key, value in values.items():
        if isinstance(value, list) and key in ("depths", "encoder_depths"):
            found[key] = [1] * len(value)
        if isinstance(value, list) and key in ("hidden_sizes", "neck_hidden_sizes"):
            found[key] = [16 * (at + 1) for at in range(len(value))]
        if isinstance(value, list) and key == "num_attention_heads":
            found[key] = [1, 2, 4, 4, 4][: len(value)]
        inner = getattr(config, key, None)
        if hasattr(inner, "to_dict") and key.endswith("config"):
            found[key] = {**_small(inner, kept), "model_type": inner.model_type}
    return found


def inputs_of(model: nn.Module, config: Any) -> Callable[[int], Inputs]:
    """A batch for a model of transformers, by the names of its arguments."""
    names = set(inspect.signature(model.forward).parameters)
    main = getattr(model, "main_input_name", "input_ids")
    pictures = _setting(config, "image_size", IMAGE)
    if isinstance(pictures, dict):
        pictures = (pictures["height"], pictures["width"])
    height, width = (pictures, pictures) if isinstance(pictures, int) else tuple(pictures)[-2:]
    channels = _setting(config, "num_channels", 3)
    bins = _setting(config, "num_mel_bins", None) or _setting(
        config, "feature_projection_input_dim", 16
    )
    frames = 2 * (_setting(config, "max_source_positions", 20) or 20)
    words = _setting(config, "vocab_size", VOCABULARY)
    clip = _setting(config, "num_frames", 4)

    def make(batch: int, variant: str = "") -> Inputs:
        ids = torch.randint(3, min(words, VOCABULARY), (batch, LENGTH))
        picture = torch.randn(batch, channels, height, width)
        film = torch.randn(batch, clip, channels, height, width)
        given: dict[str, torch.Tensor] = {}
        if main == "pixel_values":
            given[main] = film if "film" in variant else picture
        elif main == "pixel_values_videos" or main == "pixel_values_frames":
            given[main] = film
        elif main == "input_features":
            given[main] = torch.randn(batch, bins, frames)
            if "turned" in variant:
                given[main] = given[main].transpose(1, 2).contiguous()
        elif main == "input_values":
            one = "channel" in variant
            given[main] = torch.randn(batch, *([1] if one else []), 2000)
        else:
            given[main] = ids
        if "pixel_values" in names and ("picture" in variant or _needs(model, "pixel_values")):
            given["pixel_values"] = picture
        if "text" in variant and "input_ids" in names:
            given["input_ids"] = ids
        if "features" in variant and "input_features" in names:
            given["input_features"] = torch.randn(batch, bins, frames)
        if "mask" in variant and "attention_mask" in names:
            given["attention_mask"] = torch.ones_like(ids)
        if "decoder_input_ids" in names:
            given["decoder_input_ids"] = torch.randint(3, VOCABULARY, (batch, 6))
        return (), given

    return _first_accepted(model, make)


_VARIANTS = (
    "",
    "film",
    "turned",
    "channel",
    "picture",
    "text",
    "mask",
    "picture text mask",
    "features",
)


def _first_accepted(
    model: nn.Module, make: Callable[[int, str], Inputs]
) -> Callable[[int], Inputs]:
    """The first variant of the inputs with which the model runs; the plain one if none does."""
    for variant in _VARIANTS:
        with contextlib.suppress(Exception), torch.no_grad():
            args, kwargs = make(ROWS, variant)
            copy.deepcopy(model).train()(*args, **kwargs)
            return functools.partial(make, variant=variant)
    return functools.partial(make, variant="")


def _needs(model: nn.Module, name: str) -> bool:
    parameter = inspect.signature(model.forward).parameters[name]
    return parameter.default is inspect.Parameter.empty


def _setting(config: Any, name: str, otherwise: Any) -> Any:
    """A setting of the configuration, or of one inside it."""
    if getattr(config, name, None) is not None:
        return getattr(config, name)
    for key in config.to_dict():
        inner = getattr(config, key, None)
        if key.endswith("config") and hasattr(inner, "to_dict"):
            found = _setting(inner, name, None)
            if found is not None:
                return found
    return otherwise


def timm_models() -> dict[str, Callable[[], tuple[nn.Module, Callable[[int], Inputs]]]]:
    """Of each of timm's files the model with the shortest name that says it is small."""
    import timm

    found = {}
    for module in timm.list_modules():
        names = sorted(
            timm.list_models(module=module), key=lambda n: (not _sounds_small(n), len(n), n)
        )
        if names:
            name = names[0]
            found[f"timm:{module}:{name}"] = lambda name=name: _of_timm(name)
    return found


def _sounds_small(name: str) -> bool:
    return bool(re.search(r"test_|atto|femto|pico|nano|tiny|xxs|_xs|micro|_t0|_b0|mini|_s0", name))


def _of_timm(name: str) -> tuple[nn.Module, Callable[[int], Inputs]]:

    model = _small_timm(name)
    size = model.default_cfg.get("input_size", (3, 224, 224))
    if not model.default_cfg.get("fixed_input_size") and size[-1] > 96:
        smaller = _accepted(model, (3, 96, 96))
        size = (3, 96, 96) if smaller else size
    for parameter in model.parameters():  # much of timm starts at zero and hides its gradients
        if parameter.dim() > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return model.train(), lambda batch: ((torch.randn(batch, *size),), {})


_OF_TIMM: tuple[dict[str, Any], ...] = (
    {"img_size": 64, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4},
    {"embed_dim": 48, "depth": 2, "num_heads": 4},
    {"img_size": 64, "embed_dim": 32, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 4)},
    {"embed_dim": 32, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 4)},
    {"dims": (16, 32, 48, 64), "depths": (1, 1, 1, 1)},
    {"embed_dims": (16, 32, 48, 64), "depths": (1, 1, 1, 1)},
    {"depths": (1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
    {"img_size": 64},
    {},
)


def _small_timm(name: str) -> nn.Module:
    """With the first of these settings that it has."""
    import timm

    for options in _OF_TIMM:
        with contextlib.suppress(Exception):
            model = timm.create_model(name, pretrained=False, num_classes=10, **options)
            size = options.get("img_size")
            if size:
                model.default_cfg = {**model.default_cfg, "input_size": (3, size, size)}
            model.train()
            return model
    raise UnsuitableError("no setting fits")


def _accepted(model: nn.Module, size: tuple[int, ...]) -> bool:
    try:
        with torch.no_grad():
            model(torch.randn(2, *size))
    except Exception:
        return False
    return True


# ---- one model ---------------------------------------------------------------------------------


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    def strike(*_: object) -> None:
        raise TimeUpError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, strike)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(build: Callable[[], tuple[nn.Module, Callable[[int], Inputs]]]) -> tuple[str, str]:
    """What comes of one architecture, and why. One for which the time is not enough is refused, but
    for one that does not even run by itself in that time."""
    try:
        with within(MODEL_S):
            torch.manual_seed(0)
            model, inputs = build()
            # On a copy: a model may keep something of its first call that cannot be copied later.
            _check_suitable(copy.deepcopy(model), inputs)
    except (Exception, TimeUpError) as error:
        return "unsuitable", _line(error)
    try:
        with within(MODEL_S):
            return _tried(model, inputs)
    except TimeUpError as error:
        return "refused", _line(error)


def _tried(model: nn.Module, inputs: Callable[[int], Inputs]) -> tuple[str, str]:
    kind, detail = _cut(model, inputs, TOLERANCE)
    if kind in ("wrong", "refused") and "differs" in detail:
        # Is it rounding? BatchNorm over two rows blows up the last bit of a sum.
        with contextlib.suppress(Exception):
            finer, more = model.double(), in_float64(inputs)
            _check_suitable(copy.deepcopy(finer), more)
            kind, found = _cut(finer, more, FINER)
            detail = f"{found} (in double precision; in single: {detail})"
    return kind, detail


def _refuse_large(model: nn.Module) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MOST_PARAMETERS:
        raise UnsuitableError(f"{parameters:,} parameters")


def _check_suitable(model: nn.Module, inputs: Callable[[int], Inputs]) -> None:
    _refuse_large(model)
    model.train()
    torch.manual_seed(1)
    args, kwargs = inputs(ROWS)
    output = model(*args, **kwargs)
    structure.flatten(output, [], "output")
    loss = output_loss(output)
    if not loss.requires_grad:
        raise UnsuitableError("nothing to train")
    loss.backward()
    if not torch.isfinite(loss):
        raise UnsuitableError("the loss is not finite")
    model.zero_grad(set_to_none=True)


def _cut(model: nn.Module, inputs: Callable[[int], Inputs], tolerance: float) -> tuple[str, str]:
    try:
        return _compared(model, inputs, tolerance)
    except RavnestError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", _line(error) + "\n" + traceback.format_exc()[-1500:]


def _compared(
    model: nn.Module, inputs: Callable[[int], Inputs], tolerance: float
) -> tuple[str, str]:
    torch.manual_seed(2)
    args, kwargs = inputs(ROWS)

    def loaded(studied: Study) -> tuple[Study, LocalPipeline, int]:
        cuts = even_cuts(studied, STAGES)
        pipeline = load_stages(studied, cuts, Path(folder) / f"{studied.untold is None}")
        for _ in range(2):
            try:
                SelfCheck(studied)(pipeline.stages)
                break
            except OneRowError as error:
                studied.needs_two_rows(error.mode)
                pipeline = load_stages(studied, cuts, Path(folder) / error.mode)
        return studied, pipeline, len(cuts) + 1

    with tempfile.TemporaryDirectory() as folder:
        studied, pipeline, stages = as_it_runs(study(model, args, kwargs), loaded)
        sizes = (ROWS, ROWS + 1) if studied.train.dynamic else (ROWS, ROWS)
        try:
            errors = compare(model, pipeline, studied, inputs, output_loss, sizes)
        except AssertionError as error:
            return "wrong", f"it differs: {error}"
    if errors.worst() > tolerance:
        return "wrong", f"it differs: {errors}"
    return "cut", f"{stages} stages, {errors.worst():.0e}"


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:400]


# ---- all of them -------------------------------------------------------------------------------


def sweep(
    models: Mapping[str, Callable[[], Any]], note: Callable[[Outcome], None]
) -> list[Outcome]:
    found = []
    for name, build in models.items():
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind, detail = attempt(build)
        found.append(Outcome(name, kind, detail))
        note(found[-1])
    return found


def summary(found: list[Outcome]) -> str:
    kinds = collections.Counter(outcome.kind for outcome in found)
    tried = sum(kinds.values()) - kinds["unsuitable"]
    share = kinds["cut"] / tried if tried else 0.0
    lines = [f"{kinds['cut']} of {tried} cut ({share:.1%}); {kinds['unsuitable']} unsuitable"]
    for kind in ("wrong", "failed"):
        lines += [f"{kind}: {o.name}: {o.detail}" for o in found if o.kind == kind]
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for outcome in found:
        if outcome.kind == "refused":
            groups[_alike(outcome.detail)].append(outcome.name)
    for reason, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        lines += [f"refused ({len(names)}): {reason}", f"    {', '.join(names)}"]
    return "\n".join(lines)


def _alike(reason: str) -> str:
    """A reason without what is one model's own: names, places, numbers."""
    reason = re.sub(r"\([^()]*\.py:\d+[^()]*\)|[^ ]*\.py:\d+( in \w+)?", "…", reason)
    reason = re.sub(r"^\w+ cannot be cut", "cannot be cut", reason)
    return re.sub(r"\d+", "N", re.sub(r"'[^']*'", "'…'", reason))[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", default=[], help="these names, each in full")
    parser.add_argument("--slice", default="0/1", help="I/N: each N-th, beginning with the I-th")
    parser.add_argument("--library", choices=["transformers", "timm"], action="append")
    parser.add_argument("--log", type=Path, help="a line of JSON for each; those there are skipped")
    given = parser.parse_args()
    import_torchvision()
    torch.set_num_threads(1)
    libraries = given.library or ["transformers", "timm"]
    models: dict[str, Callable[[], Any]] = {}
    for library, make in (("transformers", transformers_models), ("timm", timm_models)):
        models |= make() if library in libraries else {}
    index, count = map(int, given.slice.split("/"))
    chosen = dict(list(models.items())[index::count])
    if given.only:
        chosen = {name: models[name] for name in given.only}
    known = _known(given.log)
    chosen = {name: build for name, build in chosen.items() if name not in known}

    def note(outcome: Outcome) -> None:
        print(f"{outcome.kind:<10} {outcome.name} {outcome.detail.splitlines()[:1]}", flush=True)
        if given.log:
            with given.log.open("a") as log:
                log.write(json.dumps(asdict(outcome)) + "\n")

    found = [*known.values(), *sweep(chosen, note)]
    print(summary(found))
    return 1 if any(outcome.kind in ("wrong", "failed") for outcome in found) else 0


def _known(log: Path | None) -> dict[str, Outcome]:
    if log is None or not log.exists():
        return {}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {line["name"]: Outcome(**line) for line in lines}


if __name__ == "__main__":
    sys.exit(main())
