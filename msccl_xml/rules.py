"""What the readers ask of the attributes of `<gpu>`, `<tb>` and `<step>`; all else they let pass.

They refuse little: what is accepted here need not work (check.py, limits.py and synth verify ask that).
"""

from __future__ import annotations

from collections import Counter

from msccl_xml.errors import format_place
from msccl_xml.header import Problem, shown
from msccl_xml.lexer import Tag, to_int, wrap
from msccl_xml.limits import Limits
from msccl_xml.model import StepType
from msccl_xml.walk import Block, Gpu

PEERS_PER_CHANNEL = 32
"""MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL, as it is tested: at each step that sends (receives)."""
FUSED = 16
"""MSCCL_MAX_REDUCE_FUSION; compared with all `re` of a threadblock so far, so it breaks one run and no later one."""

_TYPES: dict[bytes, StepType | None] = {kind.value.encode(): kind for kind in StepType}
#: Residual add: microsoft/msccl reads it and its interpreter does not know it.
_RESIDUAL_ADD = b"ra"
_CHECKS_SRC = frozenset(
    {StepType.SEND, StepType.RECV_REDUCE_SEND, StepType.RECV_REDUCE_COPY_SEND, StepType.COPY, StepType.REDUCE, None}
)
_CHECKS_DST = frozenset(
    {StepType.RECV, StepType.RECV_COPY_SEND, StepType.RECV_REDUCE_COPY_SEND, StepType.COPY, StepType.REDUCE, None}
)
_BUFFERS = (b"i", b"o", b"s")
_STEP_NUMBERS = (b"s", b"srcoff", b"dstoff", b"cnt", b"depid", b"deps", b"hasdep")
_STEP_WORDS = (b"srcbuf", b"dstbuf", b"type")


class RuleError(Exception):
    """The reader stops here; `mend` is what to change."""

    def __init__(self, reason: str, mend: str | None = None) -> None:
        self.mend = mend
        super().__init__(reason)


class GpuRules:
    """The rules for what is in a `<gpu>`; threadblocks of a channel are counted over all gpus of one id."""

    def __init__(self, algo: Tag, limits: Limits) -> None:
        self.limits = limits
        self.is_msccl = limits.runtime == "msccl"
        self.ngpus = to_int(algo.attributes.get(b"ngpus", b""))
        self.chunks = to_int(algo.attributes.get(b"nchunksperloop", b""))
        self.coll = algo.attributes.get(b"coll", b"")
        self.typed = [key for key in (b"rtype", b"stype") if key in algo.attributes] if self.is_msccl else []
        self._peers: dict[int, Counter[tuple[str, int]]] = {}

    def problem(self, gpu: Gpu) -> Problem | None:
        """The first thing in the gpu that its rank refuses."""
        tag = gpu.tag
        place = format_place(gpu.id)
        try:
            buffers = self._buffers(gpu)
            seen: set[int] = set()
            for block in gpu.blocks:
                tag = block.tag
                number = self._block(gpu, block, seen)
                place = format_place(gpu.id, number)
                steps = _Steps(self, block, buffers, self._peers.setdefault(gpu.id, Counter()))
                for index, tag in enumerate(block.steps):
                    place = format_place(gpu.id, number, index)
                    steps.check(tag)
                place = format_place(gpu.id)
                steps.finish()
            tag = gpu.tag
            self._gaps(seen)
        except RuleError as error:
            return Problem(f"{place}: {error}", tag, gpu.id, error.mend)
        return None

    def _buffers(self, gpu: Gpu) -> dict[bytes, int]:
        sizes = {key[:1]: _number(gpu.tag, key) for key in (b"i_chunks", b"o_chunks", b"s_chunks")}
        if sizes[b"s"] < 0:
            raise RuleError(f"s_chunks is {sizes[b's']}, expected at least 0")
        if self.is_msccl:
            shares = {b"i": self.coll == b"allgather", b"o": self.coll == b"reduce_scatter"}
            for buffer, shared in shares.items():
                whole = wrap(sizes[buffer] * (self.ngpus if shared else 1), 32)
                if sizes[buffer] > 0 and whole != self.chunks:
                    times = f" times {self.ngpus} ranks" if shared else ""
                    key = f"{buffer.decode()}_chunks"
                    told = f"{key} is {sizes[buffer]}, which{times} is not nchunksperloop {self.chunks}"
                    raise RuleError(told, f'write {key}="0" where the file does not use that buffer, else correct it')
        return sizes

    def _block(self, gpu: Gpu, block: Block, seen: set[int]) -> int:
        number = _number(block.tag, b"id")
        send, recv, channel = (_number(block.tag, key) for key in (b"send", b"recv", b"chan"))
        if not 0 <= number < self.limits.threadblocks:
            told = f"threadblock id {number}, {self.limits.runtime} takes 0..{self.limits.threadblocks - 1}"
            raise RuleError(told, "use fewer threadblocks: fewer channels or instances")
        if number in seen:
            raise RuleError(f"threadblock id {number} stands twice")
        seen.add(number)
        for word, peer in (("send", send), ("recv", recv)):
            beyond = self.is_msccl and peer >= self.ngpus
            if peer == gpu.id or peer < -1 or beyond:
                raise RuleError(f"threadblock {number}: {word} is {peer}, expected -1 or another gpu")
        if not 0 <= channel < self.limits.channels:
            # The test lets `channels` itself pass, which then overruns the table of channels.
            raise RuleError(f"threadblock {number}: chan is {channel}, expected 0..{self.limits.channels - 1}")
        for key in self.typed:
            if block.tag.attributes.get(key) != b"nic":
                raise RuleError(
                    f'threadblock {number}: <algo> has {key.decode()}, so each <tb> needs {key.decode()}="nic"'
                )
        return number

    def _gaps(self, seen: set[int]) -> None:
        missing = next((number for number in range(len(seen)) if number not in seen), None)
        if missing is not None:
            raise RuleError(f"threadblock {missing} is missing: ids must be 0..{len(seen) - 1}")


