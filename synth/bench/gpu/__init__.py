"""On GPUs: nccl-tests with and without a file, measured beside simulated."""
