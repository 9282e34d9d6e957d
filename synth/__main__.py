"""`python -m synth` is `synth`."""

from synth.cli.main import run

run()
