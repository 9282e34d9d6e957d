"""A suite from beginning to end: what is missing is run, each outcome is stored as it comes, and a killed run is taken up again."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime

from synth.bench.executors import Slots
from synth.bench.fingerprint import Origin
from synth.bench.measure import crashed, measure, nothing_done
from synth.bench.rows import Run
from synth.bench.store import Store
from synth.bench.values import LEFT_OUT, Job, Outcome, Suite
from synth.errors import SynthError
from synth.request import Progress

MakeExecutor = Callable[[], AbstractContextManager[Slots]]
Tell = Callable[[Progress], None]
#: Seconds without an answer after which it is asked whether anybody works.
_LOOK_S = 20.0


def run_suite(
    suite: Suite, store: Store, origin: Origin, make_executor: MakeExecutor, *, tell: Tell = lambda _: None
) -> Run:
    """Run the suite on an executor's workers, and return the run with all its records.

    A run of the same suite and code that was ended before its end is taken up: what it has is kept. One job at a time works on a
    suite in a store; others wait for it, and then begin a run of their own.
    """
    with _only_one(store.path, suite, tell):
        run = store.unfinished(suite, origin)
        taken_up = run is not None
        run = run or store.begin_run(suite, origin)
        done = store.done(run)
        missing = [job for job in suite.jobs if job.key not in done]
        if taken_up:
            tell(Progress("bench", f"{run.title} is taken up: {len(done)} of {len(suite.jobs)} syntheses are there"))
        begun = time.monotonic()
        state = _State(suite, store, run, tell, begun, len(done))
        state.work(missing, make_executor)
        # Of a run that was taken up, the break counts too: what is told is when it began and when it ended.
        store.finish(run, _since(run) if taken_up else time.monotonic() - begun)
    return next(found for found in store.runs() if found.id == run.id)


class _State:
    """One run under way."""

    def __init__(self, suite: Suite, store: Store, run: Run, tell: Tell, begun: float, done: int) -> None:
        self.suite, self.store, self.run, self.tell, self.begun, self.done = suite, store, run, tell, begun, done

    def work(self, jobs: Sequence[Job], make_executor: MakeExecutor) -> None:
        """All of the jobs. Where a worker dies, its executor dies with it: what was under way is tried once more, one at a time, and
        what dies again is a record that says so.
        """
        waiting, suspects = deque(jobs), deque[Job]()
        while waiting or suspects:
            single = bool(suspects)
            source = suspects if single else waiting
            with make_executor() as slots:
                lost = self._drain(source, slots, single)
            for job, error in lost:
                if single:
                    self._add(crashed(job, error))
                else:
                    suspects.append(job)

    def _drain(self, source: deque[Job], slots: Slots, single: bool) -> list[tuple[Job, BaseException]]:
        """Work on the jobs until there are none, or the executor breaks: then those that were under way come back."""
        under_way: dict[Future[Outcome], Job] = {}
        lost: list[tuple[Job, BaseException]] = []
        while source or under_way:
            # No more than can be worked on: what waits elsewhere would be begun after the time is up.
            most = 1 if single else max(1, slots.at_once())
            while source and len(under_way) < most and not lost:
                job = source.popleft()
                if self._time_is_up():
                    self._add(nothing_done(job, LEFT_OUT, f"the suite's {self.suite.total_s:g} s were up"))
                    continue
                try:
                    under_way[slots.executor.submit(measure, job)] = job
                except BrokenExecutor as broken:
                    lost.append((job, broken))
            finished = self._wait(under_way, slots)
            for future in sorted(finished, key=lambda item: under_way[item].key):
                job = under_way.pop(future)
                if future.cancelled():
                    told = "was given up: the scheduler that had it is gone; the same command takes the run up"
                    raise SynthError(f"{job.key} {told}")
                error = future.exception()
                if error is None:
                    self._add(future.result())
                elif isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":
                    lost.append((job, error))
                else:
                    self._add(crashed(job, error))
            if lost and not under_way:
                break
        return lost

    def _wait(self, under_way: Mapping[Future[Outcome], Job], slots: Slots) -> set[Future[Outcome]]:
        """Those that are done, of those that are under way. That there is nobody to work on them is told."""
        while True:
            finished, _ = wait(under_way, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            if finished or not under_way:
                return finished
            if not slots.at_once():
                self.tell(Progress("bench", "there are no workers: waiting for one", self.done / len(self.suite.jobs)))

    def _add(self, outcome: Outcome) -> None:
        self.store.add(self.run, outcome)
        self.done += 1
        fraction = self.done / len(self.suite.jobs)
        self.tell(Progress("bench", f"{self.done} of {len(self.suite.jobs)}: {_line(outcome)}", fraction))

    def _time_is_up(self) -> bool:
        return self.suite.total_s is not None and time.monotonic() - self.begun > self.suite.total_s


def _since(run: Run) -> float:
    """Seconds since the run was begun."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(run.started)).total_seconds())


def _line(outcome: Outcome) -> str:
    """`dgx1/allreduce/1KB:1GB/auto/0, 12.1 s, 94% of the bound at 1GB`."""
    last = outcome.records[-1]
    if last.efficiency is None:
        return f"{outcome.cost.job}: {last.status}: {last.problem}"
    return f"{outcome.cost.job}, {outcome.cost.seconds:.1f} s, {last.efficiency:.0%} of the bound at the largest size"


@contextmanager
def _only_one(path: str, suite: Suite, tell: Tell) -> Iterator[None]:
    """A lock on the suite in this store, which ends with the process that holds it, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on this system: then it is for the user to run one at a time
        yield
        return
    name = f"{os.path.abspath(path)}.{suite.digest}.lock"
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise SynthError(f"{name}: cannot be written: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            tell(Progress("bench", f"another job works on suite {suite.name} in {path}: waiting for it"))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
