"""What the system gives a program: files, streams, the processor; and calls in its threads."""
