"""What happens when a host or a device is lost: blocked tests, their first cause, the exit code."""
