"""The nightly job: a suite of syntheses run in parallel, kept in a history that only grows, compared and shown.

A consumer of the pipeline, the simulator and the baselines. Read suite.py (what is run), measure.py (one synthesis and its
records), run.py (all of them, resumable), store.py (the history), compare.py (what got worse), then report/.
"""
