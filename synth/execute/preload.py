"""What the server process loads of which workers are forks; importing it has the effect of setting its environment.

What torch's C++ parts log when a connection breaks is not for the user: one line of ours says it. It has to be set before torch is
loaded.
"""

from __future__ import annotations

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

import torch.distributed  # noqa: F401

import synth.execute.worker  # noqa: F401
