"""Storage of timer messages: ``timerwheel``, ``timerlog``, and their recovery."""
