"""The command line: `biglittle generate`, `chat`, `demo`, `doctor` and `models`."""
