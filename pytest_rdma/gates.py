"""What each test must leave as it was: objects of our processes, the device's counters, the kernel log."""