class _Steps:
    """The steps of one threadblock: each by itself, and what a dependence carried by a nop asks of the next."""

    def __init__(
        self, rules: GpuRules, block: Block, buffers: dict[bytes, int], peers: Counter[tuple[str, int]]
    ) -> None:
        self.rules = rules
        self.buffers = buffers
        self.peers = peers
        self.send = to_int(block.tag.attributes[b"send"])
        self.recv = to_int(block.tag.attributes[b"recv"])
        self.channel = to_int(block.tag.attributes[b"chan"])
        self.waits = 0
        """dependences read and not yet given to a step"""
        self.reductions = 0
        self.run: tuple[bytes, int, bytes] | None = None
        """destination and source buffer of the reductions that the next one may be fused with"""

    def check(self, tag: Tag) -> None:
        number = {key: _number(tag, key) for key in _STEP_NUMBERS}
        word = {key: _word(tag, key) for key in _STEP_WORDS}
        steps = self.rules.limits.steps
        if not 0 <= number[b"s"] < steps:
            raise RuleError(f"s is {number[b's']}, {self.rules.limits.runtime} takes 0..{steps - 1}", self._shorter())
        kind = self._kind(word[b"type"])
        self.waits += number[b"depid"] >= 0
        for key in (b"srcbuf", b"dstbuf"):
            if word[key] not in _BUFFERS:
                raise RuleError(f"{key.decode()} is {shown(word[key])!r}, expected one of i o s")
        fused = self._fuses(kind, number, word)
        if kind is StepType.NOP:
            return
        if not 0 <= number[b"cnt"] <= self.rules.limits.count:
            raise RuleError(f"cnt is {number[b'cnt']}, expected 0..{self.rules.limits.count}")
        self._check_peers(kind)
        self._check_bounds(kind, number, word)
        if not fused:
            if self.waits and number[b"depid"] < 0:
                raise RuleError("a step after a nop with a dependence must itself have one")
            self.waits = 0
        self._note_reduction(kind, number, word)
        if number[b"hasdep"] not in (0, 1):
            raise RuleError(f"hasdep is {number[b'hasdep']}, expected 0 or 1")

    def _shorter(self) -> str:
        rebuilt = ", or build it with a larger MSCCL_MAX_NUM_STEPS" if self.rules.limits.runtime == "executor" else ""
        return f"spread the steps over more threadblocks or channels{rebuilt}"

    def finish(self) -> None:
        """Count the threadblock with its channel."""
        self.peers["send", self.channel] += self.send >= 0
        self.peers["recv", self.channel] += self.recv >= 0

    def _kind(self, text: bytes) -> StepType | None:
        """The type; None for the one that the model does not have."""
        if text in _TYPES:
            return _TYPES[text]
        if text == _RESIDUAL_ADD and self.rules.is_msccl:
            return None
        raise RuleError(f"type is {shown(text)!r}, expected one of {' '.join(StepType)}")

    def _fuses(self, kind: StepType | None, number: dict[bytes, int], word: dict[bytes, bytes]) -> bool:
        if kind is not StepType.REDUCE:
            return False
        here = (word[b"dstbuf"], number[b"dstoff"], word[b"srcbuf"])
        if self.run == here and number[b"depid"] == -1:
            return True
        self.run = None
        return False

    def _note_reduction(self, kind: StepType | None, number: dict[bytes, int], word: dict[bytes, bytes]) -> None:
        if kind is not StepType.REDUCE:
            self.run = None
            return
        self.reductions += 1
        ends = number[b"hasdep"] != 0 or self.reductions == FUSED
        self.run = None if ends else (word[b"dstbuf"], wrap(number[b"dstoff"], 16), word[b"srcbuf"])

    def _check_peers(self, kind: StepType | None) -> None:
        if kind is None:
            return
        for uses, direction, peer in ((kind.sends, "send", self.send), (kind.receives, "recv", self.recv)):
            if uses and peer < 0:
                raise RuleError(f"{kind} in a threadblock that has no {direction} peer")
            if uses and self.peers[direction, self.channel] >= PEERS_PER_CHANNEL:
                raise RuleError(f"more than {PEERS_PER_CHANNEL} {direction} threadblocks on channel {self.channel}")

    def _check_bounds(self, kind: StepType | None, number: dict[bytes, int], word: dict[bytes, bytes]) -> None:
        """Only the first chunk of what is used, not at all for `rrc`, and -1 passes; offsets are kept in 16 bits."""
        for side, checked in ((b"src", kind in _CHECKS_SRC), (b"dst", kind in _CHECKS_DST)):
            buffer = word[side + b"buf"]
            offset = wrap(number[side + b"off"], 16)
            if checked and not -1 <= offset < self.buffers[buffer]:
                key = f"{side.decode()}off"
                raise RuleError(f"{key} is {offset}, buffer {buffer.decode()} has {self.buffers[buffer]} chunks")


def _number(tag: Tag, key: bytes) -> int:
    return to_int(_word(tag, key))


def _word(tag: Tag, key: bytes) -> bytes:
    value = tag.attributes.get(key)
    if value is None:
        raise RuleError(f"<{shown(tag.name)}> has no attribute {key.decode()}")
    return value
