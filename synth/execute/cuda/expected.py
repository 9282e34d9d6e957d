"""What a call has to give, worked out in numpy from the collective's definition alone; and inputs for which it is exact.

Values are small whole numbers, so that no type rounds them: sums, and products of ones and twos, come out exactly in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.collective import CollectiveName
from synth.execute.cuda.abi import DataType, ReduceOp
from synth.execute.cuda.call import Call
from synth.execute.layout import due_units

Vectors = list[NDArray[Any] | None]
#: bfloat16 is the upper half of float32.
_HALF_BITS = 16


def example_inputs(call: Call, seed: int = 0) -> Vectors:
    """One vector for each rank that has an input: the same for the same seed."""
    inputs: Vectors = []
    for rank in range(call.collective.num_ranks):
        elements = call.input_elements(rank)
        draw = np.random.default_rng((seed, rank))
        if call.op is ReduceOp.PROD:
            values = np.where(draw.integers(0, 8, elements) == 0, 2, 1)
        elif call.op is ReduceOp.AVG:
            values = draw.integers(0, 3, elements) * (1 if call.dtype.floating else call.collective.num_ranks % 8)
        else:
            values = draw.integers(0 if call.dtype is DataType.UINT8 else -4, 5, elements)
        inputs.append(encode(values, call.dtype) if elements else None)
    return inputs


def expected_outputs(call: Call, inputs: Vectors) -> Vectors:
    """The output of every rank, None where it has none. Of a group's collective, only what `due_units` names has to be so."""
    given = [None if vector is None else decode(vector, call.dtype) for vector in inputs]
    name, share, ranks = call.collective.name, call.share, range(call.collective.num_ranks)
    if call.collective.combining:
        members = sorted(call.collective.members)
        total = encode(_combined(call, [vector for rank in members if (vector := given[rank]) is not None]), call.dtype)
        if name is CollectiveName.ALLREDUCE:
            return [total for _ in ranks]
        if name is CollectiveName.REDUCE:
            return [total if rank == call.collective.root else None for rank in ranks]
        return [total[rank * share : (rank + 1) * share] for rank in ranks]
    held = [vector for vector in inputs if vector is not None]
    match name:
        case CollectiveName.ALLGATHER:
            return [np.concatenate(held) for _ in ranks]
        case CollectiveName.GATHER:
            return [np.concatenate(held) if rank == call.collective.root else None for rank in ranks]
        case CollectiveName.BROADCAST:
            return [held[0] for _ in ranks]
        case CollectiveName.SCATTER:
            return [held[0][rank * share : (rank + 1) * share] for rank in ranks]
        case _:
            return [np.concatenate([one[rank * share : (rank + 1) * share] for one in held]) for rank in ranks]


def wrong_elements(call: Call, outputs: Vectors, expected: Vectors) -> int:
    """Elements that are not what they have to be."""
    wrong = 0
    for rank, (found, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if wanted is not None:
            due = list(due_units(call.collective, rank))
            rows = wanted.reshape(-1, call.share)[due]
            wrong += rows.size if found is None else int(np.count_nonzero(found.reshape(-1, call.share)[due] != rows))
    return wrong


def encode(values: NDArray[Any], dtype: DataType) -> NDArray[Any]:
    """Numbers as an array of the type; bfloat16 rounded to nearest even."""
    if dtype is not DataType.BFLOAT16:
        return values.astype(dtype.numpy)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> _HALF_BITS) & 1)) >> _HALF_BITS).astype(np.uint16)


def decode(vector: NDArray[Any], dtype: DataType) -> NDArray[Any]:
    """An array of the type as numbers."""
    if dtype is not DataType.BFLOAT16:
        return vector
    return (vector.astype(np.uint32) << _HALF_BITS).view(np.float32)


def _combined(call: Call, vectors: list[NDArray[Any]]) -> NDArray[Any]:
    """In 64 bits, one vector after the other: large ones need not all be held at that width."""
    wide = np.float64 if call.dtype.floating else np.int64
    combine = {ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}.get(call.op, np.add)
    total: NDArray[Any] = vectors[0].astype(wide)
    for vector in vectors[1:]:
        combine(total, vector, out=total, casting="same_kind")
    if call.op is not ReduceOp.AVG:
        return total
    if call.dtype.floating:
        return np.asarray(total.astype(_rounding(call.dtype)) / _rounding(call.dtype)(len(vectors)))
    return np.asarray(np.trunc(total.astype(call.dtype.numpy) / len(vectors)))


def _rounding(dtype: DataType) -> type[np.floating[Any]]:
    """The type in which the average is divided."""
    return np.float64 if dtype is DataType.FLOAT64 else np.float32
