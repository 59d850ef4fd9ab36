"""What the system gives a program: files and folders, standard streams, the processor."""
