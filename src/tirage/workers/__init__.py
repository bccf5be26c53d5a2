"""Work beside the caller: child processes, threads with a large stack, and the cancellation of either."""
