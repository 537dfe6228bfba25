"""A stage: the part of a model that one provider holds, as data on disk and as a runnable module.

    graph.py       the data: operators, tensors, what comes in and what goes out
    structure.py   nested inputs and outputs as data; records.py: what they are rebuilt as
    operators.py   which operators data may name, and how values are written as JSON
    arithmetic.py  the ones on plain numbers; guarded.py: the ones torch does not check enough
    zero_fill.py   memory that torch allocates, zeroed
    argument_rules.py  bounds for the numbers of every call
    failures.py    why an operator failed, without values of tensors
    signatures.py  does a call fit its operator?
    checking.py    does a whole graph hold together, within limits?
    package.py     the files of one stage: manifest, graph, weights, hashes
    module.py      data turned into an nn.Module that computes; context.py: grad mode, autocast
    local.py       all stages of a model run one after another in one process

Knows nothing about how a model was captured, where it was cut or who runs it.
"""
