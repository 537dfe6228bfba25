# ruff: noqa
import pathlib


def sub(path, a, b):
    p = pathlib.Path(path)
    s = p.read_text()
    assert a in s, (path, a)
    p.write_text(s.replace(a, b, 1))


sub(
    "benchmarks/convergence/virtual_clusters.py",
    "every provider has a `RingParticipant` in each of its rings, as its",
    "every provider has a `RingParticipant` in\neach of its rings, as its",
)
sub(
    "src/ravnest/cli/doctor/server.py",
    """        away = f"{format_number(abs(offset), 2)} s {'behind' if offset > 0 else 'ahead of'} the server's\"""",
    """        side = "behind" if offset > 0 else "ahead of"
        away = f"{format_number(abs(offset), 2)} s {side} the server's\"""",
)
sub(
    "src/ravnest/cli/doctor/server.py",
    'f"{text}; {format_number(down)} Mbit/s from the server, {format_number(up)} Mbit/s to it",',
    'f"{text}; {format_number(down)} Mbit/s from the server, "\n            f"{format_number(up)} Mbit/s to it",',
)
sub(
    "src/ravnest/planning/pipeline.py",
    'return f"it is larger than {format_bytes(_SELF_CHECK_LIMIT)} (self_check=True compares all the same)"',
    'limit = format_bytes(_SELF_CHECK_LIMIT)\n        return f"it is larger than {limit} (self_check=True compares all the same)"',
)
sub(
    "src/ravnest/planning/report.py",
    'f"{model.name}: {format_count(model.parameters)} parameters, {format_bytes(model.parameter_bytes)} of "',
    'f"{model.name}: {format_count(model.parameters)} parameters, "\n        f"{format_bytes(model.parameter_bytes)} of "',
)
sub(
    "src/ravnest/planning/report.py",
    'f"a round sends about {format_bytes(traffic)} from each cluster, in at least {format_duration(round_s)}.",',
    'f"a round sends about {format_bytes(traffic)} from each cluster, in at least "\n        f"{format_duration(round_s)}.",',
)
sub(
    "src/ravnest/planning/report.py",
    'f"min_cluster_size=1 lets {who} with {format_bytes(plan.model.training_bytes)} or more train "',
    'f"min_cluster_size=1 lets {who} with {format_bytes(plan.model.training_bytes)} or more "\n            "train "',
)
sub(
    "src/ravnest/planning/search/idle_reasons.py",
    'f"device, but not in the {format_bytes(host)} of the machine\'s memory beside it, which has to "',
    'f"device, but not in the {format_bytes(host)} of the machine\'s memory beside it, which "\n            "has to "',
)
sub(
    "src/ravnest/planning/search/idle_reasons.py",
    'f"keeping it would slow cluster {number} from {format_rate(before)} to {format_rate(before - loss)} "',
    'f"keeping it would slow cluster {number} from {format_rate(before)} to "\n            f"{format_rate(before - loss)} "',
)
sub(
    "src/ravnest/planning/search/idle_reasons.py",
    'first = f"its {format_bytes(kinds[kind].memory_bytes)} are too little for a stage of any cluster"',
    'own = format_bytes(kinds[kind].memory_bytes)\n        first = f"its {own} are too little for a stage of any cluster"',
)
sub(
    "src/ravnest/planning/search/idle_reasons.py",
    "return f\"{first}, and no more than {format_quantity(rules.max_clusters, 'cluster')} may be formed\"",
    'most = format_quantity(rules.max_clusters, "cluster")\n        return f"{first}, and no more than {most} may be formed"',
)
sub(
    "src/ravnest/planning/warnings.py",
    'f"({format_rate(faster.steps_per_s)} in place of {format_rate(layout.steps_per_s)}): idle_gain=1.0 "',
    'f"({format_rate(faster.steps_per_s)} in place of "\n            f"{format_rate(layout.steps_per_s)}): idle_gain=1.0 "',
)
sub(
    "src/ravnest/server/planjob/fusion_check.py",
    'note=f"the model takes {format_bytes(needed)}, and the server allows {format_bytes(allowed)} "',
    'note=f"the model takes {format_bytes(needed)}, and the server allows "\n            f"{format_bytes(allowed)} "',
)
sub(
    "src/ravnest/server/state/jobs.py",
    "f\"planned with {count_text(count, 'provider')} in {count_text(event.plan.clusters, 'cluster')}, \"",
    "f\"planned with {count_text(count, 'provider')} in \"\n        f\"{count_text(event.plan.clusters, 'cluster')}, \"",
)
sub(
    "src/ravnest/session/columns.py",
    'f"{folder} should be a folder of .txt files or of images ({describe_folder(folder)}), and the "',
    'f"{folder} should be a folder of .txt files or of images "\n            f"({describe_folder(folder)}), and the "',
)
sub(
    "src/ravnest/session/recipe_trial.py",
    "f\"this model takes batches of exactly {format_quantity(fixed, 'row')}, as it was captured; \"",
    'f"this model takes batches of exactly {format_quantity(fixed, \'row\')}, as it was "\n            "captured; "',
)
