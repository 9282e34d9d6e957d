"""Look at the machine that we run on: what NVML, sysfs and AMD's KFD tell, as a recording, a topology and its doubts."""
