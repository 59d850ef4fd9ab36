"""What runs a built model on a Mac: an engine here, Core ML in a process of its own.

``coremltools`` holds Python's lock while it loads and predicts, and Core ML can take its process
down with it. So a *worker* process (`worker`, `programs`) does that; the *supervisor* starts it,
gives it work through shared memory, and puts another in its place when it dies or hangs; the engine
(`engine`, `decoder`) then has what was lost computed again, so that whoever decodes a window does
not notice. `takeover` brings the model up without anybody waiting: first on the GPU, then, once it
is compiled and proven to be right and faster, on the Neural Engine.
"""
