"""Why an operator failed, in words that may leave this machine.

Torch writes values of tensors into its error texts ("index 4711 is out of bounds"), and a reason
travels from a worker to the server and to everyone who looks at the job. So what leaves a process
names the operator, the kinds and shapes of what it was given and the type of the error. Torch's
own text stays behind as the error's cause, which only the log of this machine shows.
"""

from types import TracebackType

import torch

from ravnest.errors import OperatorError, described, text_without_values


def failed_call(program: torch.fx.GraphModule, error: Exception) -> OperatorError | None:
    """The operator behind an error that came out of a stage's generated code: its lines are
    operators. None if it came from a module of the provider's own program."""
    found = _line_of(error.__traceback__, program.forward.__code__.co_filename)
    if found is None:
        return OperatorError(f"the stage failed: {text_without_values(error)}")
    lines: dict[int, int | None] = getattr(program, "_lineno_map", None) or {}
    index = lines.get(found.tb_lineno - getattr(program, "_prologue_start", 0))
    nodes = list(program.graph.nodes)
    if index is None or not 0 <= index < len(nodes):
        return OperatorError(f"the stage failed: {text_without_values(error)}")
    node = nodes[index]
    if node.op == "call_module":
        return None
    values = found.tb_frame.f_locals
    operands = [values.get(argument.name) for argument in node.all_input_nodes]
    name = node.meta.get("operator", "the stage")
    return OperatorError(f"{name}{described(operands)}: {text_without_values(error)}")


def _line_of(trace: TracebackType | None, filename: str) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    return trace
