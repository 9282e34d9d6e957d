"""The command line: one verb a file, `main` to dispatch and to end in an exit code, `output`, which alone prints."""
