"""What can be asked for by name, on the command line and in a suite of benchmarks."""

#: How to route: `auto` is a choice among the others.
STRATEGIES = ("auto", "milp", "trees", "flow", "greedy", "hierarchy")
#: What decides between candidates: `auto` is `time` where the GPUs are known, `schedule` elsewhere.
OBJECTIVES = ("auto", "time", "schedule")
